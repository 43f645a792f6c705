// app.h -- the server's endpoints: who may ask, what they get. Between HTTP (http.h) and answers
// (running_answer.h).
//
// Requests that need work (rendering, tokens, schemas) are done on worker threads, apart from HTTP and from
// the engine. Nothing here blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/http.h"
#include "server/model_host.h"

namespace braid::server {

struct AppOptions {
  std::string version = "0";
  std::vector<std::string> api_keys;       // empty: everybody may ask
  std::vector<std::string> cors_origins;   // empty: no page of another origin may
  std::vector<std::string> allowed_hosts;  // names a request may be addressed to, when guarded
  bool guard_host = true;                  // bound to a loopback address: refuse names that are not ours
  bool public_metrics = false, public_models = false;
  bool strict_model = false;        // unknown model names are errors
  int64_t model_wait_ms = 120'000;  // that a request waits for a model that is not loaded
  int max_queue = 256;
  int slots = 1;
  int workers = 2;
  int64_t heartbeat_ms = 10'000;
  int64_t request_limit_ms = 0;
  int64_t watchdog_ms = 60'000;
  ApiLimits limits;
  AnswerPolicy policy;
  std::string page;              // of GET /; empty: one line of text
  std::optional<uint64_t> seed;  // of requests that name none; empty: random
  bool access_log = true;
};

class App {
 public:
  static std::unique_ptr<App> create(AppOptions options, std::unique_ptr<ModelHost> host);
  // One model that never changes.
  static std::unique_ptr<App> create(AppOptions options, std::shared_ptr<ServedModel> model);
  virtual ~App() = default;

  // For HttpServer::start(). The app outlives the server.
  virtual HttpHandlers handlers() = 0;
  // The number that metrics show.
  virtual void count_connections(std::function<int()> connections) = 0;

  // Refuses new work from now on.
  virtual void drain() = 0;
  // Answers and preparations under way.
  virtual int active() const = 0;
  // Ends all answers with an error.
  virtual void fail_all(const ApiError& error) = 0;
  // Waits for the workers; nothing is prepared afterwards.
  virtual void stop() = 0;
};

// Same time for every key, so that timing tells nothing about it.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace braid::server
