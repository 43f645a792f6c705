// json_memory.cpp -- see json_memory.h.
#include "server/api/json_memory.h"

#include <algorithm>

namespace braid::server {

namespace {

using Member = Json::object_t::value_type;

// Arrays and objects grow by doubling, and old and new storage exist at the same time.
constexpr size_t kGrowth = 3;
// Overhead of a std::map node.
constexpr size_t kNodeBytes = 32;

template <typename T>
size_t vector_bytes(const std::vector<T>& list) {
  return block_bytes(list.capacity() * sizeof(T));
}

size_t message_bytes(const Message& message) {
  size_t bytes =
      string_bytes(message.text) + string_bytes(message.call_id) + string_bytes(message.name);
  if (message.reasoning) bytes += string_bytes(*message.reasoning);
  bytes += vector_bytes(message.calls);
  for (const ToolCall& call : message.calls) {
    bytes += string_bytes(call.id) + string_bytes(call.name) + json_bytes(call.arguments);
  }
  return bytes;
}

size_t prompt_bytes(const PromptInput& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return string_bytes(*text);
  return vector_bytes(std::get<std::vector<int32_t>>(prompt));
}

}  // namespace

size_t block_bytes(size_t bytes) {
  return bytes == 0 ? 0 : std::max<size_t>(32, (bytes + 8 + 15) & ~size_t{15});
}

size_t string_bytes(const std::string& text) {
  return text.capacity() < sizeof(std::string) / 2 ? 0 : block_bytes(text.capacity() + 1);
}

size_t json_bytes(const Json& value) {
  size_t bytes = 0;
  if (value.is_string()) {
    bytes = block_bytes(sizeof(std::string)) + string_bytes(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    const auto& list = value.get_ref<const Json::array_t&>();
    bytes = block_bytes(sizeof(list)) + block_bytes(list.capacity() * sizeof(Json));
    for (const Json& element : list) bytes += json_bytes(element);
  } else if (value.is_object()) {
    const auto& object = value.get_ref<const Json::object_t&>();
    bytes = block_bytes(sizeof(object)) + block_bytes(object.capacity() * sizeof(Member));
    for (const auto& [key, member] : object) bytes += string_bytes(key) + json_bytes(member);
  }
  return bytes;
}

size_t json_bytes_bound(std::string_view text) {
  size_t quotes = 0, colons = 0, commas = 0, opened = 0;
  bool in_string = false, escapes = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      in_string = !in_string;
      ++quotes;
    } else if (in_string) {
      if (c != '\\') continue;
      ++i;
      escapes = true;
    } else if (c == ':') {
      ++colons;
    } else if (c == ',') {
      ++commas;
    } else if (c == '[' || c == '{') {
      ++opened;
    }
  }
  // A value is the first of its container or follows a comma. A string may need two blocks and,
  // while it doubles, twice its bytes. Repairing escapes may copy the text.
  const size_t values = 1 + commas + opened, strings = (quotes + 1) / 2;
  return values * kGrowth * sizeof(Json) + colons * kGrowth * (sizeof(Member) - sizeof(Json)) +
         opened * (block_bytes(sizeof(Json::object_t)) + 32) +
         strings * (block_bytes(sizeof(std::string)) + 32) + (escapes ? 3 : 2) * text.size();
}

size_t generation_bytes(const Generation& generation) {
  size_t bytes =
      sizeof(Generation) + string_bytes(generation.model) + string_bytes(generation.cache_salt);
  bytes += vector_bytes(generation.messages);
  for (const Message& message : generation.messages) bytes += message_bytes(message);
  bytes += json_bytes(generation.tools) + json_bytes(generation.template_variables);
  for (const auto& [flat, identity] : generation.identities) {
    bytes += block_bytes(kNodeBytes + sizeof(flat) + sizeof(identity)) + string_bytes(flat) +
             string_bytes(identity.name_space) + string_bytes(identity.name);
  }
  for (const auto& [wire, flat] : generation.flat_names) {
    bytes += block_bytes(kNodeBytes + sizeof(wire) + sizeof(flat)) + string_bytes(wire.first) +
             string_bytes(wire.second) + string_bytes(flat);
  }
  for (const std::string& name : generation.strict_tools) {
    bytes += block_bytes(kNodeBytes + sizeof(name)) + string_bytes(name);
  }
  bytes += vector_bytes(generation.prompts);
  for (const PromptInput& prompt : generation.prompts) bytes += prompt_bytes(prompt);
  if (generation.suffix) bytes += string_bytes(*generation.suffix);
  const auto add_texts = [&bytes](const auto& texts) {
    for (const std::string& text : texts) {
      bytes += block_bytes(kNodeBytes + sizeof(text)) + string_bytes(text);
    }
  };
  add_texts(generation.tool_choice.names);
  add_texts(generation.stops);
  add_texts(generation.format.choices);
  bytes += vector_bytes(generation.stop_token_ids) + vector_bytes(generation.sampling.logit_bias);
  bytes += vector_bytes(generation.sampling.logit_bias_texts);
  for (const auto& [text, bias] : generation.sampling.logit_bias_texts) bytes += string_bytes(text);
  bytes += json_bytes(generation.format.schema);
  // Counted three times: also in the writer's document and in the bytes of an event.
  return bytes + 3 * json_bytes(generation.echo_fields);
}

}  // namespace braid::server
