// routes.h -- every route of the server: method, path, who may ask, what it is for, and its handler.
#pragma once

#include <span>
#include <string_view>

#include "server/endpoints/handlers.h"

namespace braid::server {

struct Route {
  // Who needs no API key: nobody, everybody, or everybody if the operator says so (AppOptions).
  enum class Open { no, yes, if_public_metrics, if_public_models };

  const char* method;  // "*": any
  const char* path;    // without /v1
  bool below;          // everything below the path, which ends in '/'
  Open open;
  // info: answers at once. works: asks the engine or a worker; refused while the server drains, and counts
  // against its client's limits. probe: says how the server does; plain OPTIONS are answered like GET, as old
  // balancers ask so. scrape: read again and again by a machine.
  enum class Use { info, works, probe, scrape };
  Use use;
  Handler handler;

  bool is_open(const AppOptions& options) const;
};

std::span<const Route> all_routes();

// Null: there is none. A route of exactly this path goes first.
const Route* find_route(std::string_view path);

}  // namespace braid::server
