// endpoints.cpp -- what each endpoint does.
#include "server/endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cmath>
#include <ctime>

#include "base/log.h"
#include "server/prompt.h"
#include "server/read_request.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

int64_t now_s() { return static_cast<int64_t>(std::time(nullptr)); }

ApiResult<Generation> read_messages_request(const Json& body, const ApiLimits& limits) {
  return read_messages(body, limits, false);
}
ApiResult<Generation> read_messages_count(const Json& body, const ApiLimits& limits) {
  return read_messages(body, limits, true);
}

std::string iso_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// %41 -> A. What is no escape stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                        std::isxdigit(static_cast<unsigned char>(text[i + 2]));
    if (escape) {
      value = std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16);
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

Endpoints::Endpoints(AppOptions options, std::shared_ptr<const ServedModel> model)
    : options_(std::move(options)),
      model_(std::move(model)),
      started_s_(now_s()),
      workers_(static_cast<size_t>(std::max(2, options_.workers))),
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
             {"GET", "/responses/", &E::not_stored, false, false, true},
             {"POST", "/messages", &E::messages, false, true, false},
             {"POST", "/messages/count_tokens", &E::count_tokens, false, true, false},
             {"POST", "/embeddings", &E::embeddings, false, true, false}};
}

Endpoints::~Endpoints() { stop(); }

void Endpoints::stop() {
  draining_ = true;
  workers_.join();
}

int Endpoints::active() const {
  const std::lock_guard lock(mutex_);
  int count = preparing_;
  for (const auto& weak : answers_) count += weak.expired() ? 0 : 1;
  return count;
}

void Endpoints::fail_all(const ApiError& error) {
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

void Endpoints::log_access(const HttpRequest& request, int status, uint64_t bytes, double ms) {
  std::optional<AnswerReport> report;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = reports_.find(request.id); found != reports_.end()) {
      report = std::move(found->second);
      reports_.erase(found);
    }
  }
  if (!options_.access_log) return;
  std::string line = fmt::format("access id={} from={} method={} path={} status={} bytes={} ms={:.1f}",
                                 request.id, request.remote, request.method.substr(0, 16),
                                 dump(request.path.substr(0, 256)), status, bytes, ms);
  if (report) {
    line += fmt::format(
        " reason={} prompt={} cached={} generated={} reasoning={} queue_ms={:.1f} first_ms={:.1f}",
        report->reason, report->usage.prompt_tokens, report->usage.cached_tokens,
        report->usage.generated_tokens, report->usage.reasoning_tokens, 1e3 * report->queue_s,
        1e3 * report->first_token_s);
  }
  spdlog::info("{}", line);
}

// ---- Work ------------------------------------------------------------------------------------------------

std::optional<ApiError> Endpoints::queue_fault() const {
  const BackendStats stats = model_->backend->stats();
  if (!stats.alive) return internal_error("the engine has stopped");
  if (stats.waiting + preparing_ <= options_.max_queue) return std::nullopt;
  return ApiError{.status = 429,
                  .type = "rate_limit_error",
                  .code = "queue_full",
                  .message = "too many requests are waiting",
                  .retry_after_s = metrics_.retry_after_s(stats)};
}

std::optional<ApiError> Endpoints::model_fault(const std::string& name) const {
  const auto& names = model_->names;
  if (!options_.strict_model || name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
    return std::nullopt;
  }
  return ApiError{.status = 404,
                  .type = "not_found_error",
                  .code = "model_not_found",
                  .param = "model",
                  .message = "model: " + name.substr(0, 256)};
}

void Endpoints::on_worker(const Shared& exchange, std::function<std::optional<ApiError>()> work) {
  if (const auto fault = queue_fault()) {
    metrics_.rejected(fault->status);
    return exchange->answer(error_answer(exchange->request(), *fault));
  }
  ++preparing_;
  boost::asio::post(workers_, [this, exchange, work = std::move(work)] {
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
  });
}

