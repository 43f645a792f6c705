// routes.h -- every route of the server: method, path, access, use, handler.
#pragma once

#include <span>
#include <string_view>

#include "server/endpoints/handlers.h"

namespace braid::server {

struct Route {
  // Whether the route works without an API key.
  enum class Open { no, yes, if_public_metrics, if_public_models };

  const char* method;  // "*": any
  const char* path;    // without /v1
  bool below;          // also all paths below; `path` ends in '/'
  Open open;
  // info: answers at once. works: uses the engine or a worker, is refused while draining, and
  // counts against client limits. probe: health; plain OPTIONS is answered like GET, for old load
  // balancers. scrape: polled by machines.
  enum class Use { info, works, probe, scrape };
  Use use;
  Handler handler;

  bool is_open(const AppOptions& options) const;
};

std::span<const Route> all_routes();

// Null if there is no route. An exact path takes precedence.
const Route* find_route(std::string_view path);

}  // namespace braid::server
