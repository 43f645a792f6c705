// read_common.cpp -- shared by the readers of all APIs; see read_request.h.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/api/read_request.h"
#include "server/api/request_fields.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

constexpr int64_t kMaxCount = 1 << 30;
constexpr std::string_view kOpaquePrefix = "braid1.";
constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void read_sampling(const Fields& fields, SamplingOverrides& out) {
  out.temperature = fields.number("temperature", 0, 5);
  out.top_p = fields.number("top_p", 0, 1);
  out.min_p = fields.number("min_p", 0, 1);
  if (const auto k = fields.integer("top_k", -1, kMaxCount)) out.top_k = static_cast<int32_t>(*k);
  out.presence_penalty = fields.number("presence_penalty", -2, 2);
  out.frequency_penalty = fields.number("frequency_penalty", -2, 2);
  for (const char* name : {"repeat_penalty", "repetition_penalty"}) {
    const auto penalty = fields.number(name, 0, 10);
    if (penalty && *penalty <= 0) {
      fields.fail(invalid_value(fields.path(name), fields.path(name) + " must be above 0"));
    }
    if (penalty) out.repetition_penalty = penalty;
  }
  if (const auto last = fields.integer("repeat_last_n", -1, kMaxCount)) {
    out.penalty_last_n = static_cast<int32_t>(*last);
  }
  if (const Json* seed = fields.find("seed")) {
    const auto number = as_integer(*seed);
    if (seed->is_number_unsigned()) {
      out.seed = seed->get<uint64_t>();
    } else if (!number || *number < -1) {
      fields.fail(
          invalid_value(fields.path("seed"),
                        fields.path("seed") + " must be -1 or an integer from 0 to 2^64 - 1"));
    } else if (*number >= 0) {
      out.seed = static_cast<uint64_t>(*number);
    }
  }
}

// llama.cpp's samplers; unlisted ones are off. Fixed order (engine/sampler.h).
void read_samplers(const Fields& fields, SamplingOverrides& out) {
  const Json* list = fields.array("samplers", 64);
  if (list == nullptr) return;
  std::set<std::string> named;
  for (const Json& entry : *list) named.insert(entry.is_string() ? entry.get<std::string>() : "");
  const auto take = [&](std::initializer_list<const char*> names) {
    size_t found = 0;
    for (const char* name : names) found += named.erase(name);
    return found > 0;
  };
  if (!take({"penalties"}))
    out.repetition_penalty = 1, out.presence_penalty = out.frequency_penalty = 0;
  if (!take({"top_k", "top-k"})) out.top_k = 0;
  if (!take({"top_p", "top-p", "nucleus"})) out.top_p = 1;
  if (!take({"min_p", "min-p"})) out.min_p = 0;
  if (!take({"temperature", "temp"})) out.temperature = 1;
  // Their settings are refused unless neutral.
  take({"dry", "top_n_sigma", "top-n-sigma", "typ_p", "typ-p", "typical_p", "typical-p", "typical",
        "xtc"});
  if (!named.empty()) {
    fields.fail(unsupported(
        fields.path("samplers"),
        fields.path("samplers") + " names an unknown sampler: " + named.begin()->substr(0, 64)));
  }
}

// A number from -100 to 100, or false for never.
std::optional<float> bias_of(const Fields& fields, const Json& value) {
  if (value.is_boolean() && !value.get<bool>()) return -100.0f;
  if (value.is_number() && std::abs(value.get<double>()) <= 100) return value.get<float>();
  fields.fail(
      invalid_value(fields.path("logit_bias"),
                    fields.path("logit_bias") + " holds numbers between -100 and 100, or false"));
  return std::nullopt;
}

void read_bias_list(const Fields& fields, const Json& list, SamplingOverrides& out) {
  for (const Json& entry : list) {
    const bool pair = entry.is_array() && entry.size() == 2;
    const auto id = pair ? as_integer(entry[0]) : std::nullopt;
    if (!pair || (!entry[0].is_string() && (!id || *id < 0 || *id > INT32_MAX))) {
      fields.fail(invalid_value(
          fields.path("logit_bias"),
          fields.path("logit_bias") + " as a list holds pairs [token id or text, bias]"));
      return;
    }
    const auto bias = bias_of(fields, entry[1]);
    if (!bias) return;
    if (id) {
      out.logit_bias.emplace_back(static_cast<int32_t>(*id), *bias);
      continue;
    }
    const auto& text = entry[0].get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxBiasBytes) {
      fields.fail(invalid_value(fields.path("logit_bias"),
                                fmt::format("{} must hold texts of 1 to {} bytes",
                                            fields.path("logit_bias"), kMaxBiasBytes)));
      return;
    }
    out.logit_bias_texts.emplace_back(text, *bias);
  }
}

