// server_context.cpp -- see server_context.h.
#include "server/endpoints/server_context.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <string_view>
#include <utility>

#include "server/api/error_answer.h"
#include "server/http/http_rules.h"

namespace braid::server {

namespace {

// Freed by requests before the heap is trimmed, which scans all of it.
constexpr uint64_t kTrimmedBytes = uint64_t{32} << 20;

}  // namespace

int64_t now_s() { return static_cast<int64_t>(std::time(nullptr)); }

void RunningAnswers::add(const std::shared_ptr<RunningAnswer>& answer,
                         const ClientIdentity& client) {
  const std::lock_guard lock(mutex_);
  std::erase_if(answers_, [](const Entry& entry) { return entry.answer.expired(); });
  answers_.push_back({answer, client.id, client.name});
}

std::vector<RunningAnswers::Running> RunningAnswers::list() const { return of(nullptr); }

std::vector<RunningAnswers::Running> RunningAnswers::list(const ClientIdentity& client) const {
  return of(client.admin ? nullptr : &client);
}

std::vector<RunningAnswers::Running> RunningAnswers::of(const ClientIdentity* client) const {
  std::vector<Running> out;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : answers_) {
    if (client != nullptr && entry.client != client->id) continue;
    if (auto answer = entry.answer.lock()) out.push_back({std::move(answer), entry.key_name});
  }
  return out;
}

int RunningAnswers::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(answers_.begin(), answers_.end(), [](const Entry& entry) {
    return !entry.answer.expired();
  }));
}

ServerContext::ServerContext(AppOptions wanted, std::unique_ptr<ModelHost> models)
    : options(std::move(wanted)),
      access(options),
      admission(options.max_queue, options.slots),
      host(std::move(models)),
      started_s(now_s()),
      random_(std::random_device{}()),
      workers(
          options.workers,
          [this](const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
            refuse(exchange, error);
          },
          [this] { trim_memory(); }) {}

void ServerContext::work(const std::shared_ptr<Exchange>& exchange, Workers::Cost cost,
                         Workers::Work work) {
  const std::string client = access.identify(exchange->request()).id;
  workers.run(std::hash<std::string>()(client), cost, exchange, std::move(work));
}

void ServerContext::watch_http(std::function<HttpLoad()> load) {
  const std::lock_guard lock(load_mutex_);
  load_ = std::move(load);
}

HttpLoad ServerContext::http_load() const {
  const std::lock_guard lock(load_mutex_);
  return load_ ? load_() : HttpLoad{};
}

// The allocator keeps memory of large requests until it is trimmed.
void ServerContext::trim_memory() {
  const uint64_t released = http_load().released_bytes;
  if (released - trimmed_at_ < kTrimmedBytes) return;
  trimmed_at_ = released;
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

HttpAnswer ServerContext::error_answer(const HttpRequest& request, const ApiError& error) const {
  return server::error_answer(error, family_of_client(request), request);
}

void ServerContext::answer_error(const std::shared_ptr<Exchange>& exchange,
                                 const ApiError& error) const {
  exchange->answer(error_answer(exchange->request(), error));
}

void ServerContext::refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  metrics.rejected(error.status);
  answer_error(exchange, error);
}

void ServerContext::answer_json(const std::shared_ptr<Exchange>& exchange, const Json& json) const {
  exchange->answer({200, "application/json", dump(json), {}});
}

std::optional<ApiError> ServerContext::admit(const HttpRequest& request) {
  auto pass = admission.enter(access.identify(request));
  if (!pass.ok()) return limited(pass.error());
  const std::lock_guard lock(passes_mutex_);
  passes_[&request] = *pass;
  return std::nullopt;
}

std::optional<ApiError> ServerContext::answers_fault(const HttpRequest& request, int32_t count) {
  const SharedPass let_in = pass(request);
  if (let_in == nullptr) return std::nullopt;
  auto fault = let_in->set_answers(count);
  if (fault && fault->status == 429) return limited(std::move(*fault));
  return fault;
}

ApiError ServerContext::limited(ApiError error) {
  error.retry_after_s = metrics.retry_after_s(stats());
  metrics.limited(error.code);
  return error;
}

void ServerContext::leave(const HttpRequest& request) {
  SharedPass pass;  // destroyed outside the lock
  const std::lock_guard lock(passes_mutex_);
  const auto found = passes_.find(&request);
  if (found == passes_.end()) return;
  pass = std::move(found->second);
  passes_.erase(found);
}

SharedPass ServerContext::pass(const HttpRequest& request) const {
  const std::lock_guard lock(passes_mutex_);
  const auto found = passes_.find(&request);
  return found == passes_.end() ? nullptr : found->second;
}

std::optional<ApiError> ServerContext::priority_fault(const HttpRequest& request,
                                                      int32_t& priority) {
  const SharedPass let_in = pass(request);
  if (let_in == nullptr || !let_in->client().limits.priority) return std::nullopt;
  const PriorityRange range = *let_in->client().limits.priority;
  if (priority == 0) priority = std::clamp(0, range.lowest, range.highest);
  if (priority >= range.lowest && priority <= range.highest) return std::nullopt;
  metrics.limited("priority");
  return invalid_value("priority",
                       fmt::format("priority must be from {} to {} for this {}", range.lowest,
                                   range.highest, let_in->client().by_key ? "API key" : "address"));
}

std::optional<ApiError> ServerContext::load_fault(const HttpRequest& request,
                                                  const std::string& model) {
  const SharedPass let_in = pass(request);
  if (let_in == nullptr || !let_in->client().limits.models || host->is_resident(model))
    return std::nullopt;
  const Catalog& catalog = host->catalog();
  const auto file = [&catalog](const std::string& name) -> std::optional<size_t> {
    const auto entry = catalog.find(name);
    return entry ? std::optional(catalog.entries()[*entry].file) : std::nullopt;
  };
  const auto wanted = file(model);
  // The host refuses unknown names itself.
  if (!wanted && options.strict_model && !model.empty()) return std::nullopt;
  if (!wanted) {  // any model is accepted, and one is coming
    return ApiError{.status = 503,
                    .type = "unavailable_error",
                    .code = "model_loading",
                    .message = "a model is being loaded",
                    .retry_after_s = 5};
  }
  for (const std::string& name : *let_in->client().limits.models) {
    if (file(name) == wanted) return std::nullopt;
  }
  metrics.limited("model");
  return ApiError{.status = 403,
                  .type = "permission_error",
                  .code = "model_not_allowed",
                  .param = "model",
                  .message = fmt::format(
                      "this {} may use the model {} while it is in memory, and may not load it",
                      let_in->client().by_key ? "API key" : "address", model.substr(0, 256))};
}

BackendStats ServerContext::stats() const {
  const auto model = host->look();
  return model ? model->backend->stats() : BackendStats{};
}

std::string ServerContext::new_id(const char* prefix) {
  const std::lock_guard lock(random_mutex_);
  return random_id(prefix, random_);
}

uint64_t ServerContext::random_number() {
  const std::lock_guard lock(random_mutex_);
  return random_() >> 12;  // exact in every JSON reader
}

}  // namespace braid::server
