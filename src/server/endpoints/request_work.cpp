// request_work.cpp -- see request_work.h.
#include "server/endpoints/request_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>
#include <utility>

#include "server/api/error_answer.h"
#include "server/api/fields.h"
#include "server/api/json_memory.h"
#include "server/endpoints/compression.h"
#include "server/endpoints/tenant.h"

namespace braid::server {

namespace {

// Retry-After while a model is loading.
constexpr int kModelRetryS = 5;

// Parsing holds the document and its messages; rendering the template's copy and the text.
constexpr size_t kReadingFactor = 3;
constexpr size_t kRenderingFactor = 3;

// Keys must not detect each other's cached prefixes.
std::string tenant_of(const ServerContext& context, const HttpRequest& request) {
  const bool apart = context.access.needs_key() && !context.options.share_cache;
  return apart ? cache_tenant(presented_key(request)) : "";
}

// A prompt that is too long only because compression failed may fit later.
ApiError not_compressed(ApiError error, const CompressionOutcome& compression) {
  if (!compression.failed || error.code != "context_length_exceeded") return error;
  return {.status = 503,
          .type = "unavailable_error",
          .code = "compression_failed",
          .message = "the prompt could not be compressed now, and without that it is too long: " +
                     error.message,
          .retry_after_s = kModelRetryS};
}

std::optional<ApiError> start_answer(ServerContext& context,
                                     const std::shared_ptr<Exchange>& exchange, const Lease& lease,
                                     const std::shared_ptr<Generation>& generation,
                                     const std::string& tenant,
                                     const CompressionOutcome& compression) {
  const auto& model = lease.model;
  auto prepared = prepare_answer(generation, *model, context.options.policy,
                                 context.options.seed.value_or(context.random_number()));
  if (!prepared.ok()) return not_compressed(prepared.error(), compression);
  if (compression.original_tokens > 0) {
    prepared->compressed_tokens = prepared->prompt_tokens;
    prepared->prompt_tokens = std::max(prepared->prompt_tokens, compression.original_tokens);
  }
  drop_prompt(*generation);
  if (auto fault =
          memory_fault(*exchange, generation_bytes(*generation) + prepared_bytes(*prepared))) {
    return fault;
  }

  for (Request& request : prepared->requests) request.cache_salt = tenant + request.cache_salt;

  AnswerContext about;
  about.id = context.new_id(answer_id_prefix(generation->endpoint));
  about.created_s = now_s();
  about.model = generation->model.empty() ? lease.entry->names.front() : generation->model;
  if (generation->endpoint == Endpoint::chat)
    about.fingerprint = "braid-" + context.options.version;
  about.new_id = [&context](const char* prefix) { return context.new_id(prefix); };
  about.now_s = now_s;
  about.temperature = std::round(prepared->temperature * 1e3) / 1e3;
  about.top_p = std::round(prepared->top_p * 1e3) / 1e3;
  auto stream = std::make_unique<AnswerStream>(std::move(*prepared), model->tokenizer,
                                               make_writer(*generation, std::move(about)));
  RunningAnswer::Hooks hooks;
  hooks.before_s = compression.seconds;
  if (!compression.note.empty())
    hooks.headers = {{std::string(kCompressionHeader), compression.note}};
  hooks.heartbeat_ms = context.options.heartbeat_ms;
  const auto used_ms = static_cast<int64_t>(1e3 * compression.seconds);
  if (const int64_t limit_ms = context.options.request_limit_ms; limit_ms > 0)
    hooks.limit_ms = std::max<int64_t>(1, limit_ms - used_ms);
  hooks.late_head_ms = context.options.late_head_ms;
  hooks.retry_after_s = [&context] { return context.metrics.retry_after_s(context.stats()); };
  hooks.report = [&context, exchange](const AnswerReport& report) {
    context.metrics.answered(report);
    std::string note = fmt::format(
        " reason={} prompt={} cached={} generated={} reasoning={} queue_ms={:.1f} first_ms={:.1f}",
        report.reason, report.usage.prompt_tokens, report.usage.cached_tokens,
        report.usage.generated_tokens, report.usage.reasoning_tokens, 1e3 * report.queue_s,
        1e3 * report.first_token_s);
    if (report.usage.compressed_tokens > 0)
      note += fmt::format(" compressed={}", report.usage.compressed_tokens);
    exchange->note(std::move(note));
  };
  const SharedPass pass = context.pass(exchange->request());
  if (pass == nullptr) return std::nullopt;  // the client disconnected
  hooks.begun = [pass] { pass->begun(); };
  hooks.ended = [pass] { pass->ended(); };
  auto answer =
      std::make_shared<RunningAnswer>(exchange, std::move(stream), model, std::move(hooks));
  context.answers.add(answer, pass->client());
  answer->start();
  return std::nullopt;
}

}  // namespace

void on_worker(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
               Workers::Work work) {
  if (!context.stats().alive)
    return context.refuse(exchange, internal_error("the engine has stopped"));
  const std::string& body = exchange->request().body;
  const bool large =
      body.size() > Workers::kLargeBytes || json_bytes_bound(body) > Workers::kLargeBytes;
  context.work(exchange, large ? Workers::Cost::large : Workers::Cost::small, std::move(work));
}

std::optional<ApiError> with_model(ServerContext& context,
                                   const std::shared_ptr<Exchange>& exchange,
                                   const std::string& name, Workers::Cost cost, ModelWork work) {
  // Shared by the wait and the disconnect handler. The ticket is 0 until it is known.
  struct Wait {
    std::mutex mutex;
    ModelHost::Ticket ticket = 0;
    bool gone = false;
  };
  const auto wait = std::make_shared<Wait>();
  if (auto fault = context.load_fault(exchange->request(), name)) return fault;
  // Set before the wait; later the answer sets its own handler.
  exchange->on_gone([&context, wait] {
    const std::lock_guard lock(wait->mutex);
    wait->gone = true;
    if (wait->ticket != 0) context.host->give_back(wait->ticket);
  });
  if (exchange->is_gone()) return std::nullopt;  // the client disconnected
  std::optional<ApiResult<Lease>> at_once;
  const auto caller = std::this_thread::get_id();
  const ModelHost::Ticket ticket = context.host->acquire(
      name, [&context, exchange, cost, work, caller, &at_once](ApiResult<Lease> lease) {
        if (std::this_thread::get_id() == caller) {
          at_once.emplace(std::move(lease));
          return;
        }
        context.work(exchange, cost, [work, lease = std::move(lease)] {
          return lease.ok() ? work(*lease) : std::optional(lease.error());
        });
      });
  if (at_once) {
    if (!at_once->ok()) return at_once->error();
    context.work(exchange, cost, [work, lease = std::move(**at_once)] { return work(lease); });
    return std::nullopt;
  }
  // The model may have been evicted between the two checks.
  if (auto fault = context.load_fault(exchange->request(), name)) {
    if (context.host->give_back(ticket)) return fault;
  }
  {
    const std::lock_guard lock(wait->mutex);
    wait->ticket = ticket;
    if (wait->gone) context.host->give_back(ticket);
  }
  const auto late = [&context, ticket, weak = std::weak_ptr(exchange), name] {
    const auto waiting = weak.lock();
    if (waiting == nullptr || !context.host->give_back(ticket)) return;
    const ApiError error{.status = 503,
                         .type = "unavailable_error",
                         .code = "model_loading",
                         .param = "model",
                         .message = "the model is not loaded yet: " + name.substr(0, 256),
                         .retry_after_s = kModelRetryS};
    context.refuse(waiting, error);
  };
  exchange->after(context.options.model_wait_ms, late);
  return std::nullopt;
}

std::optional<ApiError> rendering_fault(Exchange& exchange, const Generation& generation,
                                        size_t beside_bytes) {
  return memory_fault(exchange, kRenderingFactor * generation_bytes(generation) + beside_bytes);
}

ApiResult<Json> take_body(Exchange& exchange) {
  const std::string& body = exchange.request().body;
  if (const auto fault = memory_fault(exchange, body.capacity() + json_bytes_bound(body)))
    return *fault;
  auto json = parse_body(body);
  exchange.drop_body();
  if (!json.ok()) return json;
  if (const auto fault = memory_fault(exchange, kReadingFactor * json_bytes(*json))) return *fault;
  return json;
}

namespace {

using GenerationWork =
    std::function<std::optional<ApiError>(const Lease&, const std::shared_ptr<Generation>&)>;

ApiResult<std::shared_ptr<Generation>> take_generation(Exchange& exchange,
                                                       const RequestReaderOf& reader,
                                                       const ApiLimits& limits) {
  const auto body = take_body(exchange);
  if (!body.ok()) return body.error();
  auto read = reader(*body, limits);
  if (!read.ok()) return read.error();
  return std::make_shared<Generation>(std::move(*read));
}

// On a worker. Applies the preset of the requested model.
void with_generation(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                     const RequestReaderOf& reader, const GenerationWork& work) {
  on_worker(context, exchange, [&context, exchange, reader, work]() -> std::optional<ApiError> {
    auto read = take_generation(*exchange, reader, context.options.limits);
    if (!read.ok()) return read.error();
    const std::shared_ptr<Generation> generation = std::move(*read);
    const HttpRequest& request = exchange->request();
    if (auto fault = context.priority_fault(request, generation->priority)) return fault;
    const auto prompts = std::max<int32_t>(1, static_cast<int32_t>(generation->prompts.size()));
    if (auto fault = context.answers_fault(request, generation->n * prompts)) return fault;
    // Includes the memory for rendering, so that a request does not wait for a model and then fail.
    if (auto fault = rendering_fault(*exchange, *generation, 0)) return fault;
    const bool large = generation_bytes(*generation) > Workers::kLargeBytes;
    const auto cost = large ? Workers::Cost::large : Workers::Cost::prompt;
    const auto go_on = [generation, work](const Lease& lease) {
      apply_preset(lease.entry->preset, *generation);
      return work(lease, generation);
    };
    return with_model(context, exchange, generation->model, cost, go_on);
  });
}

}  // namespace

void with_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                 RequestReaderOf reader, PromptWork work) {
  with_generation(
      context, exchange, reader,
      [&context, work](const Lease& lease,
                       const std::shared_ptr<Generation>& generation) -> std::optional<ApiError> {
        const auto prompt = render_prompt(*generation, *lease.model, context.options.policy);
        return prompt.ok() ? work(lease, *generation, *prompt) : std::optional(prompt.error());
      });
}

void count_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                  RequestReaderOf reader, const char* object) {
  with_prompt(
      context, exchange, reader,
      [&context, exchange, object](const Lease& lease, const Generation&,
                                   const RenderedPrompt& prompt) -> std::optional<ApiError> {
        auto ids = prompt_tokens(prompt, *lease.model);
        if (!ids.ok()) return ids.error();
        Json out = Json::object();
        if (object != nullptr) out["object"] = object;
        out["input_tokens"] = ids->size();
        context.answer_json(exchange, out);
        return std::nullopt;
      });
}

void generate(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
              RequestReaderOf reader) {
  with_generation(
      context, exchange, reader,
      [&context, exchange](const Lease& lease, const std::shared_ptr<Generation>& generation) {
        const std::string tenant = tenant_of(context, exchange->request());
        const auto answer = [&context, exchange, lease, generation,
                             tenant](const CompressionOutcome& compression) {
          return start_answer(context, exchange, lease, generation, tenant, compression);
        };
        return compress_first(context, exchange, lease, generation, tenant, answer);
      });
}

}  // namespace braid::server