void read_bias(const Fields& fields, SamplingOverrides& out) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  const std::string path = fields.path("logit_bias");
  if (!bias->is_object() && !bias->is_array()) {
    fields.fail(invalid_type(path, path + " must be an object of token ids"));
  } else if (bias->size() > kMaxLogitBiases) {
    fields.fail(
        invalid_value(path, fmt::format("{} has more than {} entries", path, kMaxLogitBiases)));
  } else if (bias->is_array()) {
    read_bias_list(fields, *bias, out);
  } else {
    for (const auto& [key, value] : bias->items()) {
      int32_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0) {
        fields.fail(
            invalid_value(path, path + " has a key that is not a token id: " + key.substr(0, 64)));
        return;
      }
      const auto amount = bias_of(fields, value);
      if (!amount) return;
      out.logit_bias.emplace_back(id, *amount);
    }
  }
}

void read_stop_ids(const Fields& fields, Generation& out) {
  const Json* ids = fields.array("stop_token_ids", 4096);
  if (ids == nullptr) return;
  for (const Json& entry : *ids) {
    const auto id = as_integer(entry);
    if (!id || *id < 0 || *id > INT32_MAX) {
      fields.fail(invalid_value(fields.path("stop_token_ids"),
                                fields.path("stop_token_ids") + " must hold token ids"));
      return;
    }
    out.stop_token_ids.push_back(static_cast<int32_t>(*id));
  }
}

// OpenAI's reasoning effort. `strict`: an unknown word is an error.
void read_effort(const Fields& fields, const char* name, bool strict, ReasoningOptions& out) {
  const std::string* word = fields.string(name);
  if (word == nullptr) return;
  std::string effort = *word == "x-high" ? "xhigh" : *word;
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    if (strict) {
      fields.fail(invalid_value(
          fields.path(name),
          fields.path(name) + " must be none, minimal, low, medium, high, xhigh or max"));
      return;
    }
    effort = "high";
  }
  const bool none = effort == "none" || effort == "minimal";
  if (none || !out.think) out.think = !none;
  out.effort = effort;
}

void apply_budget(std::optional<int64_t> budget, ReasoningOptions& out) {
  if (!budget) return;
  out.budget_tokens = budget;
  if (*budget == 0) out.think = false;
  if (*budget > 0 && !out.think) out.think = true;
}

// Sources in ascending order of precedence.
void read_reasoning(const Fields& fields, Generation& out) {
  ReasoningOptions& options = out.reasoning;
  const bool openai = family_of(out.endpoint) == ApiFamily::openai;
  const Fields kwargs(out.template_variables, fields.path("chat_template_kwargs"), fields.error());
  // Words of kEfforts act like the field of that name. Others are passed to the template.
  const Json* word = kwargs.find("reasoning_effort");
  if (word != nullptr && word->is_string() &&
      std::find(kEfforts.begin(), kEfforts.end(), word->get_ref<const std::string&>()) !=
          kEfforts.end()) {
    read_effort(kwargs, "reasoning_effort", true, options);
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    const Fields inner(*reasoning, fields.path("reasoning"), fields.error());
    if (const auto enabled = inner.boolean("enabled")) options.think = enabled;
    options.hidden = inner.boolean("exclude", false);
    read_effort(inner, "effort", true, options);
    apply_budget(inner.integer("max_tokens", -1, kMaxCount), options);
  }
  read_effort(fields, "reasoning_effort", true, options);
  if (const Json* config = fields.object("output_config")) {
    const Fields inner(*config, fields.path("output_config"), fields.error());
    ReasoningOptions effort;
    read_effort(inner, "effort", openai, effort);
    if (effort.effort) options.effort = effort.effort;
    if (effort.think == false) options.think = false;
  }
  apply_budget(kwargs.integer("thinking_budget", -1, kMaxCount), options);
  for (const char* name : {"reasoning_budget", "reasoning_budget_tokens", "thinking_token_budget",
                           "thinking_budget", "thinking_budget_tokens"}) {
    apply_budget(fields.integer(name, -1, kMaxCount), options);
  }
  for (const char* name : {"thinking", "enable_thinking"}) {
    if (const Json* value = kwargs.find(name); value != nullptr && value->is_boolean()) {
      options.think = value->get<bool>();
    }
  }
  if (const auto think = fields.boolean("enable_thinking")) options.think = think;
  if (!fields.boolean("include_reasoning", true)) options.hidden = true;
}

}  // namespace

