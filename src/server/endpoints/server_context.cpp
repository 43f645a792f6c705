// server_context.cpp -- see server_context.h.
#include "server/endpoints/server_context.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

namespace braid::server {

namespace {

// Which API a request speaks: by its path, or because it says so.
Family family_of(const HttpRequest& request) {
  const std::string_view path = request.path;
  const bool messages = path.ends_with("/messages") || path.ends_with("/messages/count_tokens");
  return messages || !request.header("anthropic-version").empty() ? Family::anthropic : Family::openai;
}

}  // namespace

int64_t now_s() { return static_cast<int64_t>(std::time(nullptr)); }

void RunningAnswers::add(const std::shared_ptr<RunningAnswer>& answer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(answers_, [](const auto& weak) { return weak.expired(); });
  answers_.push_back(answer);
}

std::vector<std::shared_ptr<RunningAnswer>> RunningAnswers::list() const {
  std::vector<std::shared_ptr<RunningAnswer>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : answers_) {
    if (auto answer = weak.lock()) out.push_back(std::move(answer));
  }
  return out;
}

int RunningAnswers::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::count_if(answers_.begin(), answers_.end(), [](const auto& weak) { return !weak.expired(); }));
}

ServerContext::ServerContext(AppOptions wanted, std::unique_ptr<ModelHost> models)
    : options(std::move(wanted)),
      access(options),
      host(std::move(models)),
      started_s(now_s()),
      random_(std::random_device{}()),
      workers(options.workers, [this](const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
        refuse(exchange, error);
      }) {}

HttpAnswer ServerContext::error_answer(const HttpRequest& request, const ApiError& error) const {
  const Family kind = family_of(request);
  HttpAnswer answer{error.status_for(kind), "application/json", dump(error.body(kind, request.id)), {}};
  if (error.retry_after_s > 0) {
    answer.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    answer.headers.emplace_back("retry-after-ms", std::to_string(1000 * error.retry_after_s));
  }
  if (error.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 501) answer.headers.emplace_back("x-should-retry", "false");
  return answer;
}

void ServerContext::answer_error(const std::shared_ptr<Exchange>& exchange, const ApiError& error) const {
  exchange->answer(error_answer(exchange->request(), error));
}

void ServerContext::refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  metrics.rejected(error.status);
  answer_error(exchange, error);
}

void ServerContext::answer_json(const std::shared_ptr<Exchange>& exchange, const Json& json) const {
  exchange->answer({200, "application/json", dump(json), {}});
}

BackendStats ServerContext::stats() const {
  const auto model = host->look();
  return model ? model->backend->stats() : BackendStats{};
}

std::string ServerContext::new_id(const char* prefix) {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string out = prefix;
  const std::lock_guard lock(random_mutex_);
  for (int i = 0; i < 24; ++i) out += kLetters[random_() % kLetters.size()];
  return out;
}

uint64_t ServerContext::random_number() {
  const std::lock_guard lock(random_mutex_);
  return random_() >> 12;  // short enough for every JSON reader
}

}  // namespace braid::server
