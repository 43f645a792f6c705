// refused_fields.cpp -- see refused_fields.h.
#include "server/requests/refused_fields.h"

#include <unordered_map>

namespace braid::server {
namespace {

// Which values ask for something.
bool if_set(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}
bool if_above_zero(const Json& value) { return value.is_number() ? value.get<double>() > 0 : if_set(value); }
bool if_not_one(const Json& value) { return !value.is_number() || value.get<double>() != 1; }
bool if_false(const Json& value) { return value.is_boolean() ? !value.get<bool>() : true; }
bool if_raw(const Json& value) { return value == "none"; }

// The endpoints that refuse a field, as bits.
constexpr unsigned kChat = 1u << static_cast<unsigned>(Endpoint::chat);
constexpr unsigned kCompletions = 1u << static_cast<unsigned>(Endpoint::completions);
constexpr unsigned kResponses = 1u << static_cast<unsigned>(Endpoint::responses);
constexpr unsigned kMessages = 1u << static_cast<unsigned>(Endpoint::messages);
constexpr unsigned kConversations = kChat | kResponses | kMessages;
constexpr unsigned kAll = kConversations | kCompletions;

struct Refused {
  unsigned endpoints;
  bool (*asks)(const Json&);
  const char* reason;
};

constexpr const char* kForms =
    "this form is not offered; a JSON schema (response_format, json_schema) or a list of choices "
    "(guided_choice) is";
constexpr const char* kSampler = "this sampler is not offered";
constexpr const char* kIds = "answers have no token ids; /tokenize gives those of a text";

const std::unordered_map<std::string_view, Refused>& table() {
  static const std::unordered_map<std::string_view, Refused> kTable = {
      // Forms of the answer (llama.cpp, vLLM, SGLang).
      {"grammar", {kAll, if_set, kForms}},
      {"grammar_lazy", {kAll, if_set, kForms}},
      {"grammar_triggers", {kAll, if_set, kForms}},
      {"guided_grammar", {kAll, if_set, kForms}},
      {"guided_regex", {kAll, if_set, kForms}},
      {"guided_whitespace_pattern", {kAll, if_set, kForms}},
      {"ebnf", {kAll, if_set, kForms}},
      {"regex", {kAll, if_set, kForms}},
      {"structural_tag", {kAll, if_set, kForms}},
      {"response_format",
       {kResponses | kMessages, if_set, "this endpoint takes text.format or output_config.format"}},
      // Which tokens may come, and when they end.
      {"allowed_token_ids", {kAll, if_set, "not offered; logit_bias can favour tokens"}},
      {"bad_words", {kAll, if_set, "not offered; logit_bias takes texts with the value false"}},
      {"logits_processors", {kAll, if_set, "a server runs no code of its clients"}},
      {"custom_logit_processor", {kAll, if_set, "a server runs no code of its clients"}},
      {"repetition_detection", {kAll, if_set, "not offered"}},
      {"t_max_predict_ms", {kAll, if_above_zero, "answers are limited by max_tokens only"}},
      {"n_indent", {kAll, if_above_zero, "not offered"}},
      {"reasoning_budget_message", {kAll, if_set, "not offered"}},
      // Search and samplers.
      {"use_beam_search", {kAll, if_set, "not offered"}},
      {"length_penalty", {kAll, if_not_one, "not offered"}},
      {"typical_p", {kAll, if_not_one, kSampler}},
      {"typ_p", {kAll, if_not_one, kSampler}},
      {"tfs_z", {kAll, if_not_one, kSampler}},
      {"top_a", {kAll, if_above_zero, kSampler}},
      {"top_n_sigma", {kAll, if_above_zero, kSampler}},
      {"dry_multiplier", {kAll, if_above_zero, kSampler}},
      {"xtc_probability", {kAll, if_above_zero, kSampler}},
      {"dynatemp_range", {kAll, if_above_zero, kSampler}},
      {"mirostat", {kAll, if_set, kSampler}},
      {"mirostat_mode", {kAll, if_set, kSampler}},
      // What the answer would have to show.
      {"prompt_logprobs",
       {kAll, [](const Json&) { return true; },
        "not offered; completions with echo and "
        "logprobs score a prompt"}},
      {"n_probs", {kAll, if_above_zero, "not offered; logprobs gives log probabilities"}},
      {"return_token_ids", {kAll, if_set, kIds}},
      {"return_tokens_as_token_ids", {kAll, if_set, kIds}},
      {"return_tokens", {kAll, if_set, kIds}},
      {"logprobs", {kResponses | kMessages, if_set, "this endpoint has no such field"}},
      {"n", {kResponses | kMessages, if_not_one, "this endpoint gives one answer"}},
      {"best_of", {kResponses | kMessages, if_not_one, "this endpoint gives one answer"}},
      {"echo", {kConversations, if_set, "only completions show their prompt"}},
      {"skip_special_tokens", {kConversations, if_false, "control tokens are shown by completions only"}},
      {"parse_tool_calls", {kConversations, if_false, "calls are always parsed; tool_choice none has none"}},
      {"separate_reasoning", {kConversations, if_false, "thoughts are always split from the answer"}},
      {"reasoning_format", {kConversations, if_raw, "thoughts are always split from the answer"}},
      // What the prompt would have to be.
      {"truncate_prompt_tokens", {kAll, if_set, "prompts are never cut; one that is too long is refused"}},
      {"documents", {kConversations, if_set, "not offered; put documents into messages"}},
      {"tools", {kCompletions, if_set, "tools are for conversations"}},
      {"functions", {kCompletions, if_set, "tools are for conversations"}},
      {"suffix", {kConversations, if_set, "only completions fill in the middle"}},
      {"lora", {kAll, if_set, "this server has no adapters"}},
      {"lora_path", {kAll, if_set, "this server has no adapters"}},
  };
  return kTable;
}

}  // namespace

std::optional<ApiError> refused_field(const Json& body, Endpoint endpoint) {
  for (const auto& [name, value] : body.items()) {
    const auto found = table().find(name);
    if (found == table().end() || value.is_null()) continue;
    const Refused& refused = found->second;
    if ((refused.endpoints >> static_cast<unsigned>(endpoint) & 1) == 0 || !refused.asks(value)) continue;
    return unsupported(name, name + ": " + refused.reason);
  }
  return std::nullopt;
}

}  // namespace braid::server
