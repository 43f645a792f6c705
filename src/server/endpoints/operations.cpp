// operations.cpp -- endpoints for the operator: health, metrics, properties, and the web page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "server/api/structured/grammar_cache.h"
#include "server/endpoints/handlers.h"
#include "server/endpoints/routes.h"

namespace braid::server::endpoint {

void page(ServerContext& context, const SharedExchange& exchange) {
  const bool text =
      context.options.page.empty() || exchange->request().header("Accept") == "text/plain";
  if (text) {
    return exchange->answer({200,
                             "text/plain; charset=utf-8",
                             fmt::format("braid {} serves {}\n", context.options.version,
                                         context.host->resident_entry().names.front()),
                             {}});
  }
  exchange->answer({200,
                    "text/html; charset=utf-8",
                    context.options.page,
                    {{"Cache-Control", "no-cache"},
                     {"Content-Security-Policy", context.options.page_policy},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}}});
}

namespace {

// A fault that needs a restart; null if there is none.
Json engine_fault(const ServerContext& context, const BackendStats& stats) {
  const bool stalled = stats.stalled_ms > static_cast<double>(context.options.watchdog_ms);
  if (stats.alive && !stalled) return nullptr;
  return {{"status", "error"},
          {"error",
           {{"message", stats.alive ? "the engine makes no progress" : "the engine has stopped"},
            {"type", "unavailable_error"},
            {"param", nullptr},
            {"code", "engine_stalled"}}}};
}

// Experts read from host memory for steps, without those of large prompt steps.
uint64_t read_for_steps(const ExpertCounts& counts) { return counts.admitted + counts.passed_by; }

// Chosen experts that were found on the GPU. Counts are read while steps run, so the parts may
// exceed the sum for a moment.
uint64_t found_on_gpu(const ExpertCounts& counts) {
  const uint64_t missing = read_for_steps(counts) + counts.computed;
  return counts.chosen > missing ? counts.chosen - missing : 0;
}

// Of all experts those on the GPU; of the chosen ones those found there, and those that the CPU has
// computed. Null: all experts lie on the GPU, or there are none.
Json expert_residency(const BackendStats& stats) {
  double experts = 0, slots = 0;
  ExpertCounts sum;
  for (const ExpertLayer& layer : stats.expert_layers) {
    experts += layer.experts;
    slots += layer.slots;
    sum.chosen += layer.counts.chosen;
    sum.admitted += layer.counts.admitted;
    sum.passed_by += layer.counts.passed_by;
    sum.computed += layer.counts.computed;
  }
  if (experts == 0) return {};
  const auto chosen = static_cast<double>(std::max<uint64_t>(sum.chosen, 1));
  return {{"on_gpu", slots / experts},
          {"hits", static_cast<double>(found_on_gpu(sum)) / chosen},
          {"computed_by_cpu", static_cast<double>(sum.computed) / chosen}};
}

// A row of /experts. `number` counts the layers with experts in host memory, as /metrics does.
Json expert_row(size_t number, const ExpertLayer& layer) {
  const ExpertCounts& counts = layer.counts;
  const auto rate = [](double bytes_s) { return bytes_s > 0 ? Json(bytes_s) : Json(); };
  return {{"layer", number},
          {"experts", layer.experts},
          {"on_gpu", layer.slots},
          {"expert_bytes", layer.expert_bytes},
          {"steps", counts.steps},
          {"chosen", counts.chosen},
          {"hits", found_on_gpu(counts)},
          {"read", read_for_steps(counts)},
          {"kept", counts.admitted},
          {"computed", counts.computed},
          {"streamed", counts.streamed},
          {"read_bytes", counts.read_bytes},
          {"wait_ms", static_cast<double>(counts.waited_ns) * 1e-6},
          {"read_bytes_s", rate(layer.read_bytes_s)},
          {"computed_bytes_s", rate(layer.computed_bytes_s)}};
}

}  // namespace

// Liveness. Draining is not a fault: a restart would cut off running answers.
void live(ServerContext& context, const SharedExchange& exchange) {
  const Json fault = engine_fault(context, context.stats());
  exchange->answer({fault.is_null() ? 200 : 503,
                    "application/json",
                    dump(fault.is_null() ? Json{{"status", "ok"}} : fault),
                    {}});
}

// Readiness.
void health(ServerContext& context, const SharedExchange& exchange) {
  const BackendStats stats = context.stats();
  Json out{{"status", "ok"}};
  int status = 200;
  if (Json fault = engine_fault(context, stats); !fault.is_null()) {
    status = 503;
    out = std::move(fault);
  } else if (context.ending) {
    status = 503;
    out = {{"status", "draining"}};
  } else if (context.host->swapping()) {
    out = {{"status", "loading"}};  // not an error: requests wait until it is loaded
  }
  if (Json experts = expert_residency(stats); !experts.is_null())
    out["experts"] = std::move(experts);
  if (exchange->request().query.find("slots=1") != std::string::npos) {
    out["slots_idle"] = std::max(0, stats.slots - stats.running);
    out["slots_busy"] = stats.running;
    out["queue"] = stats.waiting;
  }
  exchange->answer({status, "application/json", dump(out), {}});
}

