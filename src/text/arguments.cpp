// arguments.cpp -- see arguments.h.
#include "text/arguments.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "text/blanks.h"
#include "text/json_text.h"
#include "text/schema_references.h"

namespace braid {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr int64_t kMaxSchemaSteps = 400'000;
constexpr int64_t kMaxWholeDigits = 64;  // of a number with a point or an exponent

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == b;
  });
}

bool is_whole_number(std::string_view text) {
  return is_json_number(text) && text.find_first_of(".eE") == std::string_view::npos;
}

// The integer spelling of a number with a whole value.
std::optional<std::string> as_integer(std::string_view text) {
  if (!is_json_number(text)) return std::nullopt;
  const size_t mark = text.find_first_of(".eE");
  if (mark == std::string_view::npos) return std::string(text);
  const size_t exponent_at = text.find_first_of("eE");
  const std::string_view mantissa = text.substr(0, exponent_at);
  int64_t shift = 0;  // of the point, to the right
  if (exponent_at != std::string_view::npos) {
    std::string_view exponent = text.substr(exponent_at + 1);
    const bool negative = exponent[0] == '-';
    if (negative || exponent[0] == '+') exponent.remove_prefix(1);
    for (const char c : exponent)
      shift = std::min<int64_t>(shift * 10 + (c - '0'), kMaxWholeDigits * 2);
    if (negative) shift = -shift;
  }
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::string_view sign = mantissa.starts_with('-') ? "-" : "";
  std::string digits(mantissa.substr(sign.size(), point - sign.size()));
  if (point < mantissa.size()) {
    digits += mantissa.substr(point + 1);
    shift -= static_cast<int64_t>(mantissa.size() - point - 1);
  }
  for (; shift < 0 && digits.ends_with('0'); ++shift) digits.pop_back();
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return "0";
  if (shift < 0 || static_cast<int64_t>(digits.size()) + shift > kMaxWholeDigits)
    return std::nullopt;
  return std::string(sign) + digits + std::string(static_cast<size_t>(shift), '0');
}

std::optional<std::string> as_container(std::string_view text, JsonKind kind) {
  for (const auto& read : {read_json, read_python_literal}) {
    // A tuple alone is not a list: parentheses are ordinary text.
    if (text.starts_with('(')) break;
    auto value = read(text);
    if (value && value->kind == kind) return std::move(value->text);
  }
  return std::nullopt;
}

std::optional<std::string> as_boolean(std::string_view text) {
  if (equals_ignoring_case(text, "true")) return "true";
  if (equals_ignoring_case(text, "false")) return "false";
  return std::nullopt;
}

}  // namespace