const char* endpoint_path(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat:
      return "/v1/chat/completions";
    case Endpoint::completions:
      return "/v1/completions";
    case Endpoint::responses:
      return "/v1/responses";
    case Endpoint::messages:
      return "/v1/messages";
  }
  return "";
}

void read_thinking(const Fields& fields, Generation& out) {
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return;
  const Fields inner(*thinking, fields.path("thinking"), fields.error());
  ReasoningOptions& options = out.reasoning;
  const std::string type = inner.string("type", "adaptive");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    inner.fail(invalid_value(inner.path("type"),
                             inner.path("type") + " must be enabled, disabled or adaptive"));
  }
  const auto budget = inner.integer("budget_tokens", -1, kMaxCount);
  options.think = type != "disabled";
  if (type == "enabled") apply_budget(budget, options);
  const std::string display = inner.string("display", "summarized");
  if (display != "summarized" && display != "full" && display != "omitted") {
    inner.fail(invalid_value(inner.path("display"),
                             inner.path("display") + " must be summarized, full or omitted"));
  }
  options.omitted = display == "omitted";
}

void read_stops(const Fields& fields, const char* name, const ApiLimits& limits, Generation& out) {
  const Json* stop = fields.find(name);
  if (stop == nullptr) return;
  const std::string path = fields.path(name);
  std::vector<const Json*> list;
  const bool one = name == std::string_view("stop");  // OpenAI allows a string
  const char* wanted =
      one ? " must be a string or an array of strings" : " must be an array of strings";
  if (stop->is_string() && one) {
    list.push_back(stop);
  } else if (stop->is_array()) {
    if (stop->size() > static_cast<size_t>(limits.max_stops)) {
      fields.fail(
          invalid_value(path, fmt::format("{} has more than {} strings", path, limits.max_stops)));
      return;
    }
    for (const Json& entry : *stop) list.push_back(&entry);
  } else {
    fields.fail(invalid_type(path, path + wanted));
    return;
  }
  for (const Json* entry : list) {
    if (!entry->is_string()) {
      fields.fail(invalid_type(path, path + wanted));
      return;
    }
    const auto& text = entry->get_ref<const std::string&>();
    if (text.empty() || text.size() > limits.max_stop_bytes) {
      fields.fail(invalid_value(
          path, fmt::format("{} must hold strings of 1 to {} bytes", path, limits.max_stop_bytes)));
      return;
    }
    out.stops.push_back(text);
  }
}

void read_common(const Fields& fields, const ApiLimits& limits, Generation& out) {
  out.model = fields.string("model", "");
  if (out.model.size() > 1024)
    fields.fail(invalid_value("model", "model is longer than 1024 bytes"));
  out.stream = fields.boolean("stream", false);
  if (const auto refused = refused_field(fields.json(), out.endpoint)) fields.fail(*refused);
  read_sampling(fields, out.sampling);
  read_samplers(fields, out.sampling);
  read_bias(fields, out.sampling);
  read_stops(fields, out.endpoint == Endpoint::messages ? "stop_sequences" : "stop", limits, out);
  read_stop_ids(fields, out);
  out.ignore_eos = fields.boolean("ignore_eos", false);
  out.include_stop = fields.boolean("include_stop_str_in_output", false);
  if (const auto least = fields.integer("min_tokens", 0, kMaxCount))
    out.min_tokens = static_cast<int32_t>(*least);
  // 0 runs only the prompt, to warm the cache.
  const bool zero = out.endpoint == Endpoint::completions || out.endpoint == Endpoint::chat;
  for (const char* name :
       {"n_predict", "max_tokens", "max_output_tokens", "max_completion_tokens"}) {
    // llama.cpp's clients send -1 for "no limit".
    const bool old_name =
        name == std::string_view("n_predict") || name == std::string_view("max_tokens");
    const auto most = fields.integer(name, old_name ? -1 : 0, INT64_MAX);
    if (most == 0 && !zero)
      fields.fail(invalid_value(fields.path(name), fields.path(name) + " must be at least 1"));
    if (most) out.max_tokens = most;
  }
  if (out.max_tokens.value_or(-1) >= 0 && out.min_tokens > *out.max_tokens) {
    fields.fail(invalid_value(fields.path("min_tokens"),
                              fields.path("min_tokens") + " is above the limit of tokens"));
  }
  if (const Json* variables = fields.object("chat_template_kwargs"))
    out.template_variables = *variables;
  if (const Json* options = fields.object("stream_options")) {
    out.include_usage = Fields(*options, fields.path("stream_options"), fields.error())
                            .boolean("include_usage", false);
  }
  read_form_extensions(fields, limits, out);
  read_reasoning(fields, out);
  if (out.endpoint != Endpoint::messages) read_thinking(fields, out);
  read_loops(fields, out.loops);
  if (const auto parallel = fields.boolean("parallel_tool_calls")) out.parallel_calls = *parallel;
  out.cache_prompt = fields.boolean("cache_prompt", true);
  out.cache_salt = fields.string("cache_salt", "");
  if (const auto priority = fields.integer("priority", -100, 100))
    out.priority = static_cast<int32_t>(*priority);
}

