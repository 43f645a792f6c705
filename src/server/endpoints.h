// endpoints.h -- the App, with what its source files share.
#pragma once

#include <atomic>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <mutex>
#include <random>

#include "server/answers/running_answer.h"
#include "server/app.h"
#include "server/metrics/metrics.h"
#include "server/requests/prompt.h"

namespace braid::server {

class Endpoints;

struct Route {
  std::string method;  // "*": any
  std::string path;    // without /v1
  void (Endpoints::*handler)(const std::shared_ptr<Exchange>&);
  bool open = false;    // needs no key
  bool works = false;   // refused while the server drains
  bool prefix = false;  // everything below the path too
};

class Endpoints : public App {
 public:
  Endpoints(AppOptions options, std::unique_ptr<ModelHost> host);
  ~Endpoints() override;

  HttpHandlers handlers() override;
  void count_connections(std::function<int()> connections) override { connections_ = std::move(connections); }
  void set_api_keys(std::vector<std::string> keys) override { access_.set_keys(std::move(keys)); }
  void announce_end() override { ending_ = true; }
  void drain() override { ending_ = draining_ = true; }
  int active() const override;
  void fail_all(const ApiError& error) override;
  void stop() override;

 private:
  using Shared = std::shared_ptr<Exchange>;

  std::optional<HttpAnswer> check(const HttpRequest& request);
  void handle(const Shared& exchange);
  Headers headers(const HttpRequest& request) const;
  const Route* find_route(std::string_view path) const;
  Family family(const HttpRequest& request) const;
  HttpAnswer error_answer(const HttpRequest& request, const ApiError& error) const;
  ApiError shutting_down() const;
  void log_access(const HttpRequest& request, int status, uint64_t bytes, double ms, const std::string& note);

  // Answers. Each reads its request on a worker.
  void chat(const Shared& exchange);
  void completions(const Shared& exchange);
  void responses(const Shared& exchange);
  void messages(const Shared& exchange);
  void count_tokens(const Shared& exchange);
  void input_tokens(const Shared& exchange);
  void tokenize(const Shared& exchange);
  void detokenize(const Shared& exchange);
  void apply_template(const Shared& exchange);
  // At once.
  void page(const Shared& exchange);
  void health(const Shared& exchange);
  void version(const Shared& exchange);
  void models(const Shared& exchange);
  void props(const Shared& exchange);
  void slots(const Shared& exchange);
  void metrics(const Shared& exchange);
  void embeddings(const Shared& exchange);
  void not_stored(const Shared& exchange);

  using Reader = ApiResult<Generation> (*)(const Json&, const ApiLimits&);
  // The JSON of a request's body, which is gone then.
  static ApiResult<Json> take_body(Exchange& exchange);
  void generate(const Shared& exchange, Reader reader);
  void count(const Shared& exchange, Reader reader, const char* object);
  // Runs `work` on a worker; an error becomes the answer. on_worker(): 429 when too much waits already.
  using Work = std::function<std::optional<ApiError>()>;
  void on_worker(const Shared& exchange, Work work);
  void run_on_worker(const Shared& exchange, Work work);
  // Goes on with the model of that name: now, or on a worker when it is loaded.
  using ModelWork = std::function<std::optional<ApiError>(const Lease&)>;
  std::optional<ApiError> with_model(const Shared& exchange, const std::string& name, ModelWork work);
  // Reads a conversation, waits for its model and goes on with the rendered prompt.
  void with_prompt(const Shared& exchange, Reader reader,
                   std::function<std::optional<ApiError>(const Lease&, const RenderedPrompt&)> work);
  std::optional<ApiError> start_answer(const Shared& exchange, const Lease& lease,
                                       const std::shared_ptr<const Generation>& generation);

  BackendStats stats() const;  // of the resident model; nothing while there is none
  std::optional<ApiError> queue_fault() const;
  void answer_json(const Shared& exchange, const Json& json) const;
  Json model_json(const std::string& name, size_t entry) const;
  std::string new_id(const char* prefix);
  uint64_t random_number();

  AppOptions options_;
  Access access_;
  const std::unique_ptr<ModelHost> host_;
  std::vector<Route> routes_;
  Metrics metrics_;
  std::function<int()> connections_;
  std::atomic<bool> ending_{false};    // /health says so
  std::atomic<bool> draining_{false};  // new work is refused
  std::atomic<int> preparing_{0};
  int64_t started_s_ = 0;
  boost::asio::thread_pool workers_;
  boost::asio::strand<boost::asio::thread_pool::executor_type> large_;  // one of them

  mutable std::mutex mutex_;
  std::mt19937_64 random_;                             // guarded by mutex_
  std::vector<std::weak_ptr<RunningAnswer>> answers_;  // guarded by mutex_
};

}  // namespace braid::server