void Endpoints::generate(const Shared& exchange, Reader reader) {
  on_worker(exchange, [this, exchange, reader]() -> std::optional<ApiError> {
    const auto body = parse_body(exchange->request().body);
    if (!body.ok()) return body.error();
    auto generation = reader(*body, options_.limits);
    if (!generation.ok()) return generation.error();
    if (auto fault = model_fault(generation->model)) return fault;
    auto shared = std::make_shared<Generation>(std::move(*generation));
    auto prepared = prepare_answer(shared, *model_, options_.policy, options_.seed.value_or(random_number()));
    if (!prepared.ok()) return prepared.error();

    AnswerContext context;
    context.id = new_id(answer_id_prefix(shared->endpoint));
    context.created_s = now_s();
    context.model = shared->model.empty() ? model_->name() : shared->model;
    if (shared->endpoint == Endpoint::chat) context.fingerprint = "braid-" + options_.version;
    context.new_id = [this](const char* prefix) { return new_id(prefix); };
    context.now_s = now_s;
    // Floats in single precision print with noise; three digits are what people write.
    context.temperature = std::round(prepared->temperature * 1e3) / 1e3;
    context.top_p = std::round(prepared->top_p * 1e3) / 1e3;
    auto stream = std::make_unique<AnswerStream>(std::move(*prepared), model_->tokenizer,
                                                 make_writer(*shared, std::move(context)));
    RunningAnswer::Hooks hooks;
    hooks.heartbeat_ms = options_.heartbeat_ms;
    hooks.limit_ms = options_.request_limit_ms;
    hooks.retry_after_s = [this] { return metrics_.retry_after_s(model_->backend->stats()); };
    hooks.report = [this, id = exchange->request().id](const AnswerReport& report) {
      metrics_.answered(report);
      const std::lock_guard lock(mutex_);
      if (reports_.size() < 10'000) reports_[id] = report;
    };
    auto answer = std::make_shared<RunningAnswer>(exchange, std::move(stream), model_, std::move(hooks));
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(answers_, [](const auto& weak) { return weak.expired(); });
      answers_.push_back(answer);
    }
    answer->start();
    return std::nullopt;
  });
}

void Endpoints::chat(const Shared& exchange) { generate(exchange, read_chat); }
void Endpoints::completions(const Shared& exchange) { generate(exchange, read_completions); }
void Endpoints::responses(const Shared& exchange) { generate(exchange, read_responses); }
void Endpoints::messages(const Shared& exchange) { generate(exchange, read_messages_request); }

