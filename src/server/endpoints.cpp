// endpoints.cpp -- the endpoints that work with a model; what is answered at once is endpoints_info.cpp.
#include "server/endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cmath>
#include <ctime>

#include "base/log.h"
#include "server/access/tenant.h"
#include "server/grammar/token_text.h"
#include "server/requests/prompt.h"
#include "server/requests/read_request.h"
#include "text/json_text.h"

namespace braid::server {
namespace {

// Clients that were told that their model is not loaded yet come back after so many seconds.
constexpr int kModelRetryS = 5;
constexpr size_t kLargeBodyBytes = size_t{2} << 20;

int64_t now_s() { return static_cast<int64_t>(std::time(nullptr)); }

ApiResult<Generation> read_messages_request(const Json& body, const ApiLimits& limits) {
  return read_messages(body, limits, false);
}
ApiResult<Generation> read_messages_count(const Json& body, const ApiLimits& limits) {
  return read_messages(body, limits, true);
}

}  // namespace

Endpoints::Endpoints(AppOptions options, std::unique_ptr<ModelHost> host)
    : options_(std::move(options)),
      access_(options_),
      host_(std::move(host)),
      started_s_(now_s()),
      workers_(static_cast<size_t>(std::max(2, options_.workers))),
      large_(workers_.get_executor()),
      random_(std::random_device{}()) {
  using E = Endpoints;
  routes_ = {{"GET", "/", &E::page, true, false, false},
             {"GET", "/health", &E::health, true, false, false},
             {"GET", "/version", &E::version, true, false, false},
             {"GET", "/models", &E::models, false, false, false},
             {"GET", "/models/", &E::models, false, false, true},
             {"GET", "/metrics", &E::metrics, false, false, false},
             {"GET", "/props", &E::props, false, false, false},
             {"GET", "/slots", &E::slots, false, false, false},
             {"POST", "/tokenize", &E::tokenize, false, true, false},
             {"POST", "/detokenize", &E::detokenize, false, true, false},
             {"POST", "/apply-template", &E::apply_template, false, true, false},
             {"POST", "/completions", &E::completions, false, true, false},
             {"POST", "/chat/completions", &E::chat, false, true, false},
             {"POST", "/responses", &E::responses, false, true, false},
             {"POST", "/responses/input_tokens", &E::input_tokens, false, true, false},
             {"*", "/responses/", &E::not_stored, false, false, true},
             {"POST", "/messages", &E::messages, false, true, false},
             {"POST", "/messages/count_tokens", &E::count_tokens, false, true, false},
             {"POST", "/embeddings", &E::embeddings, false, true, false}};
}

Endpoints::~Endpoints() { stop(); }

void Endpoints::stop() {
  draining_ = true;
  host_->stop();
  workers_.join();
}

int Endpoints::active() const {
  const std::lock_guard lock(mutex_);
  int count = preparing_ + static_cast<int>(host_->waiting());
  for (const auto& weak : answers_) count += weak.expired() ? 0 : 1;
  return count;
}

void Endpoints::fail_all(const ApiError& error) {
  host_->refuse(error);
  std::vector<std::shared_ptr<RunningAnswer>> running;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : answers_) {
      if (auto answer = weak.lock()) running.push_back(std::move(answer));
    }
  }
  for (const auto& answer : running) answer->fail(error);
}

std::string Endpoints::new_id(const char* prefix) {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string out = prefix;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < 24; ++i) out += kLetters[random_() % kLetters.size()];
  return out;
}

uint64_t Endpoints::random_number() {
  const std::lock_guard lock(mutex_);
  return random_() >> 12;  // short enough for every JSON reader
}

void Endpoints::answer_json(const Shared& exchange, const Json& json) const {
  exchange->answer({200, "application/json", dump(json), {}});
}

void Endpoints::log_access(const HttpRequest& request, int status, uint64_t bytes, double ms,
                           const std::string& note) {
  if (!options_.access_log) return;
  spdlog::info("access id={} from={} method={} path={} status={} bytes={} ms={:.1f}{}", request.id,
               request.remote, request.method.substr(0, 16), dump(request.path.substr(0, 256)), status, bytes,
               ms, note);
}

