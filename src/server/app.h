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

#include "server/access/access.h"
#include "server/api/generation.h"
#include "server/http/http.h"
#include "server/models/model_host.h"

namespace braid::server {

struct AppOptions : AccessOptions {
  std::string version = "0";
  bool share_cache = false;  // prefixes are shared between keys
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

  // For HttpServer::start(). They are used until HttpServer::stop() has returned; the app lives as long.
  virtual HttpHandlers handlers() = 0;
  // The number that metrics show.
  virtual void count_connections(std::function<int()> connections) = 0;

  // API keys for requests from now on. Thread-safe.
  virtual void set_api_keys(std::vector<std::string> keys) = 0;

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
