// app.h -- the server as a whole, between HTTP (http/) and the endpoints. Only stop() blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/endpoints/app_options.h"
#include "server/http/http.h"
#include "server/model_host.h"

namespace braid::server {

class App {
 public:
  static std::unique_ptr<App> create(AppOptions options, std::unique_ptr<ModelHost> host);
  static std::unique_ptr<App> create(AppOptions options, std::shared_ptr<ServedModel> model);
  virtual ~App() = default;

  // Used until HttpServer::stop() has returned; the app must live until then.
  virtual HttpHandlers handlers() = 0;
  virtual void watch_http(std::function<HttpLoad()> load) = 0;

  // For later requests. Thread-safe.
  virtual void set_api_keys(std::vector<ApiKey> keys) = 0;
  // Fails if limits of these keys or of all clients name unknown models. Thread-safe.
  virtual Status check_limits(const std::vector<ApiKey>& keys) const = 0;

  // /health reports draining, for load balancers. Requests are still answered.
  virtual void announce_end() = 0;
  // Refuses new work from now on.
  virtual void drain() = 0;
  // Answers and preparations in progress.
  virtual int active() const = 0;
  virtual void fail_all(const ApiError& error) = 0;
  // Waits for the workers. No request is prepared afterwards.
  virtual void stop() = 0;
};

}  // namespace braid::server
