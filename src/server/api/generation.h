// generation.h -- a request in one form for all APIs. Plain data, produced by the request readers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/conversation.h"
#include "text/loop_detector.h"

namespace braid::server {

enum class Endpoint { chat, completions, responses, messages };
const char* endpoint_path(Endpoint endpoint);
inline ApiFamily family_of(Endpoint endpoint) {
  return endpoint == Endpoint::messages ? ApiFamily::anthropic : ApiFamily::openai;
}

// Biased tokens per request (a text counts by its tokens), and bytes of one such text.
inline constexpr size_t kMaxLogitBiases = 4096;
inline constexpr size_t kMaxBiasBytes = 512;

// The operator's limits and defaults, which the readers check.
struct ApiLimits {
  int32_t max_n = 8;
  int32_t max_stops = 16;
  size_t max_stop_bytes = 512;
  size_t max_choices = 4096;  // per structured output
  size_t max_choice_bytes = size_t{32} << 10;
  int32_t max_top_logprobs = 20;
  size_t max_tools = 1024;
  size_t max_tool_name_bytes = 128;
  size_t max_messages = 100'000;
  size_t max_schema_bytes = size_t{256} << 10;
  bool reject_media = false;       // false: images become a placeholder
  bool prefill_assistant = false;  // OpenAI chat: a last assistant message is continued
};

// Values set by the request. Others come from the server or the model.
struct SamplingOverrides {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, penalty_last_n;
  std::optional<uint64_t> seed;
  std::vector<std::pair<int32_t, float>> logit_bias;            // by token id
  std::vector<std::pair<std::string, float>> logit_bias_texts;  // applied to each token of the text
};

// Reasoning efforts in ascending order: the words of OpenAI, Anthropic and the templates.
inline constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                             "high", "xhigh",   "max"};

struct ReasoningOptions {
  std::optional<bool> think;
  std::optional<int64_t> budget_tokens;  // -1: no budget, even if `effort` implies one
  std::optional<std::string> effort;     // one of kEfforts
  bool hidden = false;                   // generated and counted, not sent
  bool omitted = false;                  // Anthropic: an empty block, the text inside the signature
};

// think: in thoughts, and in content after a thought that looped. all: in content too.
enum class LoopGuard : uint8_t { off, think, all };

struct LoopOptions {
  std::optional<LoopGuard> guard;
  bool break_thoughts = true;    // false: thoughts are never ended, whatever else is set
  std::optional<LoopRule> rule;  // for thought and answer, instead of the server's rule
};

// The result of LoopOptions and the operator's options.
struct LoopRules {
  std::optional<LoopRule> thought, content;  // empty: no detection
  bool content_after_loop = false;           // in content only after a thought that looped
};

struct ToolChoice {
  enum class Mode { automatic, none, required } mode = Mode::automatic;
  std::set<std::string> names;  // allowed tools (flat names); empty: all
};

// The name of a tool in the API, if it differs from its name in the prompt.
struct ToolIdentity {
  std::string name_space;  // may be empty
  std::string name;
  bool custom = false;  // free-form: arguments are {"input": text}
};

struct OutputFormat {
  enum class Kind { text, json_object, json_schema, choice } kind = Kind::text;
  Json schema;                       // json_schema
  std::vector<std::string> choices;  // choice: the answer is exactly one of them
  bool strict = false;
  std::string param;  // request path, for errors
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct Generation {
  Endpoint endpoint = Endpoint::chat;
  std::string model;  // as the client wrote it
  bool stream = false;
  bool include_usage = false;

  Messages messages;
  Json tools = Json::array();  // {type: function, function: {name, description, parameters}}
  std::map<std::string, ToolIdentity> identities;  // flat name -> wire name, for those that differ
  std::map<std::pair<std::string, std::string>, std::string>
      flat_names;                      // {namespace, wire name} -> flat name
  std::set<std::string> strict_tools;  // flat names whose arguments must match the schema
  Json template_variables = Json::object();
  bool add_generation_prompt = true;
  bool continue_final = false;
  bool keep_thinking = false;  // the client asked to keep all reasoning

  std::vector<PromptInput> prompts;
  bool echo = false;
  bool add_special = true;
  bool show_special = false;  // the answer shows control tokens as text
  std::optional<std::string> suffix;

  ToolChoice tool_choice;
  bool parallel_calls = true;
  std::optional<int64_t> max_tokens;  // -1: no limit; 0: only the prompt is run
  int32_t min_tokens = 0;
  SamplingOverrides sampling;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;
  int32_t n = 1;
  int32_t top_logprobs = -1;  // -1: off
  ReasoningOptions reasoning;
  LoopOptions loops;
  OutputFormat format;

  bool cache_prompt = true;
  std::string cache_salt;
  int32_t priority = 0;

  bool include_encrypted = false;     // Responses: also send reasoning as an opaque text
  Json echo_fields = Json::object();  // Responses: request members that the answer repeats
};

}  // namespace braid::server