// ---- Work ------------------------------------------------------------------------------------------------

BackendStats Endpoints::stats() const {
  const auto model = host_->look();
  return model ? model->backend->stats() : BackendStats{};
}

std::optional<ApiError> Endpoints::queue_fault() const {
  const BackendStats now = stats();
  if (!now.alive) return internal_error("the engine has stopped");
  if (now.waiting + preparing_ <= options_.max_queue) return std::nullopt;
  return ApiError{.status = 429,
                  .type = "rate_limit_error",
                  .code = "queue_full",
                  .message = "too many requests are waiting",
                  .retry_after_s = metrics_.retry_after_s(now)};
}

void Endpoints::on_worker(const Shared& exchange, Work work) {
  if (const auto fault = queue_fault()) {
    metrics_.rejected(fault->status);
    return exchange->answer(error_answer(exchange->request(), *fault));
  }
  run_on_worker(exchange, std::move(work));
}

void Endpoints::run_on_worker(const Shared& exchange, Work work) {
  ++preparing_;
  const auto run = [this, exchange, work = std::move(work)] {
    std::optional<ApiError> error;
    try {
      error = work();
    } catch (const std::exception& exception) {
      spdlog::error("request {} failed: {}", exchange->request().id, exception.what());
      error = internal_error("the request could not be worked on");
    }
    --preparing_;
    if (!error) return;
    metrics_.rejected(error->status);
    exchange->answer(error_answer(exchange->request(), *error));
  };
  // Large requests go one after the other, so that they leave a worker to everybody else.
  if (exchange->request().body.size() >= kLargeBodyBytes) {
    boost::asio::post(large_, run);
  } else {
    boost::asio::post(workers_, run);
  }
}

std::optional<ApiError> Endpoints::with_model(const Shared& exchange, const std::string& name,
                                              ModelWork work) {
  // What waiting and leaving know of each other. The ticket is 0 until it is known.
  struct Wait {
    std::mutex mutex;
    ModelHost::Ticket ticket = 0;
    bool gone = false;
  };
  const auto wait = std::make_shared<Wait>();
  if (!host_->is_resident(name)) {
    // Before the host knows of it: later the answer itself looks after its client.
    exchange->on_gone([this, wait] {
      const std::lock_guard lock(wait->mutex);
      wait->gone = true;
      if (wait->ticket != 0) host_->give_back(wait->ticket);
    });
  }
  std::optional<ApiResult<Lease>> at_once;
  const auto caller = std::this_thread::get_id();
  const ModelHost::Ticket ticket =
      host_->acquire(name, [this, exchange, work, caller, &at_once](ApiResult<Lease> lease) {
        if (std::this_thread::get_id() == caller) {
          at_once.emplace(std::move(lease));
          return;
        }
        run_on_worker(exchange, [work, lease = std::move(lease)] {
          return lease.ok() ? work(*lease) : std::optional(lease.error());
        });
      });
  if (at_once) return at_once->ok() ? work(**at_once) : std::optional(at_once->error());
  {
    const std::lock_guard lock(wait->mutex);
    wait->ticket = ticket;
    if (wait->gone) host_->give_back(ticket);
  }
  const auto late = [this, ticket, weak = std::weak_ptr(exchange), name] {
    const auto waiting = weak.lock();
    if (waiting == nullptr || !host_->give_back(ticket)) return;
    const ApiError error{.status = 503,
                         .type = "unavailable_error",
                         .code = "model_loading",
                         .param = "model",
                         .message = "the model is not loaded yet: " + name.substr(0, 256),
                         .retry_after_s = kModelRetryS};
    metrics_.rejected(error.status);
    waiting->answer(error_answer(waiting->request(), error));
  };
  exchange->after(options_.model_wait_ms, late);
  return std::nullopt;
}

ApiResult<Json> Endpoints::take_body(Exchange& exchange) {
  auto body = parse_body(exchange.request().body);
  exchange.drop_body();
  return body;
}

