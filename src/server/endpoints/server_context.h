// server_context.h -- what all endpoints share: options, the model host, metrics, answers under way, ids.
//
// Made once by the App, which lives as long as anything here is used. Thread-safe.
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

#include "server/access/access.h"
#include "server/access/admission.h"
#include "server/answers/running_answer.h"
#include "server/endpoints/app_options.h"
#include "server/endpoints/workers.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/models/model_host.h"

namespace braid::server {

// Seconds since 1970.
int64_t now_s();

// The answers under way. Thread-safe.
class RunningAnswers {
 public:
  void add(const std::shared_ptr<RunningAnswer>& answer, std::string client);
  std::vector<std::shared_ptr<RunningAnswer>> list() const;
  // Those of one client (ClientIdentity::id).
  std::vector<std::shared_ptr<RunningAnswer>> list(const std::string& client) const;
  int count() const;

 private:
  mutable std::mutex mutex_;
  struct Entry {
    std::weak_ptr<RunningAnswer> answer;
    std::string client;
  };
  std::vector<Entry> answers_;  // guarded by mutex_
};

class ServerContext {
 public:
  ServerContext(AppOptions wanted, std::unique_ptr<ModelHost> models);

  // In the form of the API that the request speaks.
  HttpAnswer error_answer(const HttpRequest& request, const ApiError& error) const;
  void answer_error(const std::shared_ptr<Exchange>& exchange, const ApiError& error) const;
  // The same, and metrics count it as rejected.
  void refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error);
  void answer_json(const std::shared_ptr<Exchange>& exchange, const Json& json) const;

  // Runs `work` on a worker, in turn with other clients (ClientIdentity::id).
  void work(const std::shared_ptr<Exchange>& exchange, Workers::Cost cost, Workers::Work work);

  void watch_http(std::function<HttpLoad()> load);
  HttpLoad http_load() const;  // nothing before that

  // Lets a request in that works, until leave(). An error is a limit of its client, or of the server.
  std::optional<ApiError> admit(const HttpRequest& request);
  void leave(const HttpRequest& request);
  // It asks for so many answers: for each of them there must be a place, as for a request.
  std::optional<ApiError> answers_fault(const HttpRequest& request, int32_t count);
  // Of a request that was let in; null when its answer is over.
  SharedPass pass(const HttpRequest& request) const;
  // What its client may not ask for, if anything: a priority (0, which is also that of requests without one,
  // becomes the nearest that it may have), or to load that model.
  std::optional<ApiError> priority_fault(const HttpRequest& request, int32_t& priority);
  std::optional<ApiError> load_fault(const HttpRequest& request, const std::string& model);

  BackendStats stats() const;  // of the resident model; nothing while there is none
  // A prefix and 24 letters and digits.
  std::string new_id(const char* prefix);
  uint64_t random_number();

  const AppOptions options;
  Access access;
  Admission admission;
  const std::unique_ptr<ModelHost> host;
  Metrics metrics;
  RunningAnswers answers;
  std::atomic<bool> ending{false};    // /health says so
  std::atomic<bool> draining{false};  // new work is refused
  const int64_t started_s;

 private:
  void trim_memory();
  // The error of a limit, which metrics count.
  ApiError limited(ApiError error);

  mutable std::mutex load_mutex_;
  std::function<HttpLoad()> load_;  // guarded by load_mutex_
  uint64_t trimmed_at_ = 0;         // HttpLoad::released_bytes; of the worker that is idle
  mutable std::mutex passes_mutex_;
  std::map<const HttpRequest*, SharedPass> passes_;  // guarded by passes_mutex_
  std::mutex random_mutex_;
  std::mt19937_64 random_;  // guarded by random_mutex_

 public:
  Workers workers;  // last: its threads use all of the above
};

}  // namespace braid::server