std::optional<ArgumentType> argument_type_of(std::string_view name) {
  using Type = ArgumentType;
  static const std::map<std::string_view, Type> kNames = {
      {"null", Type::null},         {"none", Type::null},      {"nil", Type::null},
      {"boolean", Type::boolean},   {"bool", Type::boolean},   {"integer", Type::integer},
      {"int", Type::integer},       {"int32", Type::integer},  {"int64", Type::integer},
      {"uint", Type::integer},      {"uint32", Type::integer}, {"uint64", Type::integer},
      {"long", Type::integer},      {"short", Type::integer},  {"byte", Type::integer},
      {"bigint", Type::integer},    {"number", Type::number},  {"float", Type::number},
      {"float32", Type::number},    {"float64", Type::number}, {"double", Type::number},
      {"decimal", Type::number},    {"numeric", Type::number}, {"real", Type::number},
      {"string", Type::string},     {"str", Type::string},     {"text", Type::string},
      {"char", Type::string},       {"varchar", Type::string}, {"array", Type::array},
      {"list", Type::array},        {"tuple", Type::array},    {"set", Type::array},
      {"sequence", Type::array},    {"object", Type::object},  {"dict", Type::object},
      {"dictionary", Type::object}, {"map", Type::object},     {"mapping", Type::object},
      {"struct", Type::object},     {"record", Type::object}};
  std::string lower(name.substr(0, 16));
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // list[int], List<string>, dict[str, int]
  const size_t inner = lower.find_first_of("[<(");
  const auto found = kNames.find(std::string_view(lower).substr(0, inner));
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

bool ArgumentTypes::may_be_json(char first) const {
  if (values_ != nullptr) return true;
  const auto may = [&](ArgumentType type) { return stated_ && admits(type); };
  switch (first) {
    case '{':
      return admits(ArgumentType::object);
    case '[':
      return admits(ArgumentType::array);
    case 't':
    case 'T':
    case 'f':
    case 'F':
      return may(ArgumentType::boolean);
    case 'n':
    case 'N':
      return may(ArgumentType::null);
    default:
      return (first == '-' || (first >= '0' && first <= '9')) &&
             (may(ArgumentType::integer) || may(ArgumentType::number));
  }
}

// If only JSON is possible, similar spellings are accepted too.
std::optional<std::string> ArgumentTypes::as_json(std::string_view text) const {
  if (admits(ArgumentType::boolean)) {
    if (auto value = as_boolean(text)) return value;
  }
  if (admits(ArgumentType::number) && is_json_number(text)) return std::string(text);
  if (admits(ArgumentType::integer)) {
    if (auto value = as_integer(text)) return value;
  }
  if (admits(ArgumentType::array)) {
    if (auto value = as_container(text, JsonKind::array)) return value;
  }
  if (admits(ArgumentType::object)) {
    if (auto value = as_container(text, JsonKind::object)) return value;
  }
  return std::nullopt;
}

std::optional<std::string> ArgumentTypes::as_exact_json(std::string_view text) const {
  if (text.empty() || !may_be_json(text[0])) return std::nullopt;
  if (text[0] == '{' || text[0] == '[') {
    const ArgumentType type = text[0] == '{' ? ArgumentType::object : ArgumentType::array;
    auto value = admits(type) ? read_json(text) : std::nullopt;
    return value ? std::optional(std::move(value->text)) : std::nullopt;
  }
  if (!stated_) return std::nullopt;
  if (admits(ArgumentType::boolean)) {
    if (text == "true" || text == "True") return "true";
    if (text == "false" || text == "False") return "false";
  }
  const bool number = admits(ArgumentType::number) && is_json_number(text) &&
                      text.find_first_of("eE") == std::string_view::npos;
  if (number || (admits(ArgumentType::integer) && is_whole_number(text))) return std::string(text);
  return std::nullopt;
}

std::string ArgumentTypes::convert(std::string_view raw) const {
  const std::string_view text = trimmed(raw, kAsciiBlanks);
  const auto listed = [&](std::string_view given) -> const Value* {
    if (values_ == nullptr) return nullptr;
    const auto found = std::find_if(values_->begin(), values_->end(),
                                    [&](const Value& value) { return value.text == given; });
    return found == values_->end() ? nullptr : &*found;
  };
  for (const std::string_view given : {raw, text}) {
    if (const Value* value = listed(given)) return value->json;
  }
  if (stated_ && admits(ArgumentType::null) && (text == "null" || text == "None")) return "null";
  if (auto value = is_text() ? as_exact_json(raw) : as_json(text)) return std::move(*value);
  // Quotes around a value that is not text.
  if (values_ != nullptr || !is_text()) {
    if (const auto quoted = read_json(text); quoted && quoted->kind == JsonKind::string) {
      if (const Value* value = listed(quoted->string)) return value->json;
      if (is_text()) return json_string(raw);
      auto value = as_json(trimmed(quoted->string, kAsciiBlanks));
      return value ? std::move(*value) : quoted->text;
    }
  }
  return json_string(raw);
}

class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& root) : references_(root) {}

  ArgumentTypes types(const Json& schema, int depth);
  ToolParameters parameters(const Json& schema, int depth);

 private:
  using Value = ArgumentTypes::Value;
  using Parameter = ToolParameters::Parameter;

  bool spend(int64_t steps) { return (steps_ += steps) + references_.steps() <= kMaxSchemaSteps; }
  const Json* target(const Json& schema);
  static uint8_t named(const Json& type);
  ArgumentTypes listed(const Json& values);
  static uint8_t type_of(const Value& value);
  static void narrow(ArgumentTypes& types, const ArgumentTypes& by);
  static void widen(ArgumentTypes& types, const ArgumentTypes& by);
  void own_parameters(const Json& schema, int depth, ToolParameters& out);
  void add_other(const Json& schema, int depth, ToolParameters& out);
  // `all`: both hold; else one of them.
  void join(ToolParameters& out, ToolParameters more, bool all);

  SchemaReferences references_;
  int64_t steps_ = 0;
};

