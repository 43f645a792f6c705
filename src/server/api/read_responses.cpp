// read_responses.cpp -- OpenAI's responses: JSON to Generation.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "server/api/json_memory.h"
#include "server/api/read_request.h"

namespace braid::server {
namespace {

using Role = Message::Role;

std::string read_parts(const Fields& item, const char* name, const ApiLimits& limits) {
  const Json* content = item.find(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    item.fail(
        invalid_type(item.path(name), item.path(name) + " must be a string or an array of parts"));
    return {};
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Fields part = element_of(item, *content, name, i);
    const std::string type = part.string("type", "input_text");
    if (type == "input_text" || type == "output_text" || type == "text" ||
        type == "reasoning_text" || type == "summary_text") {
      join_text(text, part.string("text", ""));
    } else if (type == "refusal") {
      join_text(text, part.string("refusal", ""));
    } else if (type == "input_image") {
      join_text(text, media_text(part, "image", limits));
    } else if (type == "input_audio") {
      join_text(text, media_text(part, "audio", limits));
    } else if (type == "input_file") {
      join_text(text, media_text(part, "file", limits));
    } else {
      part.fail(invalid_value(part.path("type"),
                              part.path("type") + " is not known: " + type.substr(0, 64)));
    }
  }
  return text;
}

// Items that hosted tools leave in a history. They have no text for the model.
bool is_foreign_item(std::string_view type) {
  constexpr std::string_view kTypes[] = {"web_search_call",
                                         "file_search_call",
                                         "image_generation_call",
                                         "code_interpreter_call",
                                         "computer_call",
                                         "local_shell_call",
                                         "shell_call",
                                         "apply_patch_call",
                                         "mcp_call",
                                         "mcp_list_tools",
                                         "mcp_approval_request",
                                         "mcp_approval_response",
                                         "compaction",
                                         "compaction_summary",
                                         "context_compaction",
                                         "compaction_trigger"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

// Hosted tools. Agents list them and work without them.
bool is_hosted(std::string_view type) {
  constexpr std::string_view kTypes[] = {
      "web_search", "file_search", "computer", "code_interpreter", "image_generation",
      "mcp",        "local_shell", "shell",    "apply_patch"};
  return std::any_of(std::begin(kTypes), std::end(kTypes),
                     [&](std::string_view kind) { return type.starts_with(kind); });
}

// Consecutive reasoning, text and calls become one assistant turn.
class Items {
 public:
  Items(const ApiLimits& limits, Generation& out) : limits_(limits), out_(out) {}

  void read(const Fields& item) {
    const std::string type = item.string("type", item.has("role") ? "message" : "");
    if (type == "message") {
      read_message(item);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else if (type == "function_call" || type == "custom_tool_call") {
      read_call(item, type == "custom_tool_call");
    } else if (type == "item_reference") {
      item.fail(unsupported(item.path("type"),
                            item.path("type") +
                                " is item_reference, but responses are not stored by this server; "
                                "clients send whole items with store set to false"));
    } else if (type.starts_with("tool_search")) {
      item.fail(
          unsupported(item.path("type"),
                      item.path("type") + ": tools cannot be searched for; send all of them"));
    } else if (type.ends_with("_output")) {
      read_output(item, type);
    } else if (type != "additional_tools" && !is_foreign_item(type)) {
      item.fail(invalid_value(item.path("type"),
                              item.path("type") + " is not known: " + type.substr(0, 64)));
    }
  }

  // Adds empty results for calls without one, so that each call has a result.
  void finish() {
    Messages with_results;
    for (size_t i = 0; i < out_.messages.size(); ++i) {
      Messages missing;
      for (const ToolCall& call : out_.messages[i].calls) {
        if (!answered_.contains(call.id)) {
          missing.push_back({.role = Role::tool, .call_id = call.id, .name = call.name});
        }
      }
      with_results.push_back(std::move(out_.messages[i]));
      std::move(missing.begin(), missing.end(), std::back_inserter(with_results));
    }
    out_.messages = std::move(with_results);
  }

 private:
  Message& assistant() {
    if (out_.messages.empty() || out_.messages.back().role != Role::assistant) {
      out_.messages.push_back({.role = Role::assistant});
    }
    return out_.messages.back();
  }

  void read_message(const Fields& item) {
    const std::string role = item.string("role", "");
    const std::string text = read_parts(item, "content", limits_);
    if (role == "assistant") {
      join_text(assistant().text, text);
    } else if (role == "user") {
      if (!item.has("content")) item.fail(missing_field(item.path("content")));
      out_.messages.push_back({.role = Role::user, .text = text});
    } else if (role == "system" || role == "developer") {
      out_.messages.push_back({.role = Role::system, .text = text});
    } else {
      item.fail(invalid_value(item.path("role"),
                              item.path("role") + " is not known: " + role.substr(0, 64)));
    }
  }

  void read_reasoning(const Fields& item) {
    std::string text = read_parts(item, "content", limits_);
    if (text.empty()) text = read_opaque(item.string("encrypted_content", "")).value_or("");
    if (text.empty()) text = read_parts(item, "summary", limits_);
    auto& reasoning = assistant().reasoning;
    if (!reasoning) {
      reasoning = std::move(text);
    } else if (!text.empty()) {
      *reasoning += "\n\n" + text;
    }
  }

  void read_call(const Fields& item, bool custom) {
    const std::string name = item.string("name", "");
    const std::string flat = flat_name(out_, name, item.string("namespace", "")).value_or(name);
    Json arguments = custom ? Json{{"input", item.string("input", "")}}
                            : read_arguments(item, "arguments", texts_);
    const std::string id = item.string("call_id", "");
    assistant().calls.push_back({id, flat, std::move(arguments)});
    known_.insert(id);
  }

  void read_output(const Fields& item, const std::string& type) {
    const std::string id = item.string("call_id", "");
    const bool ours = type == "function_call_output" || type == "custom_tool_call_output";
    if (!ours && !known_.contains(id)) return;
    answered_.insert(id);
    out_.messages.push_back(
        {.role = Role::tool, .text = read_parts(item, "output", limits_), .call_id = id});
  }

  const ApiLimits& limits_;
  Generation& out_;
  JsonBudget texts_ = request_budget();
  std::set<std::string> known_, answered_;
};

void read_input(const Fields& fields, const ApiLimits& limits, Generation& out) {
  if (const std::string* instructions = fields.string("instructions")) {
    out.messages.push_back({.role = Role::system, .text = *instructions});
  }
  const Json* input = fields.find("input");
  if (input == nullptr) {
    fields.fail(missing_field("input"));
  } else if (input->is_string()) {
    out.messages.push_back({.role = Role::user, .text = input->get<std::string>()});
  } else if (!input->is_array()) {
    fields.fail(invalid_type("input", "input must be a string or an array of items"));
  } else if (const Json* list = fields.array("input", limits.max_messages)) {
    Items items(limits, out);
    for (size_t i = 0; fields.ok() && i < list->size(); ++i) {
      if (!(*list)[i].is_object()) {
        fields.fail(invalid_type(Fields::element("input", i),
                                 Fields::element("input", i) + " must be an object"));
        return;
      }
      items.read(element_of(fields, *list, "input", i));
    }
    items.finish();
  }
}

void read_tool(const Fields& tool, const std::string& name_space, const ApiLimits& limits,
               ToolList& list) {
  const std::string type = tool.string("type", "function");
  ToolIdentity identity{name_space, tool.string("name", ""), false};
  if (type == "function") {
    list.add(tool, tool.object("parameters"), tool.string("description"), std::move(identity));
  } else if (type == "custom") {
    list.add_custom(tool, std::move(identity));
  } else if (type == "namespace" && name_space.empty()) {
    if (!check_namespace(tool, identity.name, limits)) return;
    const Json* inner = tool.array("tools", limits.max_tools);
    for (size_t i = 0; inner != nullptr && tool.ok() && i < inner->size(); ++i) {
      read_tool(element_of(tool, *inner, "tools", i), identity.name, limits, list);
    }
  } else if (type == "tool_search") {
    tool.fail(unsupported(tool.path("type"),
                          tool.path("type") + ": tools cannot be searched for; send all of them"));
  } else if (!is_hosted(type)) {
    tool.fail(invalid_value(tool.path("type"),
                            tool.path("type") + " is not known: " + type.substr(0, 64)));
  }
}

void read_responses_tools(const Fields& fields, const ApiLimits& limits, Generation& out) {
  ToolList list(limits, out);
  const auto add = [&](const Fields& holder) {
    const Json* tools = holder.array("tools", limits.max_tools);
    for (size_t i = 0; tools != nullptr && holder.ok() && i < tools->size(); ++i) {
      read_tool(element_of(holder, *tools, "tools", i), "", limits, list);
    }
  };
  add(fields);
  const Json* input = fields.find("input");
  for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
    const Fields item = element_of(fields, *input, "input", i);
    const Json* type = item.find("type");
    if (type != nullptr && *type == "additional_tools") add(item);
  }
}

void read_responses_choice(const Fields& fields, Generation& out) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    if (!choose_mode(choice->get_ref<const std::string&>(), out)) {
      fields.fail(
          invalid_value("tool_choice", "tool_choice must be auto, none, required or name a tool"));
    }
  } else if (choice->is_object()) {
    const Fields inner(*choice, "tool_choice", fields.error());
    const std::string type = inner.string("type", "function");
    if (type == "function" || type == "custom") {
      out.tool_choice.mode = ToolChoice::Mode::required;
      choose_tool(fields, inner.string("name", ""), out);
    } else if (type == "allowed_tools") {
      choose_allowed(inner, out);
    } else {
      inner.fail(unsupported(inner.path("type"),
                             inner.path("type") + " must be function, custom or allowed_tools"));
    }
  } else {
    fields.fail(invalid_type("tool_choice", "tool_choice must be a string or an object"));
  }
  check_choice(fields, out);
}

void read_text_format(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  const Json* format = Fields(*text, "text", fields.error()).object("format");
  if (format == nullptr) return;
  const Fields inner(*format, "text.format", fields.error());
  const std::string type = inner.string("type", "text");
  if (type == "json_schema") {
    read_schema(inner, "schema", limits, out);
  } else if (type == "json_object") {
    read_any_object(fields, inner.path(), out);
  } else if (type != "text") {
    inner.fail(invalid_value("text.format.type",
                             "text.format.type must be text, json_object or json_schema"));
  }
}

// OpenAI's limits: pairs, bytes of a name, bytes of a value.
constexpr size_t kMaxMetadata = 16, kMaxMetadataName = 64, kMaxMetadataValue = 512;

void check_metadata(const Fields& fields) {
  const Json* metadata = fields.object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMaxMetadata) {
    fields.fail(
        invalid_value("metadata", fmt::format("metadata has {} pairs, at most {} are accepted",
                                              metadata->size(), kMaxMetadata)));
  }
  for (const auto& [name, value] : metadata->items()) {
    const std::string path = "metadata." + name.substr(0, kMaxMetadataName);
    if (name.size() > kMaxMetadataName) {
      fields.fail(
          invalid_value(path, fmt::format("metadata: a name has {} bytes, at most {} are accepted",
                                          name.size(), kMaxMetadataName)));
    } else if (!value.is_string()) {
      fields.fail(invalid_type(path, path + " must be a string"));
    } else if (const size_t bytes = value.get_ref<const std::string&>().size();
               bytes > kMaxMetadataValue) {
      fields.fail(invalid_value(path, fmt::format("{} has {} bytes, at most {} are accepted", path,
                                                  bytes, kMaxMetadataValue)));
    }
  }
}

// Repeated in each event with the whole answer, and therefore bounded.
Json echoed(const Fields& fields, const ApiLimits& limits) {
  const Json& body = fields.json();
  Json echo = Json::object();
  for (const char* name : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
                           "temperature", "text", "tool_choice", "top_logprobs", "top_p"}) {
    if (const auto found = body.find(name); found != body.end() && !found->is_null())
      echo[name] = *found;
  }
  const size_t most = 2 * limits.max_schema_bytes;
  for (const char* name : {"text", "tool_choice"}) {
    const auto found = echo.find(name);
    if (found == echo.end() || !(found->is_structured() || found->is_string())) continue;
    if (const size_t bytes = json_bytes(*found); bytes > 8 * most || found->dump().size() > most) {
      fields.fail(invalid_value(name, fmt::format("{} has more than {} bytes", name, most)));
    }
  }
  if (const auto reasoning = body.find("reasoning");
      reasoning != body.end() && reasoning->is_object()) {
    for (const char* name : {"effort", "summary"}) {
      const auto found = reasoning->find(name);
      if (found != reasoning->end() && found->is_string()) {
        echo["reasoning"][name] = found->get_ref<const std::string&>().substr(0, kMaxMetadataName);
      }
    }
  }
  return echo;
}

}  // namespace

ApiResult<Generation> read_responses(const Json& body, const ApiLimits& limits) {
  Generation out;
  out.endpoint = Endpoint::responses;
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.has(name))
      return unsupported(name, std::string(name) + ": responses are not stored by this server");
  }
  if (fields.boolean("background", false)) {
    return unsupported("background", "background: responses are not stored by this server");
  }
  read_common(fields, limits, out);
  read_responses_tools(fields, limits, out);
  read_responses_choice(fields, out);
  read_text_format(fields, limits, out);
  if (const Json* include = fields.array("include", 64)) {
    for (const Json& member : *include) {
      if (member == "reasoning.encrypted_content") out.include_encrypted = true;
      if (member == "message.output_text.logprobs") out.top_logprobs = 0;
    }
  }
  if (const auto top = fields.integer("top_logprobs", 0, limits.max_top_logprobs);
      top && (*top > 0 || out.top_logprobs >= 0)) {
    out.top_logprobs = static_cast<int32_t>(*top);
  }
  read_input(fields, limits, out);
  check_metadata(fields);
  if (!error) out.echo_fields = echoed(fields, limits);
  if (error) return *error;
  return out;
}

}  // namespace braid::server
