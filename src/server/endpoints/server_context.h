// server_context.h -- shared by all endpoints: options, model host, metrics, running answers, ids.
// Thread-safe. The App owns it and outlives all use.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "server/api/running_answer.h"
#include "server/endpoints/access.h"
#include "server/endpoints/admission.h"
#include "server/endpoints/app_options.h"
#include "server/endpoints/workers.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/model_host.h"

namespace braid::server {

// Seconds since 1970.
int64_t now_s();

// Thread-safe.
class RunningAnswers {
 public:
  struct Running {
    std::shared_ptr<RunningAnswer> answer;
    std::string key_name;  // may be empty
  };

  void add(const std::shared_ptr<RunningAnswer>& answer, const ClientIdentity& client);
  std::vector<Running> list() const;
  // Those that `client` may see: its own; an administrator sees all.
  std::vector<Running> list(const ClientIdentity& client) const;
  int count() const;

 private:
  struct Entry {
    std::weak_ptr<RunningAnswer> answer;
    std::string client, key_name;
  };
  // `client` null: of all.
  std::vector<Running> of(const ClientIdentity* client) const;

  mutable std::mutex mutex_;
  std::vector<Entry> answers_;  // guarded by mutex_
};

class ServerContext {
 public:
  ServerContext(AppOptions wanted, std::unique_ptr<ModelHost> models);

  // In the form of the request's API.
  HttpAnswer error_answer(const HttpRequest& request, const ApiError& error) const;
  void answer_error(const std::shared_ptr<Exchange>& exchange, const ApiError& error) const;
  // As answer_error(); also counted as rejected.
  void refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error);
  void answer_json(const std::shared_ptr<Exchange>& exchange, const Json& json) const;

  // Runs `work` on a worker. Clients (ClientIdentity::id) take turns.
  void work(const std::shared_ptr<Exchange>& exchange, Workers::Cost cost, Workers::Work work);

  void watch_http(std::function<HttpLoad()> load);
  HttpLoad http_load() const;  // zeros before watch_http()

  // Admits a working request until leave(). Errors are limits of its client or of the server.
  std::optional<ApiError> admit(const HttpRequest& request);
  void leave(const HttpRequest& request);
  // Each of `count` answers needs a place in the queue, as a request does.
  std::optional<ApiError> answers_fault(const HttpRequest& request, int32_t count);
  // Of an admitted request; null after its answer ended.
  SharedPass pass(const HttpRequest& request) const;
  // Errors for what the client may not use. Priority 0 is clamped to the client's range.
  std::optional<ApiError> priority_fault(const HttpRequest& request, int32_t& priority);
  std::optional<ApiError> load_fault(const HttpRequest& request, const std::string& model);

  BackendStats stats() const;  // of the resident model, else zeros
  // `prefix` and 24 letters and digits.
  std::string new_id(const char* prefix);
  uint64_t random_number();

  const AppOptions options;
  Access access;
  Admission admission;
  const std::unique_ptr<ModelHost> host;
  Metrics metrics;
  RunningAnswers answers;
  std::atomic<bool> ending{false};    // reported by /health
  std::atomic<bool> draining{false};  // new work is refused
  const int64_t started_s;

 private:
  void trim_memory();
  ApiError limited(ApiError error);

  mutable std::mutex load_mutex_;
  std::function<HttpLoad()> load_;  // guarded by load_mutex_
  uint64_t trimmed_at_ = 0;         // HttpLoad::released_bytes; used by the idle worker
  mutable std::mutex passes_mutex_;
  std::map<const HttpRequest*, SharedPass> passes_;  // guarded by passes_mutex_
  std::mutex random_mutex_;
  std::mt19937_64 random_;  // guarded by random_mutex_

 public:
  Workers workers;  // last: its threads use the members above
};

}  // namespace braid::server