void ToolList::add(const Fields& tool, const Json* schema, const std::string* description,
                   ToolIdentity identity) {
  Json parameters =
      schema != nullptr ? *schema : Json{{"type", "object"}, {"properties", Json::object()}};
  add(tool, std::move(parameters), description, std::move(identity));
}

void ToolList::add_custom(const Fields& tool, ToolIdentity identity) {
  std::string description = tool.string("description", "");
  if (const Json* format = tool.object("format")) {
    const Fields inner(*format, tool.path("format"), tool.error());
    if (const std::string* definition = inner.string("definition")) {
      if (!description.empty()) description += "\n\n";
      description += *definition;
    }
  }
  identity.custom = true;
  Json parameters{{"type", "object"},
                  {"properties", {{"input", {{"type", "string"}}}}},
                  {"required", Json::array({"input"})}};
  add(tool, std::move(parameters), &description, std::move(identity));
}

namespace {

bool is_tool_name(const std::string& name, const ApiLimits& limits) {
  const auto bad = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '<' || c == '>' || c == '"' || c == 0x7f;
  };
  return !name.empty() && name.size() <= limits.max_tool_name_bytes &&
         std::none_of(name.begin(), name.end(), bad);
}

void refuse_name(const Fields& tool, const ApiLimits& limits) {
  tool.fail(
      invalid_value(tool.path("name"),
                    fmt::format("{} must have 1 to {} bytes, no blanks, quotes or angle brackets",
                                tool.path("name"), limits.max_tool_name_bytes)));
}

}  // namespace

bool check_namespace(const Fields& tool, const std::string& name, const ApiLimits& limits) {
  if (!is_tool_name(name, limits)) refuse_name(tool, limits);
  return tool.ok();
}

// The prompt's name for a tool in a namespace: truncated if long, numbered if taken.
std::string ToolList::unique_name(const ToolIdentity& identity) {
  constexpr size_t kTail = 8;  // for a number
  const std::string whole = identity.name_space + "__" + identity.name;
  if (whole.size() <= limits_.max_tool_name_bytes && !names_.contains(whole)) return whole;
  size_t bytes = std::min(whole.size(), limits_.max_tool_name_bytes - kTail);
  while (bytes > 0 && bytes < whole.size() &&
         (static_cast<unsigned char>(whole[bytes]) & 0xC0) == 0x80)
    --bytes;
  const std::string head = whole.substr(0, bytes);
  std::string out;
  do {
    int& next = next_.try_emplace(head, 2).first->second;
    out = fmt::format("{}_{}", head, next++);
  } while (names_.contains(out));
  return out;
}