const Json* SchemaTypes::target(const Json& schema) {
  const auto reference = schema.find("$ref");
  if (reference != schema.end()) return references_.target(schema, *reference);
  for (const char* key : {"$dynamicRef", "$recursiveRef"}) {
    if (const auto found = schema.find(key); found != schema.end())
      return references_.dynamic_target(schema, *found);
  }
  return nullptr;
}

uint8_t SchemaTypes::named(const Json& type) {
  if (!type.is_string()) return 0;
  const auto known = argument_type_of(type.get_ref<const std::string&>());
  if (!known) return 0;
  const uint8_t set = ArgumentTypes::only(*known);
  return *known == ArgumentType::number ? set | ArgumentTypes::only(ArgumentType::integer) : set;
}

ArgumentTypes SchemaTypes::listed(const Json& values) {
  ArgumentTypes out;
  if (!spend(static_cast<int64_t>(values.size()))) return out;
  out.set_ = 0;
  out.stated_ = true;
  auto list = std::make_shared<std::vector<Value>>();
  for (const Json& value : values) {
    std::string json = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!spend(static_cast<int64_t>(json.size()) / 8)) return {};
    std::string text = value.is_string() ? value.get<std::string>() : json;
    list->push_back({std::move(text), std::move(json)});
    out.set_ |= type_of(list->back());
  }
  out.values_ = std::move(list);
  return out;
}

// Type of a listed value. 1.0 is an integer in JSON Schema.
uint8_t SchemaTypes::type_of(const Value& value) {
  using Type = ArgumentType;
  switch (value.json[0]) {
    case '"':
      return ArgumentTypes::only(Type::string);
    case '[':
      return ArgumentTypes::only(Type::array);
    case '{':
      return ArgumentTypes::only(Type::object);
    case 't':
    case 'f':
      return ArgumentTypes::only(Type::boolean);
    case 'n':
      return ArgumentTypes::only(Type::null);
    default:
      return ArgumentTypes::only(as_integer(value.json) ? Type::integer : Type::number);
  }
}

// Both hold. Listed values must be in both lists, or fit the other's types.
void SchemaTypes::narrow(ArgumentTypes& types, const ArgumentTypes& by) {
  if (!by.stated_) return;
  if (!types.stated_) {
    types = by;
    return;
  }
  const uint8_t both = types.set_ & by.set_;
  types.nothing_ = types.nothing_ || by.nothing_ || both == 0;
  const auto list = types.values_ != nullptr ? types.values_ : by.values_;
  const auto other = types.values_ != nullptr ? by.values_ : nullptr;
  if (list == nullptr || (other == nullptr && list == types.values_ && (types.set_ & ~both) == 0)) {
    types.set_ = both != 0 ? both : by.set_;  // if nothing fits, anything is allowed
    return;
  }
  const auto name = [](const Value& value) { return as_integer(value.json).value_or(value.json); };
  std::set<std::string> others;
  if (other != nullptr)
    for (const Value& value : *other) others.insert(name(value));
  auto kept = std::make_shared<std::vector<Value>>();
  uint8_t set = 0;
  for (const Value& value : *list) {
    const uint8_t type = type_of(value);
    if ((type & both) == 0 || (other != nullptr && !others.contains(name(value)))) continue;
    kept->push_back(value);
    set |= type;
  }
  types.nothing_ = types.nothing_ || kept->empty();
  types.set_ = set != 0 ? set : by.set_;
  types.values_ = kept->empty() ? nullptr : std::move(kept);
}

void SchemaTypes::widen(ArgumentTypes& types, const ArgumentTypes& by) {
  if (by.nothing_) return;
  if (types.nothing_) {
    types = by;
    return;
  }
  if (!types.stated_ || !by.stated_) {
    types = {};
    return;
  }
  types.set_ |= by.set_;
  if (types.values_ == nullptr || by.values_ == nullptr) {
    types.values_ = nullptr;
    return;
  }
  auto both = std::make_shared<std::vector<Value>>(*types.values_);
  both->insert(both->end(), by.values_->begin(), by.values_->end());
  types.values_ = std::move(both);
}