void Endpoints::count(const Shared& exchange, Reader reader, const char* object) {
  on_worker(exchange, [this, exchange, reader, object]() -> std::optional<ApiError> {
    const auto body = parse_body(exchange->request().body);
    if (!body.ok()) return body.error();
    auto generation = reader(*body, options_.limits);
    if (!generation.ok()) return generation.error();
    auto prompt = render_prompt(*generation, *model_, options_.policy);
    if (!prompt.ok()) return prompt.error();
    auto ids = prompt_tokens(*prompt, *model_);
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

void Endpoints::tokenize(const Shared& exchange) {
  on_worker(exchange, [this, exchange]() -> std::optional<ApiError> {
    const auto body = parse_body(exchange->request().body);
    if (!body.ok()) return body.error();
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    std::vector<int32_t> ids;
    if (fields.has("messages")) {
      auto generation = read_chat(*body, options_.limits);
      if (!generation.ok()) return generation.error();
      auto prompt = render_prompt(*generation, *model_, options_.policy);
      if (!prompt.ok()) return prompt.error();
      auto encoded = prompt_tokens(*prompt, *model_);
      if (!encoded.ok()) return encoded.error();
      ids = std::move(*encoded);
    } else {
      const std::string* text = fields.has("content") ? fields.string("content") : fields.string("prompt");
      if (text == nullptr && !error) fields.fail(missing_field("content"));
      EncodeOptions options;
      options.add_special = fields.boolean("add_special", fields.boolean("add_special_tokens", false));
      options.parse_special = fields.boolean("parse_special", true);
      if (error) return error;
      auto encoded = model_->tokenizer->encode(*text, options);
      if (!encoded.ok()) return invalid_value("content", "content: " + encoded.error().message);
      ids = std::move(*encoded);
    }
    const bool pieces = fields.boolean("with_pieces", fields.boolean("return_token_strs", false));
    if (error) return error;
    Json tokens = Json::array();
    for (const int32_t id : ids) {
      if (!pieces) {
        tokens.push_back(id);
        continue;
      }
      const std::string_view piece = model_->tokenizer->piece(id, SpecialText::show);
      Json text;
      if (first_invalid_utf8(piece)) {
        for (const char c : piece) text.push_back(static_cast<unsigned char>(c));
      } else {
        text = piece;
      }
      tokens.push_back({{"id", id}, {"piece", std::move(text)}});
    }
    answer_json(exchange, {{"tokens", std::move(tokens)},
                           {"count", ids.size()},
                           {"max_model_len", model_->backend->context_tokens()}});
    return std::nullopt;
  });
}

void Endpoints::detokenize(const Shared& exchange) {
  on_worker(exchange, [this, exchange]() -> std::optional<ApiError> {
    const auto body = parse_body(exchange->request().body);
    if (!body.ok()) return body.error();
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const Json* tokens = fields.array("tokens", 16 << 20);
    if (tokens == nullptr) return error ? error : missing_field("tokens");
    std::vector<int32_t> ids;
    for (const Json& entry : *tokens) {
      const auto id = as_integer(entry);
      if (!id || *id < 0 || *id >= model_->tokenizer->size()) {
        return invalid_value("tokens", "tokens must hold ids of the vocabulary");
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    const std::string text =
        repaired_utf8(model_->tokenizer->decode(ids, SpecialText::show), Utf8Repair::maximal_subpart);
    answer_json(exchange, {{"content", text}, {"prompt", text}});
    return std::nullopt;
  });
}

void Endpoints::apply_template(const Shared& exchange) {
  on_worker(exchange, [this, exchange]() -> std::optional<ApiError> {
    const auto body = parse_body(exchange->request().body);
    if (!body.ok()) return body.error();
    auto generation = read_chat(*body, options_.limits);
    if (!generation.ok()) return generation.error();
    auto prompt = render_prompt(*generation, *model_, options_.policy);
    if (!prompt.ok()) return prompt.error();
    answer_json(exchange, {{"prompt", prompt->text}});
    return std::nullopt;
  });
}

// ---- At once ---------------------------------------------------------------------------------------------

void Endpoints::page(const Shared& exchange) {
  const bool text = options_.page.empty() || exchange->request().header("Accept") == "text/plain";
  if (text) {
    return exchange->answer({200,
                             "text/plain; charset=utf-8",
                             fmt::format("braid {} serves {}\n", options_.version, model_->name()),
                             {}});
  }
  // The page talks to this server and to nobody else.
  exchange->answer(
      {200,
       "text/html; charset=utf-8",
       options_.page,
       {{"Cache-Control", "no-cache"},
        {"Content-Security-Policy",
         "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
         "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"}}});
}

void Endpoints::health(const Shared& exchange) {
  const BackendStats stats = model_->backend->stats();
  const bool stalled = stats.stalled_ms > static_cast<double>(options_.watchdog_ms);
  Json out{{"status", "ok"}};
  int status = 200;
  if (!stats.alive || stalled) {
    status = 503;
    out = {{"status", "error"},
           {"error",
            {{"message", stats.alive ? "the engine makes no progress" : "the engine has stopped"},
             {"type", "unavailable_error"},
             {"param", nullptr},
             {"code", "engine_stalled"}}}};
  } else if (draining_) {
    status = 503;
    out = {{"status", "draining"}};
  }
  if (exchange->request().query.find("slots=1") != std::string::npos) {
    out["slots_idle"] = std::max(0, stats.slots - stats.running);
    out["slots_busy"] = stats.running;
    out["queue"] = stats.waiting;
  }
  exchange->answer({status, "application/json", dump(out), {}});
}

void Endpoints::version(const Shared& exchange) { answer_json(exchange, {{"version", options_.version}}); }

Json Endpoints::model_json(const std::string& name) const {
  const int32_t context = model_->backend->context_tokens();
  Json capabilities = Json::array({"completion"});
  if (model_->chat) capabilities.push_back("chat");
  if (model_->abilities.tools) capabilities.push_back("tools");
  if (model_->abilities.reasoning) capabilities.push_back("reasoning");
  return {{"id", name},
          {"object", "model"},
          {"created", started_s_},
          {"owned_by", "braid"},
          {"root", model_->file_name},
          {"parent", nullptr},
          {"max_model_len", context},
          {"context_length", context},
          {"meta",
           {{"n_ctx_train", model_->trained_context_tokens},
            {"n_vocab", model_->tokenizer->size()},
            {"n_params", model_->parameters},
            {"size", model_->file_bytes},
            {"arch", model_->architecture},
            {"ftype", model_->quantization}}},
          {"capabilities", std::move(capabilities)}};
}

void Endpoints::models(const Shared& exchange) {
  const HttpRequest& request = exchange->request();
  const size_t at = request.path.find("/models/");
  const std::string wanted = at == std::string::npos ? "" : percent_decoded(request.path.substr(at + 8));
  const auto& names = model_->names;
  if (!wanted.empty() && std::find(names.begin(), names.end(), wanted) == names.end()) {
    return exchange->answer(error_answer(request, {.status = 404,
                                                   .type = "not_found_error",
                                                   .code = "model_not_found",
                                                   .param = "model",
                                                   .message = "model: " + wanted.substr(0, 256)}));
  }
  const bool anthropic = !request.header("anthropic-version").empty();
  const auto one = [&](const std::string& name) -> Json {
    if (!anthropic) return model_json(name);
    return {{"type", "model"},
            {"id", name},
            {"display_name", name},
            {"created_at", iso_time(started_s_)},
            {"max_input_tokens", model_->backend->context_tokens()},
            {"max_tokens", model_->backend->context_tokens()}};
  };
  if (!wanted.empty()) return answer_json(exchange, one(wanted));
  Json data = Json::array();
  for (const std::string& name : names) data.push_back(one(name));
  if (anthropic) {
    return answer_json(exchange, {{"data", std::move(data)},
                                  {"has_more", false},
                                  {"first_id", names.front()},
                                  {"last_id", names.back()}});
  }
  answer_json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void Endpoints::props(const Shared& exchange) {
  const Tokenizer& tokenizer = *model_->tokenizer;
  const TemplateAbilities& can = model_->abilities;
  const BackendStats stats = model_->backend->stats();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.piece(*id, SpecialText::show)) : std::string();
  };
  Json efforts = Json::object();
  for (const auto& [name, tokens] : options_.policy.effort_tokens) efforts[name] = tokens;
  Json endpoints = Json::array();
  for (const Route& route : routes_) endpoints.push_back(route.method + " " + route.path);
  const Json out{
      {"server",
       {{"name", "braid"}, {"version", options_.version}, {"props_schema", 1}, {"started_at", started_s_}}},
      {"total_slots", stats.slots},
      {"model_alias", model_->name()},
      {"model_path", model_->file_name},
      {"build_info", "braid " + options_.version},
      {"model",
       {{"arch", model_->architecture},
        {"n_params", model_->parameters},
        {"n_vocab", tokenizer.size()},
        {"n_ctx_train", model_->trained_context_tokens},
        {"quantization", model_->quantization}}},
      {"default_generation_settings",
       {{"n_ctx", model_->backend->context_tokens()},
        {"params",
         {{"temperature", model_->defaults.temperature},
          {"top_k", model_->defaults.top_k},
          {"top_p", model_->defaults.top_p},
          {"min_p", model_->defaults.min_p},
          {"max_tokens", options_.policy.default_max_tokens}}}}},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"bos_token", text_of(tokenizer.bos())},
      {"eos_token", text_of(tokenizer.eos())},
      {"chat_template", model_->chat ? Json(model_->chat->text()) : Json("")},
      {"chat_template_caps",
       {{"supports_tools", can.tools},
        {"supports_tool_calls", can.calls},
        {"supports_parallel_tool_calls", can.parallel_calls},
        {"supports_system_role", can.system_role},
        {"supports_late_system", can.late_system},
        {"supports_reasoning", can.reasoning},
        {"supports_preserve_thinking", can.preserve_thinking},
        {"requires_object_arguments", !can.arguments_as_text},
        {"thinking_default", can.thinks_by_default},
        {"tool_dialect", can.dialect}}},
      {"reasoning",
       {{"supported", can.reasoning},
        {"default", options_.policy.thinking == Thinking::automatic ? "auto"
                    : options_.policy.thinking == Thinking::on      ? "on"
                                                                    : "off"},
        {"efforts", std::move(efforts)},
        {"reply_reserve", options_.policy.reply_reserve_tokens}}},
      {"kv_cache", {{"blocks", stats.kv_blocks}}},
      {"limits", {{"max_queue", options_.max_queue}, {"max_n", options_.limits.max_n}}},
      {"endpoints", std::move(endpoints)},
      {"is_sleeping", false}};
  answer_json(exchange, out);
}

void Endpoints::slots(const Shared& exchange) {
  Json out = Json::array();
  std::vector<std::shared_ptr<RunningAnswer>> running;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : answers_) {
      if (auto answer = weak.lock()) running.push_back(std::move(answer));
    }
  }
  for (const auto& answer : running) {
    const RunningInfo info = answer->info();
    out.push_back({{"id", out.size()},
                   {"state", info.generated_tokens > 0 ? "decode"
                             : info.begun              ? "prefill"
                                                       : "queued"},
                   {"request_id", info.request_id},
                   {"endpoint", info.endpoint},
                   {"n_ctx", model_->backend->context_tokens()},
                   {"n_prompt", info.prompt_tokens},
                   {"n_generated", info.generated_tokens},
                   {"age_ms", static_cast<int64_t>(info.age_ms)},
                   {"is_processing", true}});
  }
  answer_json(exchange, out);
}

void Endpoints::metrics(const Shared& exchange) {
  exchange->answer({200,
                    "text/plain; version=0.0.4; charset=utf-8",
                    metrics_.render(model_->backend->stats(), model_->name(), options_.version,
                                    connections_ ? connections_() : 0),
                    {}});
}

void Endpoints::embeddings(const Shared& exchange) {
  exchange->answer(error_answer(exchange->request(), {.status = 501,
                                                      .type = "not_supported_error",
                                                      .code = "not_supported",
                                                      .message = "this model makes no embeddings"}));
}

void Endpoints::not_stored(const Shared& exchange) {
  exchange->answer(error_answer(exchange->request(), {.status = 404,
                                                      .type = "not_found_error",
                                                      .code = "not_found",
                                                      .message = "responses are not stored"}));
}

}  // namespace braid::server
