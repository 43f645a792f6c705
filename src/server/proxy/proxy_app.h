// proxy_app.h -- a reverse proxy for servers of OpenAI's and Anthropic's APIs: each request goes to
// the upstream and every answer comes from it, but for those that the proxy refuses.
// Its own are /proxy/health, which says whether the upstream can be reached, and the preflights of
// browsers. With API keys every path needs one, except /health and /proxy/health.
// Threads: any. Nothing blocks but stop().
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "server/http/http.h"
#include "server/proxy/proxy_context.h"

namespace braid::server {

class ProxyApp {
 public:
  // `rewriter` null: bodies pass as they are. Errors: those of UpstreamClient::start().
  static Result<std::unique_ptr<ProxyApp>> create(ProxyOptions options,
                                                  std::shared_ptr<BodyRewriter> rewriter);
  virtual ~ProxyApp() = default;

  // Used until HttpServer::stop() has returned; the app must live until then.
  virtual HttpHandlers handlers() = 0;
  // For later requests.
  virtual void set_api_keys(std::vector<ApiKey> keys) = 0;
  virtual UpstreamLoad load() const = 0;
  // Refuses new requests from now on.
  virtual void drain() = 0;
  // Ends all calls. After HttpServer::stop().
  virtual void stop() = 0;
};

}  // namespace braid::server
