// arguments.cpp -- see arguments.h.
#include "text/answer/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "text/json_text.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 32;
constexpr size_t kMaxTypes = 16;

std::optional<ArgumentType> type_of_name(std::string_view name) {
  if (name == "null") return ArgumentType::null;
  if (name == "boolean") return ArgumentType::boolean;
  if (name == "integer") return ArgumentType::integer;
  if (name == "number") return ArgumentType::number;
  if (name == "string") return ArgumentType::string;
  if (name == "array") return ArgumentType::array;
  if (name == "object") return ArgumentType::object;
  return std::nullopt;
}

ArgumentType type_of_value(const Json& value) {
  if (value.is_null()) return ArgumentType::null;
  if (value.is_boolean()) return ArgumentType::boolean;
  if (value.is_number_integer()) return ArgumentType::integer;
  if (value.is_number()) return ArgumentType::number;
  if (value.is_string()) return ArgumentType::string;
  return value.is_array() ? ArgumentType::array : ArgumentType::object;
}

void add_type(std::vector<ArgumentType>& types, std::optional<ArgumentType> type) {
  if (type && std::find(types.begin(), types.end(), *type) == types.end()) types.push_back(*type);
}

void collect_types(const Json& schema, std::vector<ArgumentType>& out, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth || out.size() >= kMaxTypes) return;
  const size_t before = out.size();
  const auto type = schema.find("type");
  if (type != schema.end() && type->is_string()) {
    add_type(out, type_of_name(type->get_ref<const std::string&>()));
  } else if (type != schema.end() && type->is_array()) {
    for (const Json& name : *type) {
      if (name.is_string()) add_type(out, type_of_name(name.get_ref<const std::string&>()));
    }
  } else if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) add_type(out, type_of_value(value));
  } else if (const auto value = schema.find("const"); value != schema.end()) {
    add_type(out, type_of_value(*value));
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto options = schema.find(key);
    if (options == schema.end() || !options->is_array()) continue;
    for (const Json& option : *options) collect_types(option, out, depth + 1);
  }
  if (out.size() == before && (schema.contains("properties") || schema.contains("$ref"))) {
    add_type(out, ArgumentType::object);
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
}

std::optional<std::string> as_integer(std::string_view text) {
  if (!is_json_number(text)) return std::nullopt;
  if (text.find_first_of(".eE") == std::string_view::npos) return std::string(text);
  // strtod of a checked number: no locale is ever set in this program.
  const double value = std::strtod(std::string(text).c_str(), nullptr);
  if (!std::isfinite(value) || value != std::floor(value) || std::abs(value) >= 9007199254740992.0) {
    return std::nullopt;
  }
  return fmt::format("{}", static_cast<int64_t>(value));
}

std::optional<std::string> as_container(std::string_view text, JsonKind kind) {
  for (const auto& read : {read_json, read_python_literal}) {
    // A tuple alone is no list: parentheses are ordinary in text.
    if (text.starts_with('(')) break;
    auto value = read(text);
    if (value && value->kind == kind) return std::move(value->text);
  }
  return std::nullopt;
}

std::optional<std::string> as_type(std::string_view raw, std::string_view text, ArgumentType type) {
  switch (type) {
    case ArgumentType::null:
      return std::nullopt;  // was looked at first
    case ArgumentType::string:
      return json_string(raw);
    case ArgumentType::integer:
      return as_integer(text);
    case ArgumentType::number:
      return is_json_number(text) ? std::optional(std::string(text)) : std::nullopt;
    case ArgumentType::boolean:
      if (equals_ignoring_case(text, "true")) return "true";
      if (equals_ignoring_case(text, "false")) return "false";
      return std::nullopt;
    case ArgumentType::array:
      return as_container(text, JsonKind::array);
    case ArgumentType::object:
      return as_container(text, JsonKind::object);
  }
  return std::nullopt;
}

}  // namespace

std::vector<ArgumentType> schema_types(const Json& schema) {
  std::vector<ArgumentType> types;
  collect_types(schema, types, 0);
  return types;
}

std::string convert_argument(std::string_view raw, const std::vector<ArgumentType>& types) {
  const std::string_view text = trimmed(raw);
  const bool may_be_null = std::find(types.begin(), types.end(), ArgumentType::null) != types.end();
  if (may_be_null && (text == "null" || text == "None")) return "null";
  for (const ArgumentType type : types) {
    if (auto value = as_type(raw, text, type)) return std::move(*value);
  }
  return json_string(raw);
}

OfferedTools::OfferedTools(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    Properties properties;
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && parameters->is_object() && parameters->contains("properties") &&
        (*parameters)["properties"].is_object()) {
      for (const auto& [name, schema] : (*parameters)["properties"].items()) {
        properties[name] = schema_types(schema);
      }
    }
    tools_.emplace(function["name"].get<std::string>(), std::move(properties));
  }
}

const OfferedTools::Properties* OfferedTools::find(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : &found->second;
}

}  // namespace braid