ArgumentTypes SchemaTypes::types(const Json& schema, int depth) {
  ArgumentTypes out;
  out.nothing_ = out.stated_ = schema == false;
  if (!schema.is_object() || depth > kMaxSchemaDepth || !spend(8)) return out;
  if (const Json* at = target(schema)) {
    narrow(out, types(*at, depth + 1));
    if (!references_.siblings_hold() && schema.contains("$ref")) return out;
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    ArgumentTypes own;
    own.set_ = 0;
    bool known = true;
    for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
      const uint8_t set = named(name);
      known = known && set != 0;
      own.set_ |= set;
    }
    own.stated_ = known && own.set_ != 0;
    if (own.set_ == ArgumentTypes::only(ArgumentType::null))
      own.values_ = std::make_shared<const std::vector<Value>>(1, Value{"null", "null"});
    narrow(out, own);
  }
  if (const auto values = schema.find("enum");
      values != schema.end() && values->is_array() && !values->empty())
    narrow(out, listed(*values));
  if (const auto value = schema.find("const"); value != schema.end())
    narrow(out, listed(Json::array({*value})));
  if (const auto parts = schema.find("allOf"); parts != schema.end() && parts->is_array()) {
    for (const Json& part : *parts) narrow(out, types(part, depth + 1));
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto options = schema.find(key);
    if (options == schema.end() || !options->is_array() || options->empty()) continue;
    ArgumentTypes some = types((*options)[0], depth + 1);
    for (size_t i = 1; i < options->size(); ++i) {
      // Bounds the work: each option copies the list of the union.
      if (!spend(some.values_ == nullptr ? 1 : static_cast<int64_t>(some.values_->size())))
        some = {};
      widen(some, types((*options)[i], depth + 1));
    }
    narrow(out, some);
  }
  if (!out.stated_) {  // type-specific keywords imply the type
    using Implied = std::pair<const char*, ArgumentType>;
    for (const auto& [key, type] :
         {Implied{"properties", ArgumentType::object}, Implied{"required", ArgumentType::object},
          Implied{"items", ArgumentType::array}, Implied{"prefixItems", ArgumentType::array},
          Implied{"pattern", ArgumentType::string}, Implied{"minLength", ArgumentType::string},
          Implied{"maxLength", ArgumentType::string}, Implied{"format", ArgumentType::string}}) {
      if (out.stated_ || !schema.contains(key)) continue;
      out.set_ = ArgumentTypes::only(type);
      out.stated_ = true;
    }
  }
  if (const auto nullable = schema.find("nullable");
      nullable != schema.end() && *nullable == true) {
    ArgumentTypes null;
    null.set_ = ArgumentTypes::only(ArgumentType::null);
    null.stated_ = true;
    null.values_ = std::make_shared<const std::vector<Value>>(1, Value{"null", "null"});
    widen(out, null);
  }
  return out;
}

void SchemaTypes::add_other(const Json& schema, int depth, ToolParameters& out) {
  if (schema == false) return;
  const ArgumentTypes more = types(schema, depth + 1);
  if (out.other_schemas.empty())
    out.others = more;
  else
    widen(out.others, more);
  out.other_schemas.push_back(&schema);
}

void SchemaTypes::own_parameters(const Json& schema, int depth, ToolParameters& out) {
  std::set<std::string_view> required;
  if (const auto names = schema.find("required"); names != schema.end() && names->is_array()) {
    for (const Json& name : *names)
      if (name.is_string() && spend(1)) required.insert(name.get_ref<const std::string&>());
  }
  if (const auto listed = schema.find("properties");
      listed != schema.end() && listed->is_object()) {
    for (const auto& [name, property] : listed->items()) {
      if (!out.index.emplace(name, out.listed.size()).second) continue;
      out.listed.push_back(
          {name, types(property, depth + 1), {&property}, true, required.erase(name) > 0});
    }
  }
  for (const std::string_view name : required) {  // any value is allowed
    out.index.emplace(name, out.listed.size());
    out.listed.push_back({std::string(name), {}, {}, true, true});
  }
  if (const auto patterns = schema.find("patternProperties");
      patterns != schema.end() && patterns->is_object()) {
    for (const Json& property : *patterns) add_other(property, depth, out);
  }
  if (const auto more = schema.find("additionalProperties"); more != schema.end()) {
    if (*more == false)
      out.closed = out.other_schemas.empty();
    else
      add_other(*more, depth, out);
  }
}

