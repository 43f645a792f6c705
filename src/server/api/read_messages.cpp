// read_messages.cpp -- Anthropic's messages: JSON to Generation.
#include <fmt/format.h>

#include "server/api/read_request.h"
#include "text/blanks.h"

namespace braid::server {
namespace {

using Role = Message::Role;

// A first system block with accounting data that changes in every request.
constexpr std::string_view kBillingBlock = "x-anthropic-billing-header:";

void unknown_block(const Fields& block, const std::string& type) {
  block.fail(invalid_value(block.path("type"),
                           block.path("type") + " is not known here: " + type.substr(0, 64)));
}

// Blocks of hosted tools, and thoughts that only their vendor can decode.
bool is_foreign_block(std::string_view type) {
  return type == "redacted_thinking" || type == "server_tool_use" || type == "mcp_tool_use" ||
         type == "container_upload" || type == "compaction" || type.ends_with("_tool_result");
}

std::string read_document(const Fields& block, const ApiLimits& limits);
std::string read_search_result(const Fields& block, const ApiLimits& limits);

// A string, or blocks of which the text is used.
std::string read_text_blocks(const Fields& fields, const char* name, const ApiLimits& limits,
                             bool system) {
  const Json* content = fields.find(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    fields.fail(invalid_type(fields.path(name),
                             fields.path(name) + " must be a string or an array of blocks"));
    return {};
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Fields block = element_of(fields, *content, name, i);
    const std::string type = block.string("type", "text");
    if (type == "text") {
      const std::string part = block.string("text", "");
      if (!(system && part.starts_with(kBillingBlock))) join_text(text, part);
    } else if (type == "image") {
      join_text(text, media_text(block, "image", limits));
    } else if (type == "search_result") {
      join_text(text, read_search_result(block, limits));
    } else if (type == "document") {
      join_text(text, read_document(block, limits));
    } else if (type == "tool_reference") {
      join_text(text, block.string("tool_name", ""));
    } else {
      unknown_block(block, type);
    }
  }
  return text;
}

std::string read_search_result(const Fields& block, const ApiLimits& limits) {
  std::string text = block.string("title", "");
  join_text(text, block.string("source", ""));
  join_text(text, read_text_blocks(block, "content", limits, false));
  return text;
}

std::string read_document(const Fields& block, const ApiLimits& limits) {
  const Json* source = block.object("source");
  if (source == nullptr) return {};
  const Fields inner(*source, block.path("source"), block.error());
  const std::string type = inner.string("type", "");
  if (type == "text") return inner.string("data", "");
  if (type == "content") return read_text_blocks(inner, "content", limits, false);
  return media_text(block, "document", limits);
}

void read_thinking_block(const Fields& block, Message& message) {
  std::string text = block.string("thinking", "");
  if (text.empty()) text = read_opaque(block.string("signature", "")).value_or("");
  if (!message.reasoning) message.reasoning.emplace();
  join_text(*message.reasoning, text);
}

void read_tool_result(const Fields& block, const ApiLimits& limits, Generation& out) {
  Message result;
  result.role = Role::tool;
  result.call_id = block.string("tool_use_id", "");
  result.text = read_text_blocks(block, "content", limits, false);
  if (result.text.empty() && block.boolean("is_error", false)) result.text = "error";
  out.messages.push_back(std::move(result));
}

// Tool results become turns before the user's text. Without usable blocks, an empty turn.
void read_blocks(const Fields& fields, const Json& content, Role role, const ApiLimits& limits,
                 Generation& out) {
  Message message;
  message.role = role;
  bool said = false;
  const size_t turns = out.messages.size();
  for (size_t i = 0; i < content.size(); ++i) {
    const Fields block = element_of(fields, content, "content", i);
    if (!content[i].is_object()) {
      fields.fail(invalid_type(block.path(), block.path() + " must be an object"));
      return;
    }
    const std::string type = block.string("type", "text");
    if (type == "text") {
      join_text(message.text, block.string("text", ""));
      said = true;
    } else if (type == "image") {
      join_text(message.text, media_text(block, "image", limits));
      said = true;
    } else if (type == "document") {
      join_text(message.text, read_document(block, limits));
      said = true;
    } else if (type == "tool_use" && role == Role::assistant) {
      const Json* input = block.object("input");
      message.calls.push_back({block.string("id", ""), block.string("name", ""),
                               input != nullptr ? *input : Json::object()});
    } else if (type == "tool_result" && role == Role::user) {
      read_tool_result(block, limits, out);
    } else if (type == "thinking" && role == Role::assistant) {
      read_thinking_block(block, message);
    } else if (type == "search_result") {
      join_text(message.text, read_search_result(block, limits));
      said = true;
    } else if (!is_foreign_block(type)) {
      unknown_block(block, type);
    }
  }
  if (said || role == Role::assistant || out.messages.size() == turns) {
    out.messages.push_back(std::move(message));
  }
}

void read_messages_turn(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const std::string* name = fields.string("role");
  if (name == nullptr) {
    fields.fail(missing_field(fields.path("role")));
    return;
  }
  Role role = Role::user;
  if (*name == "assistant") {
    role = Role::assistant;
  } else if (*name == "system") {
    role = Role::system;
  } else if (*name != "user") {
    fields.fail(invalid_value(fields.path("role"),
                              fields.path("role") + " is not known: " + name->substr(0, 64)));
    return;
  }
  const Json* content = fields.find("content");
  if (content == nullptr) {
    fields.fail(missing_field(fields.path("content")));
  } else if (content->is_string()) {
    out.messages.push_back({.role = role, .text = content->get<std::string>()});
  } else if (content->is_array()) {
    read_blocks(fields, *content, role, limits, out);
  } else {
    fields.fail(invalid_type(fields.path("content"),
                             fields.path("content") + " must be a string or an array of blocks"));
  }
}

void read_messages_tools(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const Json* tools = fields.array("tools", limits.max_tools);
  ToolList list(limits, out);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Fields tool = element_of(fields, *tools, "tools", i);
    if (tool.string("type", "custom") != "custom") continue;  // hosted elsewhere
    list.add(tool, tool.object("input_schema"), tool.string("description"),
             {"", tool.string("name", ""), false});
  }
}

void read_messages_choice(const Fields& fields, Generation& out) {
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  const Fields inner(*choice, "tool_choice", fields.error());
  const std::string type = inner.string("type", "auto");
  if (inner.boolean("disable_parallel_tool_use", false)) out.parallel_calls = false;
  if (type == "tool") {
    out.tool_choice.mode = ToolChoice::Mode::required;
    choose_tool(fields, inner.string("name", ""), out);
  } else if (!choose_mode(type, out)) {
    fields.fail(
        invalid_value("tool_choice.type", "tool_choice.type must be auto, any, tool or none"));
  }
  check_choice(fields, out);
}

void read_messages_format(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const auto read = [&](const Fields& from, const char* name) {
    const Json* format = from.object(name);
    if (format == nullptr) return;
    const Fields inner(*format, from.path(name), fields.error());
    const std::string type = inner.string("type", "json_schema");
    if (type == "json_schema") {
      read_schema(inner, "schema", limits, out);
    } else if (type != "text") {
      inner.fail(invalid_value(inner.path("type"), inner.path("type") + " must be json_schema"));
    }
  };
  read(fields, "output_format");
  if (const Json* config = fields.object("output_config")) {
    read(Fields(*config, "output_config", fields.error()), "format");
  }
}

void read_context_edits(const Fields& fields, Generation& out) {
  const Json* management = fields.object("context_management");
  if (management == nullptr) return;
  const Fields inner(*management, "context_management", fields.error());
  const Json* edits = inner.array("edits", 64);
  for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    const Json& edit = (*edits)[i];
    if (edit.is_object() && edit.value("type", Json()) == "clear_thinking_20251015" &&
        edit.value("keep", Json()) == "all") {
      out.keep_thinking = true;
    }
  }
}

}  // namespace