void Endpoints::generate(const Shared& exchange, Reader reader) {
  on_worker(exchange, [this, exchange, reader]() -> std::optional<ApiError> {
    const auto body = take_body(*exchange);
    if (!body.ok()) return body.error();
    auto read = reader(*body, options_.limits);
    if (!read.ok()) return read.error();
    auto generation = std::make_shared<Generation>(std::move(*read));
    return with_model(exchange, generation->model, [this, exchange, generation](const Lease& lease) {
      apply_preset(lease.entry->preset, *generation);
      return start_answer(exchange, lease, generation);
    });
  });
}

std::optional<ApiError> Endpoints::start_answer(const Shared& exchange, const Lease& lease,
                                                const std::shared_ptr<const Generation>& generation) {
  const auto& model = lease.model;
  auto prepared =
      prepare_answer(generation, *model, options_.policy, options_.seed.value_or(random_number()));
  if (!prepared.ok()) return prepared.error();

  // What one key's requests leave in the prefix cache tells nothing to another key.
  const bool apart = access_.needs_key() && !options_.share_cache;
  const std::string tenant = apart ? cache_tenant(presented_key(exchange->request())) : "";
  for (Request& request : prepared->requests) request.cache_salt = tenant + request.cache_salt;

  AnswerContext context;
  context.id = new_id(answer_id_prefix(generation->endpoint));
  context.created_s = now_s();
  context.model = generation->model.empty() ? lease.entry->names.front() : generation->model;
  if (generation->endpoint == Endpoint::chat) context.fingerprint = "braid-" + options_.version;
  context.new_id = [this](const char* prefix) { return new_id(prefix); };
  context.now_s = now_s;
  // Floats in single precision print with noise; three digits are what people write.
  context.temperature = std::round(prepared->temperature * 1e3) / 1e3;
  context.top_p = std::round(prepared->top_p * 1e3) / 1e3;
  auto stream = std::make_unique<AnswerStream>(std::move(*prepared), model->tokenizer,
                                               make_writer(*generation, std::move(context)));
  RunningAnswer::Hooks hooks;
  hooks.heartbeat_ms = options_.heartbeat_ms;
  hooks.limit_ms = options_.request_limit_ms;
  hooks.retry_after_s = [this] { return metrics_.retry_after_s(stats()); };
  hooks.report = [this, exchange](const AnswerReport& report) {
    metrics_.answered(report);
    exchange->note(fmt::format(
        " reason={} prompt={} cached={} generated={} reasoning={} queue_ms={:.1f} first_ms={:.1f}",
        report.reason, report.usage.prompt_tokens, report.usage.cached_tokens, report.usage.generated_tokens,
        report.usage.reasoning_tokens, 1e3 * report.queue_s, 1e3 * report.first_token_s));
  };
  auto answer = std::make_shared<RunningAnswer>(exchange, std::move(stream), model, std::move(hooks));
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(answers_, [](const auto& weak) { return weak.expired(); });
    answers_.push_back(answer);
  }
  answer->start();
  return std::nullopt;
}

void Endpoints::chat(const Shared& exchange) { generate(exchange, read_chat); }
void Endpoints::completions(const Shared& exchange) { generate(exchange, read_completions); }
void Endpoints::responses(const Shared& exchange) { generate(exchange, read_responses); }
void Endpoints::messages(const Shared& exchange) { generate(exchange, read_messages_request); }

void Endpoints::with_prompt(
    const Shared& exchange, Reader reader,
    std::function<std::optional<ApiError>(const Lease&, const RenderedPrompt&)> work) {
  on_worker(exchange, [this, exchange, reader, work]() -> std::optional<ApiError> {
    const auto body = take_body(*exchange);
    if (!body.ok()) return body.error();
    auto read = reader(*body, options_.limits);
    if (!read.ok()) return read.error();
    auto generation = std::make_shared<Generation>(std::move(*read));
    return with_model(exchange, generation->model,
                      [this, generation, work](const Lease& lease) -> std::optional<ApiError> {
                        apply_preset(lease.entry->preset, *generation);
                        const auto prompt = render_prompt(*generation, *lease.model, options_.policy);
                        return prompt.ok() ? work(lease, *prompt) : std::optional(prompt.error());
                      });
  });
}

