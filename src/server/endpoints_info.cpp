// endpoints_info.cpp -- the endpoints that answer at once: what is here, and how it does.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "server/endpoints.h"
#include "server/page.h"

namespace braid::server {
namespace {

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

void Endpoints::page(const Shared& exchange) {
  const bool text = options_.page.empty() || exchange->request().header("Accept") == "text/plain";
  if (text) {
    return exchange->answer(
        {200,
         "text/plain; charset=utf-8",
         fmt::format("braid {} serves {}\n", options_.version, host_->resident_entry().names.front()),
         {}});
  }
  exchange->answer({200,
                    "text/html; charset=utf-8",
                    options_.page,
                    {{"Cache-Control", "no-cache"},
                     {"Content-Security-Policy", page_policy(options_.page)},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}}});
}

void Endpoints::health(const Shared& exchange) {
  const BackendStats stats = this->stats();
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
  } else if (ending_) {
    status = 503;
    out = {{"status", "draining"}};
  } else if (host_->swapping()) {
    out = {{"status", "loading"}};  // not an error: requests wait for it
  }
  if (exchange->request().query.find("slots=1") != std::string::npos) {
    out["slots_idle"] = std::max(0, stats.slots - stats.running);
    out["slots_busy"] = stats.running;
    out["queue"] = stats.waiting;
  }
  exchange->answer({status, "application/json", dump(out), {}});
}

void Endpoints::version(const Shared& exchange) { answer_json(exchange, {{"version", options_.version}}); }

Json Endpoints::model_json(const std::string& name, size_t entry) const {
  const ModelFile& file = host_->catalog().files()[host_->catalog().entries()[entry].file];
  std::string failure;
  const ModelHost::State state = host_->state(entry, &failure);
  Json status{{"value", state == ModelHost::State::loaded    ? "loaded"
                        : state == ModelHost::State::loading ? "loading"
                        : state == ModelHost::State::failed  ? "failed"
                                                             : "unloaded"}};
  if (!failure.empty()) status["error"] = failure;
  Json out{{"id", name},         {"object", "model"}, {"created", started_s_},      {"owned_by", "braid"},
           {"root", file.shown}, {"parent", nullptr}, {"status", std::move(status)}};
  const auto model = state == ModelHost::State::loaded ? host_->look() : nullptr;
  if (model == nullptr) {
    out["meta"] = {{"size", file.bytes}};
    return out;
  }
  const int32_t context = model->backend->context_tokens();
  Json capabilities = Json::array({"completion"});
  if (model->chat) capabilities.push_back("chat");
  if (model->abilities.tools) capabilities.push_back("tools");
  if (model->abilities.reasoning) capabilities.push_back("reasoning");
  out["max_model_len"] = context;
  out["context_length"] = context;
  out["meta"] = {{"n_ctx_train", model->trained_context_tokens},
                 {"n_vocab", model->tokenizer->size()},
                 {"n_params", model->parameters},
                 {"size", model->file_bytes},
                 {"arch", model->architecture},
                 {"ftype", model->quantization}};
  out["capabilities"] = std::move(capabilities);
  return out;
}