void ToolList::add(const Fields& tool, Json parameters, const std::string* description,
                   ToolIdentity identity) {
  if (!tool.ok()) return;
  const std::string& name = identity.name;
  if (!is_tool_name(name, limits_)) return refuse_name(tool, limits_);
  if (out_.tools.size() >= limits_.max_tools) {
    tool.fail(
        invalid_value("tools", fmt::format("tools has more than {} entries", limits_.max_tools)));
    return;
  }
  const bool renamed = !identity.name_space.empty();
  const std::string flat = renamed ? unique_name(identity) : name;
  if (!names_.insert(flat).second) {
    tool.fail(
        invalid_value(tool.path("name"), tool.path("name") + ": two tools are called " + flat));
    return;
  }
  if (tool.boolean("strict", false)) out_.strict_tools.insert(flat);
  Json function{{"name", flat}};
  if (description != nullptr && !description->empty()) function["description"] = *description;
  function["parameters"] = std::move(parameters);
  out_.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  out_.flat_names.try_emplace({identity.name_space, name}, flat);
  if (renamed || identity.custom) out_.identities[flat] = std::move(identity);
}

std::optional<std::string> flat_name(const Generation& generation, const std::string& name,
                                     const std::string& name_space) {
  const auto found = generation.flat_names.find({name_space, name});
  return found == generation.flat_names.end() ? std::nullopt : std::optional(found->second);
}

void choose_tool(const Fields& fields, const std::string& name, Generation& out) {
  const auto flat = flat_name(out, name);
  if (!flat) {
    fields.fail(invalid_value(
        "tool_choice", "tool_choice names a tool that is not in tools: " + name.substr(0, 128)));
    return;
  }
  out.tool_choice.names.insert(*flat);
}

void choose_allowed(const Fields& allowed, Generation& out) {
  if (!choose_mode(allowed.string("mode", "auto"), out)) {
    allowed.fail(
        invalid_value(allowed.path("mode"), allowed.path("mode") + " must be auto or required"));
  }
  const Json* tools = allowed.array("tools", 1024);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Fields tool((*tools)[i], Fields::element(allowed.path("tools"), i), allowed.error());
    const std::string type = tool.string("type", "function");
    if (type != "function" && type != "custom") continue;
    const Json* wrapped = tool.object(type.c_str());
    const Fields named(wrapped != nullptr ? *wrapped : tool.json(), tool.path(), tool.error());
    choose_tool(allowed, named.string("name", ""), out);
  }
  if (out.tool_choice.names.empty()) {  // empty would mean all
    allowed.fail(invalid_value(allowed.path("tools"),
                               allowed.path("tools") + " must name tools of this request"));
  }
}

bool choose_mode(const std::string& word, Generation& out) {
  using Mode = ToolChoice::Mode;
  if (word == "auto") {
    out.tool_choice.mode = Mode::automatic;
  } else if (word == "none") {
    out.tool_choice.mode = Mode::none;
  } else if (word == "required" || word == "any") {
    out.tool_choice.mode = Mode::required;
  } else {
    return false;
  }
  return true;
}

void check_choice(const Fields& fields, Generation& out) {
  if (out.tools.empty() && out.tool_choice.mode == ToolChoice::Mode::required) {
    fields.fail(
        invalid_value("tool_choice", "tool_choice asks for a call, but there are no tools"));
  }
}

Json read_arguments(const Fields& call, const char* name, JsonBudget& texts) {
  const std::string* text = call.string(name);
  if (text == nullptr) return Json::object();
  auto arguments = arguments_object(*text, texts);
  if (arguments) return std::move(*arguments);
  call.fail(invalid_value(call.path(name),
                          fmt::format("{}: the arguments of all calls have more than {} values",
                                      call.path(name), texts.max_values)));
  return Json::object();
}

std::string media_text(const Fields& part, const char* kind, const ApiLimits& limits) {
  if (limits.reject_media) {
    part.fail(unsupported(part.path(), part.path() + ": this model reads text only"));
  }
  return fmt::format("[{} omitted: this model reads text only]", kind);
}

std::string opaque_text(std::string_view text) {
  std::string out(kOpaquePrefix);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (held += 8; held >= 6; held -= 6) out += kBase64[bits >> (held - 6) & 63];
  }
  if (held > 0) out += kBase64[bits << (6 - held) & 63];
  return out;
}

std::optional<std::string> read_opaque(std::string_view opaque) {
  if (!opaque.starts_with(kOpaquePrefix)) return std::nullopt;
  opaque.remove_prefix(kOpaquePrefix.size());
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : opaque) {
    const size_t value = kBase64.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>(bits >> held & 255);
    }
  }
  return repaired_utf8(out, Utf8Repair::maximal_subpart);  // clients may have changed it
}

}  // namespace braid::server
