// compression.cpp -- see compression.h.
#include "server/endpoints/compression.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "server/api/error_answer.h"
#include "server/api/json_memory.h"
#include "server/api/prompt.h"
#include "server/endpoints/request_work.h"

namespace braid::server {
namespace {

using Clock = std::chrono::steady_clock;

struct Compressing {
  Compressing(ServerContext& of, std::shared_ptr<Exchange> with, Lease holding,
              std::shared_ptr<Generation> reading, AfterCompression then)
      : context(of),
        exchange(std::move(with)),
        lease(std::move(holding)),
        generation(std::move(reading)),
        next(std::move(then)) {}

  ServerContext& context;
  std::shared_ptr<Exchange> exchange;
  Lease lease;
  std::shared_ptr<Generation> generation;
  AfterCompression next;
  CompressionPlan plan;
  Clock::time_point begin = Clock::now();

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
};
using Shared = std::shared_ptr<Compressing>;

// Shared with the handler of a disconnect, which must not own the exchange.
struct Reading {
  std::mutex mutex;
  RequestId id = 0;  // 0 until it is known
  bool gone = false;
  bool late = false;  // the request has taken longer than it may

  // Ends the reading.
  void end(Backend& backend, bool Reading::*why) {
    const std::lock_guard lock(mutex);
    this->*why = true;
    if (id != 0) backend.cancel_score(id);
  }
};

std::vector<ConversationText> texts_of(const Generation& generation) {
  using Role = ConversationText::Role;
  std::vector<ConversationText> out;
  if (generation.endpoint == Endpoint::completions)
    return {{Role::user, std::get<std::string>(generation.prompts[0])}};
  for (const Message& message : generation.messages) {
    const Role role = message.role == Message::Role::system      ? Role::instructions
                      : message.role == Message::Role::user      ? Role::user
                      : message.role == Message::Role::assistant ? Role::answer
                                                                 : Role::tool;
    out.push_back({role, message.text});
  }
  return out;
}

// Why a request is not shortened whatever its length; empty: it may be.
const char* unsuitable(const Generation& generation, bool insists) {
  if (generation.endpoint == Endpoint::completions) {
    if (generation.prompts.size() != 1) return "it has several prompts";
    if (!std::holds_alternative<std::string>(generation.prompts[0]))
      return "its prompt is token ids";
    if (generation.echo) return "its prompt is echoed";
    if (generation.suffix) return "it fills in the middle";
  }
  // What is missing in the prompt would be made up to fill a form.
  if (generation.format.kind != OutputFormat::Kind::text && !insists)
    return "its answer has a form";
  return "";
}

// Of the prompt as it came; 0 if it cannot be made.
int64_t original_tokens(const Generation& generation, const ServedModel& model,
                        const AnswerPolicy& policy) {
  // As prepare_answer() does, without what only costs time.
  const auto context = static_cast<size_t>(model.backend->context_tokens());
  if (generation.messages.size() > context) return 0;
  if (generation.endpoint == Endpoint::completions) {
    const auto ids =
        model.tokenizer->encode(std::get<std::string>(generation.prompts[0]),
                                {.add_special = generation.add_special, .parse_special = true});
    return ids.ok() ? static_cast<int64_t>(ids->size()) : 0;
  }
  const auto rendered = render_prompt(generation, model, policy);
  if (!rendered.ok()) return 0;
  const auto ids = prompt_tokens(*rendered, model);
  return ids.ok() ? static_cast<int64_t>(ids->size()) : 0;
}

void put_texts(Generation& generation, std::vector<std::optional<std::string>>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i]) continue;
    if (generation.endpoint == Endpoint::completions) {
      generation.prompts[0] = std::move(*texts[i]);
    } else {
      generation.messages[i].text = std::move(*texts[i]);
    }
  }
}

std::optional<ApiError> go_on(const Shared& work, bool failed) {
  CompressionOutcome outcome;
  outcome.failed = failed;
  CompressionPlan& plan = work->plan;
  const std::string plan_note = plan.note();
  if (plan.changes()) {
    outcome.original_tokens =
        original_tokens(*work->generation, *work->lease.model, work->context.options.policy);
    if (outcome.original_tokens == 0) outcome.original_tokens = plan.read_tokens;
    put_texts(*work->generation, plan.texts);
  }
  outcome.note = failed && !plan.changes() ? "failed" : plan_note;
  outcome.seconds = work->seconds();
  work->context.metrics.compressed({plan.changes() ? "compressed"
                                    : failed       ? "failed"
                                                   : "skipped",
                                    plan.changes() ? plan.read_tokens : 0,
                                    plan.changes() ? plan.dropped_tokens : 0, outcome.seconds});
  plan = {};
  return work->next(outcome);
}

std::optional<ApiError> read_next(const Shared& work);