void Endpoints::models(const Shared& exchange) {
  const HttpRequest& request = exchange->request();
  const Catalog& catalog = host_->catalog();
  const size_t at = request.path.find("/models/");
  const std::string wanted = at == std::string::npos ? "" : percent_decoded(request.path.substr(at + 8));
  const auto known = catalog.find(wanted);
  if (!wanted.empty() && !known) {
    return exchange->answer(error_answer(request, {.status = 404,
                                                   .type = "not_found_error",
                                                   .code = "model_not_found",
                                                   .param = "model",
                                                   .message = "model: " + wanted.substr(0, 256)}));
  }
  const bool anthropic = !request.header("anthropic-version").empty();
  const auto one = [&](const std::string& name, size_t entry) -> Json {
    if (!anthropic) return model_json(name, entry);
    Json out{{"type", "model"}, {"id", name}, {"display_name", name}, {"created_at", iso_time(started_s_)}};
    const bool loaded = host_->state(entry) == ModelHost::State::loaded;
    if (const auto model = loaded ? host_->look() : nullptr) {
      out["max_input_tokens"] = model->backend->context_tokens();
      out["max_tokens"] = model->backend->context_tokens();
    }
    return out;
  };
  if (!wanted.empty()) return answer_json(exchange, one(wanted, *known));
  Json data = Json::array();
  for (size_t entry = 0; entry < catalog.entries().size(); ++entry) {
    for (const std::string& name : catalog.entries()[entry].names) data.push_back(one(name, entry));
  }
  if (anthropic) {
    const Json first = data.front()["id"], last = data.back()["id"];
    return answer_json(
        exchange, {{"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
  }
  answer_json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void Endpoints::props(const Shared& exchange) {
  const auto model = host_->look();
  if (model == nullptr) {
    return exchange->answer(error_answer(exchange->request(), {.status = 503,
                                                               .type = "unavailable_error",
                                                               .code = "model_loading",
                                                               .message = "a model is being loaded",
                                                               .retry_after_s = 5}));
  }
  const CatalogEntry& entry = host_->resident_entry();
  const Tokenizer& tokenizer = *model->tokenizer;
  const TemplateAbilities& can = model->abilities;
  const BackendStats stats = model->backend->stats();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.piece(*id, SpecialText::show)) : std::string();
  };
  Json efforts = Json::object();
  for (const auto& [name, tokens] : options_.policy.effort_tokens) efforts[name] = tokens;
  Json endpoints = Json::array();
  for (const Route& route : routes_) {
    if (route.method != "*") endpoints.push_back(route.method + " " + route.path);
  }
  // Floats in single precision print with noise; three digits are what people write.
  const auto plain = [](float value) { return std::round(value * 1e3) / 1e3; };
  const Json out{
      {"server",
       {{"name", "braid"}, {"version", options_.version}, {"props_schema", 1}, {"started_at", started_s_}}},
      {"total_slots", stats.slots},
      {"model_alias", entry.names.front()},
      {"model_path", host_->catalog().files()[entry.file].shown},
      {"build_info", "braid " + options_.version},
      {"model",
       {{"arch", model->architecture},
        {"n_params", model->parameters},
        {"n_vocab", tokenizer.size()},
        {"n_ctx_train", model->trained_context_tokens},
        {"quantization", model->quantization}}},
      {"default_generation_settings",
       {{"n_ctx", model->backend->context_tokens()},
        {"params",
         {{"temperature", plain(model->defaults.temperature)},
          {"top_k", model->defaults.top_k},
          {"top_p", plain(model->defaults.top_p)},
          {"min_p", plain(model->defaults.min_p)},
          {"max_tokens", options_.policy.default_max_tokens}}}}},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"bos_token", text_of(tokenizer.bos())},
      {"eos_token", text_of(tokenizer.eos())},
      {"chat_template", model->chat ? Json(model->chat->text()) : Json("")},
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
  if (exchange->request().query.find("fail_on_no_slot=1") != std::string::npos) {
    const BackendStats stats = this->stats();
    if (stats.running >= stats.slots) {
      return exchange->answer(
          error_answer(exchange->request(), {.status = 503,
                                             .type = "unavailable_error",
                                             .code = "no_slot",
                                             .message = "all slots are taken",
                                             .retry_after_s = metrics_.retry_after_s(stats)}));
    }
  }
  Json out = Json::array();
  std::vector<std::shared_ptr<RunningAnswer>> running;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : answers_) {
      if (auto answer = weak.lock()) running.push_back(std::move(answer));
    }
  }
  const auto model = host_->look();
  const int64_t context = model ? model->backend->context_tokens() : 0;
  for (const auto& answer : running) {
    const RunningInfo info = answer->info();
    out.push_back({{"id", out.size()},
                   {"state", info.generated_tokens > 0 ? "decode"
                             : info.begun              ? "prefill"
                                                       : "queued"},
                   {"request_id", info.request_id},
                   {"endpoint", info.endpoint},
                   {"n_ctx", context},
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
                    metrics_.render(stats(), host_->resident_entry().names.front(), options_.version,
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
