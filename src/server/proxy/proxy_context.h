// proxy_context.h -- what all requests of the proxy share. Thread-safe. The app owns it, so that no
// thread of the client or the rewriter destroys them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "server/api/error_answer.h"
#include "server/endpoints/access.h"
#include "server/endpoints/app_options.h"
#include "server/proxy/body_rewriter.h"
#include "server/proxy/proxy_headers.h"
#include "server/proxy/upstream_client.h"

namespace braid::server {

// With API keys, those of clients are for the proxy and never pass.
struct ProxyOptions : AccessOptions {
  UpstreamOptions upstream;
  std::string upstream_key;    // empty: the client's
  std::string upstream_model;  // empty: as the request says
  AccessLog access_log = AccessLog::work;
};

struct ProxyContext {
  ProxyContext(ProxyOptions wanted, std::unique_ptr<UpstreamClient> upstream,
               std::shared_ptr<BodyRewriter> rewrites)
      : options(std::move(wanted)),
        access(options),
        client(std::move(upstream)),
        rewriter(std::move(rewrites)) {}

  const ProxyOptions options;
  Access access;
  const std::unique_ptr<UpstreamClient> client;
  const std::shared_ptr<BodyRewriter> rewriter;  // null: bodies pass as they are
  std::atomic<bool> draining{false};             // new requests are refused
};

// An error of the proxy itself, in the form of the client's API, with the id for its log.
HttpAnswer proxy_error(const HttpRequest& request, const ApiError& error);

}  // namespace braid::server
