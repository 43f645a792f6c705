// read_chat.cpp -- OpenAI's chat completions and completions: JSON to Generation.
#include <fmt/format.h>

#include "server/api/read_request.h"

namespace braid::server {
namespace {

// A string, null, or a list of parts. `thought` (may be null) receives thought parts.
std::string read_content(const Fields& message, const char* name, const ApiLimits& limits,
                         std::string* thought = nullptr) {
  const Json* content = message.find(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  const std::string path = message.path(name);
  if (!content->is_array()) {
    message.fail(invalid_type(path, path + " must be a string or an array of parts"));
    return {};
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& json = (*content)[i];
    const Fields part(json, Fields::element(path, i), message.error());
    if (!json.is_object()) {
      message.fail(invalid_type(part.path(), part.path() + " must be an object"));
      return {};
    }
    const std::string type = part.string("type", "text");
    if (type == "text" || type == "refusal") {
      join_text(text, part.string(type.c_str(), ""));
      // types of this server's other APIs
    } else if (type == "output_text" || type == "input_text") {
      join_text(text, part.string("text", ""));
    } else if (thought != nullptr && type == "thinking") {
      join_text(*thought, part.string("thinking", ""));
    } else if (thought != nullptr && type == "redacted_thinking") {
      continue;
    } else if (type == "image_url" || type == "image") {
      join_text(text, media_text(part, "image", limits));
    } else if (type == "input_audio") {
      join_text(text, media_text(part, "audio", limits));
    } else if (type == "file") {
      join_text(text, media_text(part, "file", limits));
    } else {
      message.fail(invalid_value(part.path("type"),
                                 part.path("type") + " is not known: " + type.substr(0, 64)));
    }
  }
  return text;
}

void read_calls(const Fields& fields, Message& message, const Generation& out, JsonBudget& texts) {
  const Json* calls = fields.array("tool_calls", 4096);
  const std::string path = fields.path("tool_calls");
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const Fields call((*calls)[i], Fields::element(path, i), fields.error());
    const bool custom = call.string("type", "function") == "custom";
    const Json* function = call.object(custom ? "custom" : "function");
    if (function == nullptr) {
      call.fail(missing_field(call.path(custom ? "custom" : "function")));
      return;
    }
    const Fields inner(*function, call.path(custom ? "custom" : "function"), fields.error());
    const std::string name = inner.string("name", "");
    ToolCall made{call.string("id", ""), flat_name(out, name).value_or(name), Json::object()};
    if (custom) {
      made.arguments["input"] = inner.string("input", "");
    } else if (const Json* arguments = inner.find("arguments");
               arguments != nullptr && arguments->is_object()) {
      made.arguments = *arguments;  // undocumented, but unambiguous
    } else {
      made.arguments = read_arguments(inner, "arguments", texts);
    }
    message.calls.push_back(std::move(made));
  }
  if (const Json* function = fields.object("function_call")) {
    const Fields inner(*function, fields.path("function_call"), fields.error());
    message.calls.push_back(
        {"", inner.string("name", ""), read_arguments(inner, "arguments", texts)});
  }
}

void read_message(const Fields& fields, const ApiLimits& limits, JsonBudget& texts,
                  Generation& out) {
  const std::string* role = fields.string("role");
  if (role == nullptr) {
    fields.fail(missing_field(fields.path("role")));
    return;
  }
  Message message;
  if (*role == "system" || *role == "developer") {
    message.role = Message::Role::system;
  } else if (*role == "user") {
    message.role = Message::Role::user;
  } else if (*role == "assistant") {
    message.role = Message::Role::assistant;
  } else if (*role == "tool" || *role == "function") {
    message.role = Message::Role::tool;
  } else {
    fields.fail(invalid_value(fields.path("role"),
                              fields.path("role") + " is not known: " + role->substr(0, 64)));
    return;
  }
  if (message.role == Message::Role::user && !fields.has("content")) {
    fields.fail(missing_field(fields.path("content")));
  }
  const bool assistant = message.role == Message::Role::assistant;
  std::string thought;
  message.text = read_content(fields, "content", limits, assistant ? &thought : nullptr);
  if (!thought.empty()) message.reasoning = std::move(thought);
  if (assistant) {
    for (const char* name : {"thinking", "reasoning", "reasoning_content"}) {
      const Json* reasoning = fields.find(name);
      if (reasoning != nullptr && reasoning->is_string())
        message.reasoning = reasoning->get<std::string>();
    }
    read_calls(fields, message, out, texts);
  }
  if (message.role == Message::Role::tool) {
    message.call_id = fields.string("tool_call_id", "");
    message.name = fields.string("name", "");
    if (*role == "tool" && !fields.has("tool_call_id"))
      fields.fail(missing_field(fields.path("tool_call_id")));
  }
  out.messages.push_back(std::move(message));
}

void read_tool(const Fields& tool, ToolList& list) {
  const std::string type = tool.string("type", "function");
  if (type != "function" && type != "custom") {
    tool.fail(unsupported(tool.path("type"), tool.path("type") + " must be function or custom"));
    return;
  }
  const Json* json = tool.object(type.c_str());
  if (json == nullptr) {
    tool.fail(missing_field(tool.path(type)));
    return;
  }
  const Fields inner(*json, tool.path(type), tool.error());
  ToolIdentity identity{"", inner.string("name", ""), false};
  if (type == "custom") {
    list.add_custom(inner, std::move(identity));
  } else {
    list.add(inner, inner.object("parameters"), inner.string("description"), std::move(identity));
  }
}

void read_tools(const Fields& fields, const ApiLimits& limits, Generation& out) {
  ToolList list(limits, out);
  if (const Json* tools = fields.array("tools", limits.max_tools)) {
    for (size_t i = 0; i < tools->size(); ++i) {
      read_tool(Fields((*tools)[i], Fields::element(fields.path("tools"), i), fields.error()),
                list);
    }
  }
  if (const Json* functions = fields.array("functions", limits.max_tools)) {
    for (size_t i = 0; i < functions->size(); ++i) {
      const Fields function((*functions)[i], Fields::element(fields.path("functions"), i),
                            fields.error());
      list.add(function, function.object("parameters"), function.string("description"),
               {"", function.string("name", ""), false});
    }
  }
}

// {type: function, function: {name}}, {type: custom, ...},
// {type: allowed_tools, allowed_tools: {mode, tools}}
void read_choice_object(const Fields& choice, Generation& out) {
  const std::string type = choice.string("type", "function");
  if (type == "allowed_tools") {
    const Json* allowed = choice.object("allowed_tools");
    const Fields inner(allowed != nullptr ? *allowed : choice.json(), choice.path("allowed_tools"),
                       choice.error());
    choose_allowed(inner, out);
    return;
  }
  if (type != "function" && type != "custom") {
    choice.fail(unsupported(choice.path("type"),
                            choice.path("type") + " must be function, custom or allowed_tools"));
    return;
  }
  const Json* named = choice.object(type.c_str());
  if (named == nullptr) named = &choice.json();
  out.tool_choice.mode = ToolChoice::Mode::required;
  choose_tool(choice, Fields(*named, choice.path(type), choice.error()).string("name", ""), out);
}

void read_choice(const Fields& fields, Generation& out) {
  const char* name = fields.has("tool_choice") ? "tool_choice" : "function_call";
  const Json* choice = fields.find(name);
  if (choice == nullptr) return;
  if (choice->is_string()) {
    if (!choose_mode(choice->get_ref<const std::string&>(), out)) {
      fields.fail(
          invalid_value(name, std::string(name) + " must be auto, none, required or name a tool"));
    }
  } else if (choice->is_object()) {
    const Fields inner(*choice, name, fields.error());
    if (name == std::string_view("function_call")) {
      out.tool_choice.mode = ToolChoice::Mode::required;
      choose_tool(fields, inner.string("name", ""), out);
    } else {
      read_choice_object(inner, out);
    }
  } else {
    fields.fail(invalid_type(name, std::string(name) + " must be a string or an object"));
  }
  check_choice(fields, out);
}

void read_format(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  const Fields inner(*format, "response_format", fields.error());
  const std::string type = inner.string("type", "text");
  if (type == "json_object") {
    if (inner.has("schema")) return read_schema(inner, "schema", limits, out);
    read_any_object(fields, inner.path(), out);
  } else if (type == "json_schema") {
    const Json* wrapped = inner.object("json_schema");
    if (wrapped == nullptr) {
      inner.fail(missing_field(inner.path("json_schema")));
      return;
    }
    read_schema(Fields(*wrapped, inner.path("json_schema"), fields.error()), "schema", limits, out);
  } else if (type != "text") {
    inner.fail(invalid_value(inner.path("type"),
                             "response_format.type must be text, json_object or json_schema"));
  }
}

void read_count(const Fields& fields, const ApiLimits& limits, Generation& out) {
  if (const auto n = fields.integer("n", 1, limits.max_n)) out.n = static_cast<int32_t>(*n);
  if (const auto best = fields.integer("best_of", 1, INT32_MAX); best && *best != out.n) {
    fields.fail(unsupported("best_of", "best_of must equal n"));
  }
}

void read_logprobs(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const bool wanted = fields.boolean("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, limits.max_top_logprobs);
  if (top && *top > 0 && !wanted) {
    fields.fail(invalid_value("top_logprobs", "top_logprobs needs logprobs to be true"));
  }
  if (wanted) out.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

}  // namespace

ApiResult<Generation> read_chat(const Json& body, const ApiLimits& limits) {
  Generation out;
  out.endpoint = Endpoint::chat;
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  read_common(fields, limits, out);
  read_tools(fields, limits, out);
  read_choice(fields, out);
  read_format(fields, limits, out);
  read_count(fields, limits, out);
  read_logprobs(fields, limits, out);
  if (const Json* modalities = fields.array("modalities", 16)) {
    for (const Json& modality : *modalities) {
      if (modality != "text")
        fields.fail(unsupported("modalities", "modalities: only text can be generated"));
    }
  }
  if (fields.has("chat_template")) {
    fields.fail(
        unsupported("chat_template", "chat_template: this server uses the template of its model"));
  }
  const Json* messages = fields.array("messages", limits.max_messages);
  if (messages == nullptr || messages->empty()) fields.fail(missing_field("messages"));
  JsonBudget texts = request_budget();
  for (size_t i = 0; fields.ok() && i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    if (!message.is_object()) {
      fields.fail(invalid_type(Fields::element("messages", i),
                               Fields::element("messages", i) + " must be an object"));
      break;
    }
    read_message(Fields(message, Fields::element("messages", i), &error), limits, texts, out);
  }
  out.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  const bool last_is_assistant =
      !out.messages.empty() && out.messages.back().role == Message::Role::assistant;
  out.continue_final =
      fields.boolean("continue_final_message", limits.prefill_assistant && last_is_assistant);
  if (out.continue_final && fields.ok()) {
    if (fields.boolean("add_generation_prompt") == true) {
      fields.fail(
          invalid_value("continue_final_message",
                        "continue_final_message and add_generation_prompt exclude each other"));
    } else if (!last_is_assistant || !out.messages.back().calls.empty()) {
      fields.fail(invalid_value(
          "continue_final_message",
          "continue_final_message needs an assistant message without calls at the end"));
    }
  }
  if (error) return *error;
  return out;
}

namespace {

std::optional<std::vector<int32_t>> read_ids(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& entry : list) {
    const auto id = as_integer(entry);
    if (!id || *id < 0 || *id > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
  }
  if (ids.empty()) return std::nullopt;
  return ids;
}

void read_prompts(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail(missing_field("prompt"));
  } else if (prompt->is_string()) {
    out.prompts.emplace_back(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    if (auto ids = read_ids(*prompt)) out.prompts.emplace_back(std::move(*ids));
  } else if (prompt->is_array() && prompt->size() <= static_cast<size_t>(limits.max_n)) {
    for (const Json& entry : *prompt) {
      if (entry.is_string() && ((*prompt)[0].is_string())) {
        out.prompts.emplace_back(entry.get<std::string>());
      } else if (auto ids =
                     entry.is_array() && (*prompt)[0].is_array() ? read_ids(entry) : std::nullopt) {
        out.prompts.emplace_back(std::move(*ids));
      } else {
        out.prompts.clear();
        break;
      }
    }
  }
  if (out.prompts.empty()) {
    fields.fail(invalid_value(
        "prompt", fmt::format("prompt must be a string, token ids, or a list of at most {} of "
                              "one of them, and not empty",
                              limits.max_n)));
  }
}

}  // namespace

ApiResult<Generation> read_completions(const Json& body, const ApiLimits& limits) {
  Generation out;
  out.endpoint = Endpoint::completions;
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  read_common(fields, limits, out);
  read_format(fields, limits, out);
  read_prompts(fields, limits, out);
  read_count(fields, limits, out);
  if (static_cast<int64_t>(out.prompts.size()) * out.n > limits.max_n) {
    fields.fail(
        invalid_value("n", fmt::format("n times the number of prompts is above {}", limits.max_n)));
  }
  if (const auto logprobs = fields.integer("logprobs", 0, limits.max_top_logprobs)) {
    out.top_logprobs = static_cast<int32_t>(*logprobs);
  }
  out.echo = fields.boolean("echo", false);
  out.add_special = fields.boolean("add_special_tokens", true);
  if (const std::string* suffix = fields.string("suffix")) out.suffix = *suffix;
  out.show_special = !fields.boolean("skip_special_tokens", true);
  const bool ids =
      !out.prompts.empty() && std::holds_alternative<std::vector<int32_t>>(out.prompts[0]);
  if (ids && out.suffix && !out.suffix->empty()) {
    fields.fail(invalid_value("suffix", "suffix needs a prompt of text"));
  }
  if (error) return *error;
  return out;
}

}  // namespace braid::server