void SchemaTypes::join(ToolParameters& out, ToolParameters more, bool all) {
  for (Parameter& parameter : more.listed) {
    if (!spend(8)) return;
    const auto [found, added] = out.index.emplace(parameter.name, out.listed.size());
    if (added) {
      parameter.required = parameter.required && all;
      out.listed.push_back(std::move(parameter));
      continue;
    }
    Parameter& before = out.listed[found->second];
    const size_t listed = before.types.values_ == nullptr ? 0 : before.types.values_->size();
    if (!all && !spend(static_cast<int64_t>(listed))) return;  // joining copies both lists
    if (all)
      narrow(before.types, parameter.types);
    else
      widen(before.types, parameter.types);
    before.all_hold = before.all_hold && parameter.all_hold && all;
    before.required =
        all ? before.required || parameter.required : before.required && parameter.required;
    before.schemas.insert(before.schemas.end(), parameter.schemas.begin(), parameter.schemas.end());
  }
  if (!all) {
    for (Parameter& before : out.listed)
      if (!more.index.contains(before.name)) before.required = false;
  }
  out.closed = all ? out.closed || more.closed : out.closed && more.closed;
  if (!more.other_schemas.empty()) {
    if (out.other_schemas.empty())
      out.others = more.others;
    else if (all)
      narrow(out.others, more.others);
    else
      widen(out.others, more.others);
    out.other_schemas.insert(out.other_schemas.end(), more.other_schemas.begin(),
                             more.other_schemas.end());
  }
}

ToolParameters SchemaTypes::parameters(const Json& schema, int depth) {
  ToolParameters out;
  if (!schema.is_object() || depth > kMaxSchemaDepth || !spend(8)) return out;
  own_parameters(schema, depth, out);
  if (const Json* at = target(schema)) join(out, parameters(*at, depth + 1), true);
  if (const auto parts = schema.find("allOf"); parts != schema.end() && parts->is_array()) {
    for (const Json& part : *parts) join(out, parameters(part, depth + 1), true);
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto options = schema.find(key);
    if (options == schema.end() || !options->is_array() || options->empty()) continue;
    ToolParameters some = parameters((*options)[0], depth + 1);
    for (size_t i = 1; i < options->size() && spend(1); ++i)
      join(some, parameters((*options)[i], depth + 1), false);
    join(out, std::move(some), true);
  }
  // Parameters of a condition may come, but are not required.
  const auto perhaps = [&](const Json& part) {
    ToolParameters more = parameters(part, depth + 1);
    for (Parameter& parameter : more.listed) parameter.required = false;
    more.closed = false;
    std::erase_if(more.listed, [&](const Parameter& one) { return out.index.contains(one.name); });
    join(out, std::move(more), true);
  };
  for (const char* key : {"then", "else"})
    if (const auto part = schema.find(key); part != schema.end()) perhaps(*part);
  if (const auto parts = schema.find("dependentSchemas");
      parts != schema.end() && parts->is_object()) {
    for (const Json& part : *parts) perhaps(part);
  }
  return out;
}

ToolParameters read_tool_parameters(const Json& schema) {
  return SchemaTypes(schema).parameters(schema, 0);
}

OfferedTools::OfferedTools(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      continue;
    Tool out;
    if (const auto schema = function.find("parameters"); schema != function.end()) {
      ToolParameters parameters = read_tool_parameters(*schema);
      for (ToolParameters::Parameter& one : parameters.listed)
        out.listed.emplace(std::move(one.name), std::move(one.types));
      out.others = std::move(parameters.others);
    }
    tools_.emplace(function["name"].get<std::string>(), std::move(out));
  }
}

const OfferedTools::Tool* OfferedTools::find(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : &found->second;
}

}  // namespace braid