// On a worker, after the scoring model.
std::optional<ApiError> take_scores(const Shared& work, const Result<std::vector<float>>& scores) {
  if (!scores.ok()) {
    spdlog::warn("{} goes on uncompressed: {}", work->exchange->request().id,
                 scores.error().message);
    work->plan.give_up();
    return go_on(work, true);
  }
  work->lease.model->compressor->take_scores(work->plan, *scores);
  return work->plan.to_read() == nullptr ? go_on(work, false) : read_next(work);
}

bool is_late(Reading& reading) {
  const std::lock_guard lock(reading.mutex);
  return reading.late;
}

ApiError too_late() {
  return {.status = 504,
          .type = "timeout_error",
          .code = "request_timeout",
          .message = "the answer took longer than this server allows"};
}

std::optional<ApiError> read_next(const Shared& work) {
  Exchange& exchange = *work->exchange;
  const auto reading = std::make_shared<Reading>();
  const std::shared_ptr<const ServedModel> model = work->lease.model;
  exchange.on_gone([reading, model] { reading->end(*model->backend, &Reading::gone); });
  if (const int64_t limit_ms = work->context.options.request_limit_ms; limit_ms > 0) {
    const auto used_ms = static_cast<int64_t>(1e3 * work->seconds());
    exchange.after(std::max<int64_t>(1, limit_ms - used_ms),
                   [reading, model] { reading->end(*model->backend, &Reading::late); });
  }
  if (exchange.is_gone()) return std::nullopt;
  PromptToScore prompt;
  prompt.client = work->context.access.identify(exchange.request()).id;
  prompt.ids = work->plan.to_read()->ids;
  // Called on the engine's thread, perhaps when the server has ended: post() has no effect then.
  prompt.done = [work, reading](Result<std::vector<float>> scores) {
    const auto shared = std::make_shared<const Result<std::vector<float>>>(std::move(scores));
    work->exchange->post([work, reading, shared] {
      work->context.work(work->exchange, Workers::Cost::large, [work, reading, shared] {
        return is_late(*reading) ? std::optional(too_late()) : take_scores(work, *shared);
      });
    });
  };
  const auto id = model->backend->score(std::move(prompt));
  if (!id.ok()) return take_scores(work, id.error());
  const std::lock_guard lock(reading->mutex);
  reading->id = *id;
  if (reading->gone || reading->late) model->backend->cancel_score(*id);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> compress_first(ServerContext& context,
                                       const std::shared_ptr<Exchange>& exchange,
                                       const Lease& lease,
                                       const std::shared_ptr<Generation>& generation,
                                       const std::string& tenant, AfterCompression next) {
  ConversationCompressor* const compressor = lease.model->compressor.get();
  const std::string_view header = exchange->request().header(kCompressionHeader);
  CompressionChoice choice;
  if (!header.empty()) {
    auto asked = CompressionChoice::parse(header);
    if (!asked.ok()) return invalid_value(std::string(kCompressionHeader), asked.error().message);
    choice = std::move(*asked);
  } else if (compressor != nullptr) {
    choice.mode = compressor->options().mode;
  }
  if (choice.mode == CompressionMode::off) return next({});
  // More messages than tokens fit: an error without any work.
  const auto context_tokens = static_cast<size_t>(lease.model->backend->context_tokens());
  if (generation->messages.size() > context_tokens) return next({});
  if (compressor == nullptr)
    return unsupported(std::string(kCompressionHeader),
                       "this server has no model that compresses prompts");
  const bool insists = !header.empty() && choice.mode == CompressionMode::always;
  if (const std::string_view why = unsuitable(*generation, insists); !why.empty()) {
    spdlog::debug("{} is not compressed: {}", exchange->request().id, why);
    return next({});
  }
  const auto work =
      std::make_shared<Compressing>(context, exchange, lease, generation, std::move(next));
  CompressionWish wish;
  wish.mode = choice.mode;
  wish.keep = choice.keep;
  wish.tenant = tenant + generation->cache_salt;
  wish.context_tokens = lease.model->backend->context_tokens();
  const std::vector<ConversationText> texts = texts_of(*generation);
  size_t bytes = 0;
  for (const ConversationText& text : texts) bytes += text.text.size();
  // Tokens of all texts, and once more with their ends and bytes for the windows.
  constexpr size_t kPlanningBytes = 12;  // for a byte of text
  if (auto fault = rendering_fault(*exchange, *generation, kPlanningBytes * bytes)) return fault;
  auto plan = compressor->plan(texts, wish);
  if (!plan.ok()) return take_scores(work, plan.error());
  work->plan = std::move(*plan);
  if (!work->plan.reason.empty())
    spdlog::debug("{} is not compressed: {}", exchange->request().id, work->plan.reason);
  if (auto fault = rendering_fault(*exchange, *generation, work->plan.bytes())) return fault;
  return work->plan.to_read() == nullptr ? go_on(work, false) : read_next(work);
}

}  // namespace braid::server
