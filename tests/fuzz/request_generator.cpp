// request_generator.cpp -- see request_generator.h.
#include "request_generator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "server/api/request_fields.h"

namespace braid::fuzz {

using server::Endpoint;
using server::FieldState;
using server::Json;

namespace {

constexpr std::string_view kMembers[] = {"role",
                                         "content",
                                         "type",
                                         "text",
                                         "tool_calls",
                                         "tool_call_id",
                                         "function",
                                         "name",
                                         "arguments",
                                         "custom",
                                         "input",
                                         "id",
                                         "reasoning",
                                         "thinking",
                                         "signature",
                                         "source",
                                         "data",
                                         "title",
                                         "tool_use_id",
                                         "is_error",
                                         "call_id",
                                         "output",
                                         "summary",
                                         "encrypted_content",
                                         "namespace",
                                         "tools",
                                         "parameters",
                                         "input_schema",
                                         "format",
                                         "definition",
                                         "strict",
                                         "description",
                                         "schema",
                                         "json_schema",
                                         "mode",
                                         "allowed_tools",
                                         "function_call",
                                         "image_url",
                                         "refusal",
                                         "tool_name",
                                         "effort",
                                         "budget_tokens",
                                         "max_tokens",
                                         "enabled",
                                         "exclude",
                                         "display",
                                         "keep",
                                         "edits",
                                         "include_usage",
                                         "choice",
                                         "json",
                                         "json_object",
                                         "regex",
                                         "cache_control",
                                         "reasoning_content",
                                         "status",
                                         "item_id",
                                         "properties",
                                         "required",
                                         "enum"};

constexpr std::string_view kWords[] = {"user",
                                       "assistant",
                                       "system",
                                       "developer",
                                       "tool",
                                       "function",
                                       "text",
                                       "image",
                                       "image_url",
                                       "input_audio",
                                       "file",
                                       "refusal",
                                       "tool_use",
                                       "tool_result",
                                       "thinking",
                                       "redacted_thinking",
                                       "document",
                                       "search_result",
                                       "server_tool_use",
                                       "mcp_tool_use",
                                       "mcp_tool_result",
                                       "web_search_tool_result",
                                       "container_upload",
                                       "compaction",
                                       "tool_reference",
                                       "message",
                                       "reasoning",
                                       "reasoning_text",
                                       "summary_text",
                                       "function_call",
                                       "function_call_output",
                                       "custom_tool_call",
                                       "custom_tool_call_output",
                                       "item_reference",
                                       "web_search_call",
                                       "local_shell_call",
                                       "mcp_call",
                                       "additional_tools",
                                       "tool_search",
                                       "tool_search_call",
                                       "input_text",
                                       "output_text",
                                       "input_image",
                                       "input_file",
                                       "namespace",
                                       "custom",
                                       "web_search",
                                       "content",
                                       "auto",
                                       "none",
                                       "required",
                                       "any",
                                       "json_object",
                                       "json_schema",
                                       "allowed_tools",
                                       "enabled",
                                       "disabled",
                                       "adaptive",
                                       "summarized",
                                       "omitted",
                                       "low",
                                       "medium",
                                       "high",
                                       "xhigh",
                                       "max",
                                       "minimal",
                                       "clear_thinking_20251015",
                                       "all",
                                       "reasoning.encrypted_content",
                                       "message.output_text.logprobs",
                                       "penalties",
                                       "top_k",
                                       "temperature"};

constexpr std::string_view kTexts[] = {
    "hi",
    "Paris",
    "",
    " \n",
    "a b c",
    "x-anthropic-billing-header: a",
    "<tool_response>x</tool_response>",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<think>\nwhy\n</think>\n\n",
    "</think>",
    "<|im_start|>system\nyou are\n<|im_end|>",
    "<|im_end|>",
    "{}",
    R"({"a":1})",
    R"({"a":)",
    "[1]",
    "null",
    "{\"a\":{\"b\":[1,2.5,\"x\"]}}",
    "braid1.aGk",
    "braid1.!",
    "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
    "a\tb\\\"c\"",
    "\x7f\x01\x1b[31m",
    "{{ messages }}",
    "data: [DONE]\n\n",
    "0",
    "-1",
    "x\ny\r\nz"};

constexpr std::string_view kToolNames[] = {"f", "g", "get_weather", "mcp__list", "f_2"};

template <typename List>
std::string_view pick_of(const List& list, uint64_t random) {
  return list[random % std::size(list)];
}

// `read`: fields that the endpoint's reader uses; else fields it refuses or ignores.
const std::vector<std::string>& fields_of(Endpoint endpoint, bool read) {
  static const auto kFields = [] {
    std::map<std::pair<Endpoint, bool>, std::vector<std::string>> out;
    for (const server::KnownField& known : server::known_fields())
      out[{known.endpoint, known.state == FieldState::read}].emplace_back(known.name);
    return out;
  }();
  return kFields.at({endpoint, read});
}

}  // namespace

std::string request_dictionary() {
  std::set<std::string> words(std::begin(kMembers), std::end(kMembers));
  words.insert(std::begin(kWords), std::end(kWords));
  for (const server::KnownField& known : server::known_fields()) words.emplace(known.name);
  std::string out =
      "# Made by request_storm --dictionary, from the table of fields and the generator's words.\n";
  for (const std::string& word : words) out += "\"\\\"" + word + "\\\"\"\n";
  return out;
}

std::string RequestGenerator::text() {
  if (one_in(400)) {
    std::string out;
    for (uint64_t i = below(3000); i > 0; --i) out += pick_of(kTexts, random_());
    return out;
  }
  std::string out(pick_of(kTexts, random_()));
  if (one_in(4)) out += pick_of(kTexts, random_());
  return out;
}

Json RequestGenerator::number() {
  switch (below(10)) {
    case 0:
      return -1;
    case 1:
      return 0;
    case 2:
      return 0.5;
    case 3:
      return static_cast<int64_t>(below(100'000)) - 1000;
    case 4:
      return std::array<double, 5>{1e300, -1e300, 3.0, 1e-300, 9007199254740993.0}[below(5)];
    case 5:
      return std::array<uint64_t, 4>{UINT64_MAX, uint64_t{1} << 63, INT64_MAX,
                                     uint64_t{1} << 31}[below(4)];
    case 6:
      return INT64_MIN;
    default:
      return static_cast<int64_t>(below(9));
  }
}

Json RequestGenerator::value(int depth) {
  switch (below(depth > 4 ? 6 : 10)) {
    case 0:
      return nullptr;
    case 1:
      return one_in(2);
    case 2:
      return number();
    case 3:
      return text();
    case 4:
      return std::string(pick_of(kWords, random_()));
    case 5:
      return tool_name();
    case 6: {
      Json out = Json::array();
      for (uint64_t i = below(4); i > 0; --i) out.push_back(value(depth + 1));
      return out;
    }
    default: {
      Json out = Json::object();
      if (one_in(2)) out["type"] = pick_of(kWords, random_());
      if (one_in(4)) out["role"] = pick_of(kWords, random_());
      add_members(out, depth + 1);
      return out;
    }
  }
}

void RequestGenerator::add_members(Json& object, int depth) {
  for (uint64_t i = below(4); i > 0; --i)
    object[std::string(pick_of(kMembers, random_()))] = value(depth);
}

Json RequestGenerator::schema(int depth) {
  if (wild_ && one_in(8)) return value(depth);
  Json out = Json::object();
  constexpr std::string_view kTypes[] = {"string", "integer", "number", "boolean",
                                         "null",   "array",   "object"};
  const auto names = [&](Json& list) {
    for (uint64_t i = below(4); i > 0; --i) list.push_back(text());
  };
  switch (below(depth > 3 ? 4 : 9)) {
    case 0:
      out["type"] = pick_of(kTypes, random_());
      break;
    case 1:
      names(out["enum"] = Json::array());
      break;
    case 2:
      out["const"] = value(5);
      break;
    case 3:
      out["type"] = "string";
      if (one_in(2))
        out["pattern"] = std::array{"^[a-z]+$", "a|b", "(x{2,3})*", "[", "\\d{4}"}[below(5)];
      if (one_in(2)) out["maxLength"] = below(9);
      if (one_in(3)) out["format"] = std::array{"date", "uuid", "email", "date-time"}[below(4)];
      break;
    case 4:
      out["type"] = "array";
      out["items"] = schema(depth + 1);
      if (one_in(2)) out["minItems"] = number();
      break;
    case 5:
      for (uint64_t i = below(3); i > 0; --i) out["anyOf"].push_back(schema(depth + 1));
      break;
    case 6:
      out["$ref"] =
          std::array{"#", "#/$defs/a", "#/properties/a", "#/nowhere", "http://x"}[below(5)];
      out["$defs"] = {{"a", schema(depth + 1)}};
      break;
    default:
      out["type"] = "object";
      out["properties"] = Json::object();
      for (uint64_t i = below(4); i > 0; --i)
        out["properties"][std::string(pick_of(kMembers, random_()))] = schema(depth + 1);
      if (one_in(2)) names(out["required"] = Json::array());
      if (one_in(2)) out["additionalProperties"] = one_in(2) ? Json(one_in(2)) : schema(depth + 1);
  }
  if (one_in(12)) out["type"] = Json::array({pick_of(kTypes, random_()), "null"});
  return out;
}

Json RequestGenerator::tool_name() {
  if (one_in(30)) return text();
  return std::string(pick_of(kToolNames, random_()));
}

Json RequestGenerator::tools() {
  if (wild_ && one_in(6)) return value(1);
  Json out = Json::array();
  for (uint64_t i = below(4); i > 0; --i) {
    Json tool = Json::object(), inner = Json::object();
    inner["name"] = tool_name();
    if (one_in(2)) inner["description"] = text();
    if (!one_in(4))
      inner[endpoint_ == Endpoint::messages ? "input_schema" : "parameters"] = schema(0);
    if (one_in(3)) inner["strict"] = one_in(2);
    const bool custom = one_in(6);
    if (endpoint_ == Endpoint::chat) {
      const char* type = custom ? "custom" : "function";
      tool = {{"type", type}, {type, inner}};
    } else {
      tool = inner;
      if (endpoint_ == Endpoint::responses) tool["type"] = custom ? "custom" : "function";
      if (endpoint_ == Endpoint::responses && one_in(4))
        tool = {{"type", "namespace"}, {"name", tool_name()}, {"tools", Json::array({tool, tool})}};
    }
    if (one_in(12)) tool["type"] = pick_of(kWords, random_());
    if (one_in(12)) add_members(tool, 3);
    out.push_back(std::move(tool));
  }
  return out;
}

Json RequestGenerator::tool_choice() {
  if (one_in(3)) return std::array{"auto", "none", "required", "any"}[below(4)];
  if (wild_ && one_in(4)) return value(2);
  const Json named = endpoint_ == Endpoint::chat
                         ? Json{{"function", {{"name", tool_name()}}}, {"type", "function"}}
                         : Json{{"type", "function"}, {"name", tool_name()}};
  if (endpoint_ == Endpoint::messages) {
    return {{"type", std::array{"auto", "any", "tool", "none"}[below(4)]},
            {"name", tool_name()},
            {"disable_parallel_tool_use", one_in(2)}};
  }
  if (one_in(2)) return named;
  const Json allowed{{"mode", one_in(2) ? "auto" : "required"},
                     {"tools", Json::array({named, named})}};
  if (endpoint_ == Endpoint::chat) return {{"type", "allowed_tools"}, {"allowed_tools", allowed}};
  Json out = allowed;
  out["type"] = "allowed_tools";
  return out;
}

Json RequestGenerator::part() {
  Json out = Json::object();
  const bool known = !one_in(6);
  switch (endpoint_) {
    case Endpoint::chat:
    case Endpoint::completions:
      out["type"] = known ? std::array{"text", "text", "refusal", "image_url", "file"}[below(5)]
                          : std::string(pick_of(kWords, random_()));
      break;
    case Endpoint::responses:
      out["type"] =
          known ? std::array{"input_text", "output_text", "refusal", "input_image"}[below(4)]
                : std::string(pick_of(kWords, random_()));
      break;
    case Endpoint::messages:
      out["type"] = known ? std::array{"text",           "text",          "tool_use",
                                       "tool_result",    "thinking",      "image",
                                       "document",       "search_result", "redacted_thinking",
                                       "server_tool_use"}[below(10)]
                          : std::string(pick_of(kWords, random_()));
      if (one_in(2)) out["id"] = "c" + std::to_string(below(3));
      if (one_in(2)) out["tool_use_id"] = "c" + std::to_string(below(3));
      if (one_in(2)) out["name"] = tool_name();
      if (one_in(2)) out["input"] = wild_ ? value(3) : Json{{"a", value(4)}};
      if (one_in(2))
        out["content"] =
            one_in(2) ? Json(text()) : Json::array({{{"type", "text"}, {"text", text()}}});
      if (one_in(3))
        out["source"] = {
            {"type", one_in(2) ? "text" : "content"}, {"data", text()}, {"content", text()}};
      if (one_in(3)) out["thinking"] = text();
      if (one_in(3)) out["signature"] = text();
  }
  if (!one_in(5)) out[out["type"] == "refusal" ? "refusal" : "text"] = text();
  if (one_in(15)) add_members(out, 3);
  return out;
}

Json RequestGenerator::content() {
  if (one_in(3)) {
    Json out = Json::array();
    for (uint64_t i = below(4); i > 0; --i) out.push_back(wild_ && one_in(6) ? value(3) : part());
    return out;
  }
  if (one_in(30)) return value(3);
  return text();
}

Json RequestGenerator::call_arguments() {
  if (one_in(6)) return text();
  if (one_in(12)) return value(3);
  return Json{{"a", value(3)}, {"input", text()}}.dump();
}

Json RequestGenerator::chat_message() {
  Json out{
      {"role", std::array{"user", "user", "assistant", "system", "tool", "developer"}[below(6)]}};
  if (!one_in(12)) out["content"] = content();
  if (out["role"] == "tool" && !one_in(8)) out["tool_call_id"] = "c" + std::to_string(below(3));
  if (out["role"] == "assistant" && one_in(2)) {
    out["tool_calls"] = Json::array();
    for (uint64_t i = below(4); i > 0; --i) {
      const char* type = one_in(6) ? "custom" : "function";
      out["tool_calls"].push_back(
          {{"id", "c" + std::to_string(below(3))},
           {"type", type},
           {type, {{"name", tool_name()}, {"arguments", call_arguments()}, {"input", text()}}}});
    }
  }
  if (one_in(5)) out["reasoning_content"] = text();
  if (one_in(15)) add_members(out, 2);
  return out;
}

Json RequestGenerator::messages_turn() {
  Json out{{"role", std::array{"user", "user", "assistant", "assistant", "system"}[below(5)]}};
  if (!one_in(20)) out["content"] = content();
  if (one_in(20)) add_members(out, 2);
  return out;
}

Json RequestGenerator::responses_item() {
  Json out = Json::object();
  switch (below(6)) {
    case 0:
      out = {{"type", "function_call"}, {"name", tool_name()}, {"arguments", call_arguments()}};
      out["call_id"] = "c" + std::to_string(below(3));
      if (one_in(4)) out["namespace"] = tool_name();
      break;
    case 1:
      out = {{"type", one_in(4) ? "custom_tool_call_output" : "function_call_output"},
             {"output", content()}};
      out["call_id"] = "c" + std::to_string(below(3));
      break;
    case 2:
      out = {{"type", "reasoning"},
             {"summary", Json::array()},
             {"content", content()},
             {"encrypted_content", text()}};
      break;
    case 3:
      out["type"] = pick_of(kWords, random_());
      out["tools"] = tools();
      break;
    default:
      out = {{"role", std::array{"user", "assistant", "system", "developer"}[below(4)]},
             {"content", content()}};
  }
  if (one_in(15)) add_members(out, 2);
  return out;
}

Json RequestGenerator::turns() {
  if (endpoint_ == Endpoint::responses && one_in(5)) return text();
  if (wild_ && one_in(15)) return value(1);
  Json out = Json::array();
  for (uint64_t i = one_in(40) ? below(40) : 1 + below(4); i > 0; --i) {
    out.push_back(wild_ && one_in(15)                ? value(1)
                  : endpoint_ == Endpoint::responses ? responses_item()
                  : endpoint_ == Endpoint::messages  ? messages_turn()
                                                     : chat_message());
  }
  return out;
}

Json RequestGenerator::field(const std::string& name) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (one_in(wild_ ? 4 : 60)) return value(1);
  if (is({"messages", "input"})) return turns();
  if (is({"tools", "functions"})) return tools();
  if (is({"tool_choice", "function_call"})) return tool_choice();
  if (name == "prompt") {
    if (endpoint_ == Endpoint::responses) return nullptr;
    if (one_in(2)) return text();
    Json out = Json::array();
    const bool ids = one_in(2);
    for (uint64_t i = 1 + below(4); i > 0; --i)
      out.push_back(ids ? Json(below(8000)) : Json(text()));
    return out;
  }
  if (is({"system", "instructions", "suffix", "model", "cache_salt"}))
    return one_in(4) ? content() : Json(text());
  if (is({"stop", "stop_sequences", "guided_choice"})) {
    Json out = Json::array();
    for (uint64_t i = below(4); i > 0; --i) out.push_back(text());
    return out;
  }
  if (is({"json_schema", "guided_json"})) return one_in(3) ? Json(schema(0).dump()) : schema(0);
  if (name == "response_format") {
    if (one_in(3)) return {{"type", "json_object"}};
    return {{"type", "json_schema"},
            {"json_schema", {{"schema", schema(0)}, {"strict", one_in(2)}}}};
  }
  const Json format{{"type", one_in(3) ? "json_object" : "json_schema"},
                    {"schema", schema(0)},
                    {"strict", one_in(3)}};
  if (is({"text", "output_config"}))
    return {{"format", format}, {"effort", one_in(4) ? pick_of(kWords, random_()) : "low"}};
  if (name == "output_format") return format;
  if (name == "structured_outputs") {
    if (one_in(3)) return {{"choice", Json::array({text(), text()})}};
    return {{"json", schema(0)}};
  }
  if (name == "logit_bias") {
    if (one_in(2)) return {{std::to_string(below(9000)), number()}, {"7", 1}};
    return Json::array({Json::array({text(), -5}), Json::array({below(9000), false})});
  }
  if (name == "stop_token_ids") return Json::array({below(9000), below(9000)});
  if (is({"chat_template_kwargs", "reasoning", "thinking", "stream_options",
          "context_management"})) {
    Json out = Json::object();
    add_members(out, 2);
    if (name == "thinking") out["type"] = std::array{"enabled", "disabled", "adaptive"}[below(3)];
    if (name == "chat_template_kwargs" && one_in(2)) out["enable_thinking"] = one_in(2);
    return out;
  }
  if (is({"samplers", "include", "modalities"})) {
    return name == "modalities" ? Json::array({"text"}) : Json::array({pick_of(kWords, random_())});
  }
  if (is({"stream", "echo", "logprobs", "ignore_eos", "enable_thinking", "parallel_tool_calls",
          "include_reasoning", "cache_prompt", "continue_final_message", "add_generation_prompt",
          "include_stop_str_in_output"})) {
    return name == "logprobs" && endpoint_ == Endpoint::completions ? Json(below(5))
                                                                    : Json(one_in(2));
  }
  if (is({"skip_special_tokens", "add_special_tokens", "background"})) return name != "background";
  // Unsupported or refused unless null.
  if (is({"previous_response_id", "conversation", "chat_template"})) return nullptr;
  if (is({"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
          "repeat_penalty", "repetition_penalty"})) {
    return one_in(5) ? number() : Json(0.5);
  }
  if (name == "reasoning_effort")
    return std::array{"low", "high", "none", "minimal", "max"}[below(5)];
  if (is({"n", "best_of"})) return 1 + below(3);
  if (one_in(3)) return number();
  return 1 + below(4);
}

void RequestGenerator::spoil(std::string& text) {
  const size_t at = text.empty() ? 0 : below(text.size());
  switch (below(8)) {
    case 0:
      text.resize(at);
      break;
    case 1:
      text.erase(at, below(8));
      break;
    case 2:
      text.insert(at, 1, static_cast<char>(below(256)));
      break;
    case 3:
      text.insert(at, text.substr(below(text.size() + 1), below(40)));
      break;
    case 4: {  // lone surrogates, and pairs
      constexpr std::string_view kEscapes[] = {"\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\u0000",
                                               "\\u00e9"};
      const size_t quote = text.find("hi\"", at);
      if (quote != std::string::npos) text.insert(quote, pick_of(kEscapes, random_()));
      break;
    }
    case 5: {
      const auto depth = static_cast<size_t>(below(140));
      text.insert(1, "\"x\":" + std::string(depth, '[') + std::string(depth, ']') +
                         (text == "{}" ? "" : ","));
      break;
    }
    case 6:  // a repeated name
      text.insert(1, "\"messages\":[],\"model\":\"x\",\"input\":\"hi\",\"n\":1" +
                         std::string(text == "{}" ? "" : ","));
      break;
    default:
      text += std::string(1, static_cast<char>(below(256)));
  }
}

RequestBody RequestGenerator::body() {
  endpoint_ = static_cast<Endpoint>(below(4));
  wild_ = one_in(5);
  RequestBody out;
  out.endpoint = endpoint_;
  out.counting = endpoint_ == Endpoint::messages && one_in(4);
  Json json = Json::object();
  const char* needed = endpoint_ == Endpoint::responses     ? "input"
                       : endpoint_ == Endpoint::completions ? "prompt"
                                                            : "messages";
  if (!one_in(60)) json[needed] = field(needed);
  if (endpoint_ == Endpoint::messages && !one_in(20)) json["max_tokens"] = 1 + below(50);
  if (endpoint_ != Endpoint::completions && one_in(2)) json["tools"] = tools();
  for (uint64_t i = below(5); i > 0; --i) {
    const auto& names = fields_of(endpoint_, !one_in(12));
    const std::string& name = names[below(names.size())];
    json[name] = field(name);
  }
  if (one_in(20)) json[text()] = value(1);
  out.text = json.dump();
  if (one_in(15)) spoil(out.text);
  return out;
}

}  // namespace braid::fuzz
