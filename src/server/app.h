// app.h -- the server as a whole: what stands between HTTP (http/) and the endpoints (endpoints/), its end.
//
// Nothing here blocks, except stop().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/endpoints/app_options.h"
#include "server/http/http.h"
#include "server/models/model_host.h"

namespace braid::server {

class App {
 public:
  static std::unique_ptr<App> create(AppOptions options, std::unique_ptr<ModelHost> host);
  // One model that never changes.
  static std::unique_ptr<App> create(AppOptions options, std::shared_ptr<ServedModel> model);
  virtual ~App() = default;

  // For HttpServer::start(). They are used until HttpServer::stop() has returned; the app lives as long.
  virtual HttpHandlers handlers() = 0;
  // What metrics show of it.
  virtual void watch_http(std::function<HttpLoad()> load) = 0;

  // API keys for requests from now on. Thread-safe.
  virtual void set_api_keys(std::vector<ApiKey> keys) = 0;
  // Whether the limits of these keys, and those of all clients, name models that there are. Thread-safe.
  virtual Status check_limits(const std::vector<ApiKey>& keys) const = 0;

  // /health says that the server drains; requests are answered all the same. For those in front of it.
  virtual void announce_end() = 0;
  // Refuses new work from now on.
  virtual void drain() = 0;
  // Answers and preparations under way.
  virtual int active() const = 0;
  // Ends all answers with an error.
  virtual void fail_all(const ApiError& error) = 0;
  // Waits for the workers; nothing is prepared afterwards.
  virtual void stop() = 0;
};

}  // namespace braid::server