void Endpoints::count(const Shared& exchange, Reader reader, const char* object) {
  with_prompt(
      exchange, reader,
      [this, exchange, object](const Lease& lease, const RenderedPrompt& prompt) -> std::optional<ApiError> {
        auto ids = prompt_tokens(prompt, *lease.model);
        if (!ids.ok()) return ids.error();
        Json out = Json::object();
        if (object != nullptr) out["object"] = object;
        out["input_tokens"] = ids->size();
        answer_json(exchange, out);
        return std::nullopt;
      });
}

void Endpoints::count_tokens(const Shared& exchange) { count(exchange, read_messages_count, nullptr); }
void Endpoints::input_tokens(const Shared& exchange) {
  count(exchange, read_responses, "response.input_tokens");
}

namespace {

// The ids of a text, or of a conversation.
ApiResult<std::vector<int32_t>> ids_of(const Json& body, const Lease& lease, const AppOptions& options) {
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  if (fields.has("messages")) {
    auto generation = read_chat(body, options.limits);
    if (!generation.ok()) return generation.error();
    apply_preset(lease.entry->preset, *generation);
    auto prompt = render_prompt(*generation, *lease.model, options.policy);
    if (!prompt.ok()) return prompt.error();
    return prompt_tokens(*prompt, *lease.model);
  }
  const std::string* text = fields.has("content") ? fields.string("content") : fields.string("prompt");
  if (text == nullptr && !error) fields.fail(missing_field("content"));
  EncodeOptions encoding;
  // vLLM's form has a prompt, llama.cpp's has content.
  const bool special = !fields.has("content");
  encoding.add_special = fields.boolean("add_special", fields.boolean("add_special_tokens", special));
  encoding.parse_special = fields.boolean("parse_special", true);
  if (error) return *error;
  auto encoded = lease.model->tokenizer->encode(*text, encoding);
  if (!encoded.ok()) return invalid_value("content", "content: " + encoded.error().message);
  return std::move(*encoded);
}

}  // namespace

void Endpoints::tokenize(const Shared& exchange) {
  on_worker(exchange, [this, exchange]() -> std::optional<ApiError> {
    auto parsed = take_body(*exchange);
    if (!parsed.ok()) return parsed.error();
    auto body = std::make_shared<const Json>(std::move(*parsed));
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const TokenizeForm form{fields.boolean("with_pieces", false), fields.boolean("return_token_strs", false)};
    const std::string name = fields.string("model", "");
    if (error) return error;
    return with_model(
        exchange, name, [this, exchange, body, form](const Lease& lease) -> std::optional<ApiError> {
          const auto ids = ids_of(*body, lease, options_);
          if (!ids.ok()) return ids.error();
          auto text =
              tokenize_answer(*lease.model->tokenizer, *ids, form, lease.model->backend->context_tokens());
          if (!text.ok()) return text.error();
          exchange->answer({200, "application/json", std::move(*text), {}});
          return std::nullopt;
        });
  });
}

void Endpoints::detokenize(const Shared& exchange) {
  on_worker(exchange, [this, exchange]() -> std::optional<ApiError> {
    const auto body = take_body(*exchange);
    if (!body.ok()) return body.error();
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const Json* tokens = fields.array("tokens", kMaxShownTokens);
    const std::string name = fields.string("model", "");
    if (tokens == nullptr || error) return error ? error : missing_field("tokens");
    std::vector<int32_t> ids;
    for (const Json& entry : *tokens) {
      const auto id = as_integer(entry);
      if (!id || *id < 0 || *id > INT32_MAX) {
        return invalid_value("tokens", "tokens must hold ids of the vocabulary");
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    return with_model(exchange, name, [exchange, ids](const Lease& lease) -> std::optional<ApiError> {
      auto text = detokenize_answer(*lease.model->tokenizer, ids);
      if (!text.ok()) return text.error();
      exchange->answer({200, "application/json", std::move(*text), {}});
      return std::nullopt;
    });
  });
}

void Endpoints::apply_template(const Shared& exchange) {
  with_prompt(exchange, read_chat,
              [exchange](const Lease&, const RenderedPrompt& prompt) -> std::optional<ApiError> {
                std::string text = R"({"prompt":)";
                append_json_string(text, prompt.text.text);
                exchange->answer({200, "application/json", text + "}", {}});
                return std::nullopt;
              });
}

}  // namespace braid::server