ApiResult<Generation> read_messages(const Json& body, const ApiLimits& limits, bool counting) {
  Generation out;
  out.endpoint = Endpoint::messages;
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  if (!counting && !fields.has("max_tokens")) return missing_field("max_tokens");
  read_common(fields, limits, out);
  if (!out.reasoning.think) out.reasoning.think = false;  // Anthropic: absent means off
  read_thinking(fields, out);
  read_messages_tools(fields, limits, out);
  read_messages_choice(fields, out);
  read_messages_format(fields, limits, out);
  read_context_edits(fields, out);

  const Json* messages = fields.array("messages", limits.max_messages);
  if (messages == nullptr || messages->empty()) fields.fail(missing_field("messages"));
  const std::string system = read_text_blocks(fields, "system", limits, true);
  if (!system.empty()) out.messages.push_back({.role = Role::system, .text = system});
  for (size_t i = 0; fields.ok() && i < messages->size(); ++i) {
    const Fields message = element_of(fields, *messages, "messages", i);
    if (!(*messages)[i].is_object()) {
      fields.fail(invalid_type(message.path(), message.path() + " must be an object"));
      break;
    }
    read_messages_turn(message, limits, out);
  }
  if (error) return *error;
  // A trailing assistant message is the beginning of the answer.
  if (!out.messages.empty() && out.messages.back().role == Role::assistant &&
      out.messages.back().calls.empty()) {
    out.continue_final = true;
    std::string& text = out.messages.back().text;
    text.erase(trimmed_end(text).size());
  }
  return out;
}

}  // namespace braid::server
