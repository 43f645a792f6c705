// request_fields.cpp -- see request_fields.h.
#include "server/api/request_fields.h"

#include <array>
#include <string>
#include <unordered_map>

#include "base/check.h"

namespace braid::server {
namespace {

// Predicates for values that are not neutral.
bool if_set(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}
bool if_above_zero(const Json& value) {
  return value.is_number() ? value.get<double>() > 0 : if_set(value);
}
bool if_not_one(const Json& value) { return !value.is_number() || value.get<double>() != 1; }
bool if_false(const Json& value) { return value.is_boolean() ? !value.get<bool>() : true; }
bool if_raw(const Json& value) { return value == "none"; }
bool always(const Json&) { return true; }

constexpr unsigned bit(Endpoint endpoint) { return 1u << static_cast<unsigned>(endpoint); }
constexpr unsigned kChat = bit(Endpoint::chat);
constexpr unsigned kCompletions = bit(Endpoint::completions);
constexpr unsigned kResponses = bit(Endpoint::responses);
constexpr unsigned kMessages = bit(Endpoint::messages);
constexpr unsigned kConversations = kChat | kResponses | kMessages;
constexpr unsigned kAll = kConversations | kCompletions;
constexpr std::array kEndpoints = {Endpoint::chat, Endpoint::completions, Endpoint::responses,
                                   Endpoint::messages};

struct Rule {
  std::string_view name;
  unsigned endpoints;
  FieldState state;
  bool (*asks)(const Json&) = nullptr;  // refused: the values that are refused
  const char* reason = nullptr;         // refused: sent to the client
};

constexpr Rule reads(std::string_view name, unsigned endpoints) {
  return {name, endpoints, FieldState::read};
}
constexpr Rule ignores(std::string_view name, unsigned endpoints) {
  return {name, endpoints, FieldState::ignored};
}
constexpr Rule refuses(std::string_view name, unsigned endpoints, bool (*asks)(const Json&),
                       const char* reason) {
  return {name, endpoints, FieldState::refused, asks, reason};
}

constexpr const char* kForms =
    "this form is not offered; a JSON schema (response_format, json_schema) or a list of choices "
    "(guided_choice) is";
constexpr const char* kSampler = "this sampler is not offered";
constexpr const char* kIds = "answers have no token ids; /tokenize gives those of a text";

constexpr Rule kRead[] = {
    reads("model", kAll),
    reads("stream", kAll),
    reads("stream_options", kAll),
    reads("messages", kChat | kMessages),
    reads("system", kMessages),
    reads("input", kResponses),
    reads("instructions", kResponses),
    reads("prompt", kCompletions | kResponses),  // Responses: a stored prompt, refused
    reads("suffix", kCompletions),
    reads("echo", kCompletions),
    reads("add_special_tokens", kCompletions),
    reads("skip_special_tokens", kCompletions),
    reads("add_generation_prompt", kChat),
    reads("continue_final_message", kChat),
    reads("chat_template", kChat),
    reads("chat_template_kwargs", kAll),
    reads("modalities", kChat),
    reads("previous_response_id", kResponses),
    reads("conversation", kResponses),
    reads("background", kResponses),
    reads("include", kResponses),
    reads("context_management", kMessages),
    reads("tools", kConversations),
    reads("tool_choice", kConversations),
    reads("functions", kChat),
    reads("function_call", kChat),
    reads("parallel_tool_calls", kAll),
    reads("temperature", kAll),
    reads("top_p", kAll),
    reads("top_k", kAll),
    reads("min_p", kAll),
    reads("presence_penalty", kAll),
    reads("frequency_penalty", kAll),
    reads("repeat_penalty", kAll),
    reads("repetition_penalty", kAll),
    reads("repeat_last_n", kAll),
    reads("seed", kAll),
    reads("samplers", kAll),
    reads("logit_bias", kAll),
    reads("n", kChat | kCompletions),
    reads("best_of", kChat | kCompletions),
    reads("logprobs", kChat | kCompletions),
    reads("top_logprobs", kChat | kResponses),
    reads("stop", kChat | kCompletions | kResponses),
    reads("stop_sequences", kMessages),
    reads("stop_token_ids", kAll),
    reads("ignore_eos", kAll),
    reads("include_stop_str_in_output", kAll),
    reads("min_tokens", kAll),
    reads("max_tokens", kAll),
    reads("max_output_tokens", kAll),
    reads("max_completion_tokens", kAll),
    reads("n_predict", kAll),
    reads("response_format", kChat | kCompletions),
    reads("text", kResponses),
    reads("metadata", kResponses),  // and repeated in the answer
    reads("output_format", kMessages),
    reads("output_config", kAll),
    reads("json_schema", kAll),
    reads("guided_json", kAll),
    reads("guided_choice", kAll),
    reads("structured_outputs", kAll),
    reads("reasoning", kAll),
    reads("reasoning_effort", kAll),
    reads("reasoning_budget", kAll),
    reads("reasoning_budget_tokens", kAll),
    reads("thinking_token_budget", kAll),
    reads("thinking_budget", kAll),
    reads("thinking_budget_tokens", kAll),
    reads("thinking", kAll),
    reads("enable_thinking", kAll),
    reads("include_reasoning", kAll),
    reads("loop_guard", kAll),
    reads("thinking_loop_break", kAll),
    reads("repetition_detection", kAll),
    reads("cache_prompt", kAll),
    reads("cache_salt", kAll),
    reads("priority", kAll),
};

constexpr Rule kIgnored[] = {
    ignores("user", kAll),
    ignores("safety_identifier", kAll),
    ignores("metadata", kChat | kCompletions | kMessages),
    ignores("client_metadata", kAll),
    ignores("request_id", kAll),
    ignores("store", kAll),
    ignores("service_tier", kAll),
    ignores("speed", kAll),
    ignores("inference_geo", kAll),
    ignores("verbosity", kAll),
    ignores("prediction", kAll),
    ignores("truncation", kAll),
    ignores("prompt_cache_key", kAll),
    ignores("prompt_cache_retention", kAll),
    ignores("cache_control", kAll),
    ignores("id_slot", kAll),
    ignores("guided_decoding_backend", kAll),
    ignores("kv_transfer_params", kAll),
    ignores("vllm_xargs", kAll),
    ignores("mm_processor_kwargs", kAll),
    ignores("web_search_options", kAll),
    ignores("container", kAll),
    ignores("mcp_servers", kAll),
    ignores("max_tool_calls", kAll),
    ignores("timings_per_token", kAll),
    ignores("return_progress", kAll),
    ignores("response_fields", kAll),
    ignores("continuous_usage_stats", kAll),
    // Settings of samplers that are refused when on.
    ignores("dry_base", kAll),
    ignores("dry_allowed_length", kAll),
    ignores("dry_penalty_last_n", kAll),
    ignores("dry_sequence_breakers", kAll),
    ignores("xtc_threshold", kAll),
    ignores("adaptive_decay", kAll),
    ignores("dynatemp_exponent", kAll),
    ignores("mirostat_tau", kAll),
    ignores("mirostat_eta", kAll),
};

constexpr Rule kRefused[] = {
    refuses("grammar", kAll, if_set, kForms),
    refuses("grammar_lazy", kAll, if_set, kForms),
    refuses("grammar_triggers", kAll, if_set, kForms),
    refuses("guided_grammar", kAll, if_set, kForms),
    refuses("guided_regex", kAll, if_set, kForms),
    refuses("guided_whitespace_pattern", kAll, if_set, kForms),
    refuses("ebnf", kAll, if_set, kForms),
    refuses("regex", kAll, if_set, kForms),
    refuses("structural_tag", kAll, if_set, kForms),
    refuses("response_format", kResponses | kMessages, if_set,
            "this endpoint takes text.format or output_config.format"),
    refuses("allowed_token_ids", kAll, if_set, "not offered; logit_bias can favour tokens"),
    refuses("bad_words", kAll, if_set, "not offered; logit_bias takes texts with the value false"),
    refuses("logits_processors", kAll, if_set, "a server runs no code of its clients"),
    refuses("custom_logit_processor", kAll, if_set, "a server runs no code of its clients"),
    refuses("stop_regex", kAll, if_set, "not offered; stop takes texts"),
    refuses("min_new_tokens", kAll, if_above_zero, "this field is called min_tokens here"),
    refuses("t_max_predict_ms", kAll, if_above_zero, "answers are limited by max_tokens only"),
    refuses("n_indent", kAll, if_above_zero, "not offered"),
    refuses("reasoning_budget_message", kAll, if_set, "not offered"),
    refuses("use_beam_search", kAll, if_set, "not offered"),
    refuses("length_penalty", kAll, if_not_one, "not offered"),
    refuses("typical_p", kAll, if_not_one, kSampler),
    refuses("typ_p", kAll, if_not_one, kSampler),
    refuses("tfs_z", kAll, if_not_one, kSampler),
    refuses("top_a", kAll, if_above_zero, kSampler),
    refuses("top_n_sigma", kAll, if_above_zero, kSampler),
    refuses("dry_multiplier", kAll, if_above_zero, kSampler),
    refuses("xtc_probability", kAll, if_above_zero, kSampler),
    refuses("adaptive_target", kAll, if_above_zero, kSampler),
    refuses("dynatemp_range", kAll, if_above_zero, kSampler),
    refuses("mirostat", kAll, if_set, kSampler),
    refuses("mirostat_mode", kAll, if_set, kSampler),
    refuses("prompt_logprobs", kAll, always,
            "not offered; completions with echo and logprobs score a prompt"),
    refuses("n_probs", kAll, if_above_zero, "not offered; logprobs gives log probabilities"),
    refuses("return_token_ids", kAll, if_set, kIds),
    refuses("return_tokens_as_token_ids", kAll, if_set, kIds),
    refuses("return_tokens", kAll, if_set, kIds),
    refuses("logprobs", kResponses | kMessages, if_set, "this endpoint has no such field"),
    refuses("n", kResponses | kMessages, if_not_one, "this endpoint gives one answer"),
    refuses("best_of", kResponses | kMessages, if_not_one, "this endpoint gives one answer"),
    refuses("n_cmpl", kAll, if_not_one, "this field is called n here"),
    refuses("echo", kConversations, if_set, "only completions show their prompt"),
    refuses("skip_special_tokens", kConversations, if_false,
            "control tokens are shown by completions only"),
    refuses("parse_tool_calls", kConversations, if_false,
            "calls are always parsed; tool_choice none has none"),
    refuses("separate_reasoning", kConversations, if_false,
            "thoughts are always split from the answer"),
    refuses("reasoning_format", kConversations, if_raw,
            "thoughts are always split from the answer"),
    refuses("truncate_prompt_tokens", kAll, if_set,
            "prompts are never cut; one that is too long is refused"),
    refuses("prompt_embeds", kAll, if_set, "prompts are texts or token ids"),
    refuses("documents", kConversations, if_set, "not offered; put documents into messages"),
    refuses("tools", kCompletions, if_set, "tools are for conversations"),
    refuses("functions", kCompletions, if_set, "tools are for conversations"),
    refuses("suffix", kConversations, if_set, "only completions fill in the middle"),
    refuses("lora", kAll, if_set, "this server has no adapters"),
    refuses("lora_path", kAll, if_set, "this server has no adapters"),
};

using Rules = std::array<const Rule*, kEndpoints.size()>;  // by endpoint; null: unknown

// Checks that each field has one state per endpoint.
const std::unordered_map<std::string_view, Rules>& rules_by_name() {
  static const auto kRules = [] {
    std::unordered_map<std::string_view, Rules> out;
    const auto add = [&](const Rule& rule) {
      for (const Endpoint endpoint : kEndpoints) {
        if ((rule.endpoints & bit(endpoint)) == 0) continue;
        const Rule*& place = out[rule.name][static_cast<size_t>(endpoint)];
        BRAID_CHECK(place == nullptr);
        place = &rule;
      }
    };
    for (const Rule& rule : kRead) add(rule);
    for (const Rule& rule : kIgnored) add(rule);
    for (const Rule& rule : kRefused) add(rule);
    return out;
  }();
  return kRules;
}

const Rule* rule_of(std::string_view name, Endpoint endpoint) {
  const auto found = rules_by_name().find(name);
  return found == rules_by_name().end() ? nullptr : found->second[static_cast<size_t>(endpoint)];
}

}  // namespace

FieldState field_state(std::string_view name, Endpoint endpoint) {
  const Rule* rule = rule_of(name, endpoint);
  return rule == nullptr ? FieldState::unknown : rule->state;
}

std::vector<KnownField> known_fields() {
  std::vector<KnownField> out;
  const auto add = [&](const Rule& rule) {
    for (const Endpoint endpoint : kEndpoints) {
      if ((rule.endpoints & bit(endpoint)) != 0) {
        const char* reason = rule.reason == nullptr ? "" : rule.reason;
        out.push_back({rule.name, endpoint, rule.state, reason});
      }
    }
  };
  for (const Rule& rule : kRead) add(rule);
  for (const Rule& rule : kIgnored) add(rule);
  for (const Rule& rule : kRefused) add(rule);
  return out;
}

std::optional<ApiError> refused_field(const Json& body, Endpoint endpoint) {
  for (const auto& [name, value] : body.items()) {
    const Rule* rule = rule_of(name, endpoint);
    if (rule == nullptr || rule->state != FieldState::refused) continue;
    if (value.is_null() || !rule->asks(value)) continue;
    return unsupported(name, name + ": " + rule->reason);
  }
  return std::nullopt;
}

}  // namespace braid::server