void version(ServerContext& context, const SharedExchange& exchange) {
  context.answer_json(exchange, {{"version", context.options.version}});
}

void props(ServerContext& context, const SharedExchange& exchange) {
  const auto model = context.host->look();
  if (model == nullptr) {
    return context.answer_error(exchange, {.status = 503,
                                           .type = "unavailable_error",
                                           .code = "model_loading",
                                           .message = "a model is being loaded",
                                           .retry_after_s = 5});
  }
  const CatalogEntry& entry = context.host->resident_entry();
  const Tokenizer& tokenizer = *model->tokenizer;
  const TemplateAbilities& can = model->abilities;
  const BackendStats stats = model->backend->stats();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.piece(*id, SpecialText::show)) : std::string();
  };
  Json efforts = Json::object();
  for (const auto& [name, tokens] : context.options.policy.effort_tokens) efforts[name] = tokens;
  Json endpoints = Json::array();
  for (const Route& route : all_routes()) {
    if (route.method != std::string_view("*"))
      endpoints.push_back(fmt::format("{} {}", route.method, route.path));
  }
  // Three decimals hide the rounding noise of floats.
  const auto plain = [](float value) { return std::round(value * 1e3) / 1e3; };
  const Json out{
      {"server",
       {{"name", "braid"},
        {"version", context.options.version},
        {"props_schema", 1},
        {"started_at", context.started_s}}},
      {"total_slots", stats.slots},
      {"model_alias", entry.names.front()},
      {"model_path", context.host->catalog().files()[entry.file].shown},
      {"build_info", "braid " + context.options.version},
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
          {"max_tokens", context.options.policy.default_max_tokens}}}}},
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
        {"tool_dialect", call_form_name(can.dialect.calls)}}},
      {"reasoning",
       {{"supported", can.reasoning},
        {"default", context.options.policy.thinking == Thinking::automatic ? "auto"
                    : context.options.policy.thinking == Thinking::on      ? "on"
                                                                           : "off"},
        {"efforts", std::move(efforts)},
        {"reply_reserve", context.options.policy.reply_reserve_tokens}}},
      {"kv_cache", {{"blocks", stats.kv_blocks}}},
      {"limits",
       {{"max_queue", context.options.max_queue}, {"max_n", context.options.limits.max_n}}},
      {"endpoints", std::move(endpoints)},
      {"is_sleeping", false}};
  context.answer_json(exchange, out);
}

void slots(ServerContext& context, const SharedExchange& exchange) {
  if (exchange->request().query.find("fail_on_no_slot=1") != std::string::npos) {
    const BackendStats stats = context.stats();
    if (stats.running >= stats.slots) {
      return context.answer_error(exchange,
                                  {.status = 503,
                                   .type = "unavailable_error",
                                   .code = "no_slot",
                                   .message = "all slots are taken",
                                   .retry_after_s = context.metrics.retry_after_s(stats)});
    }
  }
  Json out = Json::array();
  const auto model = context.host->look();
  const int64_t context_tokens = model ? model->backend->context_tokens() : 0;
  const ClientIdentity client = context.access.identify(exchange->request());
  for (const auto& [answer, key_name] : context.answers.list(client)) {
    const RunningInfo info = answer->info();
    out.push_back({{"id", out.size()},
                   {"state", info.generated_tokens > 0 ? "decode"
                             : info.begun              ? "prefill"
                                                       : "queued"},
                   {"request_id", info.request_id},
                   {"endpoint", info.endpoint},
                   {"n_ctx", context_tokens},
                   {"n_prompt", info.prompt_tokens},
                   {"n_generated", info.generated_tokens},
                   {"speculative", info.drafted_tokens > 0},
                   {"draft_n", info.drafted_tokens},
                   {"draft_n_accepted", info.accepted_tokens},
                   {"age_ms", static_cast<int64_t>(info.age_ms)},
                   {"is_processing", true}});
    if (!key_name.empty()) out.back()["key"] = key_name;
  }
  context.answer_json(exchange, out);
}

// Experts in host memory, layer by layer; no rows if there are none or no model is loaded.
void experts(ServerContext& context, const SharedExchange& exchange) {
  Json rows = Json::array();
  for (const ExpertLayer& layer : context.stats().expert_layers)
    rows.push_back(expert_row(rows.size(), layer));
  context.answer_json(exchange, {{"layers", std::move(rows)}});
}

void metrics(ServerContext& context, const SharedExchange& exchange) {
  const std::string& name = context.host->resident_entry().names.front();
  std::string text =
      context.metrics.render(context.stats(), name, context.options.version, context.http_load());
  if (const auto model = context.host->look(); model && model->grammars)
    text += render_grammars(model->grammars->stats(), name);
  exchange->answer({200, "text/plain; version=0.0.4; charset=utf-8", std::move(text), {}});
}

}  // namespace braid::server::endpoint
