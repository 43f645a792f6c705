// schema_reader.cpp -- see schema_reader.h.
#include "server/schema/schema_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "server/api/fields.h"
#include "server/automata/pattern.h"

namespace braid::server {

using Shape = ValueShapes::Shape;

namespace {

constexpr int64_t kNoMore = int64_t{1} << 30;  // bounds from here on bind nobody

const std::set<std::string> kKnown = {
    "type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
    "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "minLength", "maxLength", "pattern", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "format", "nullable",
    // They say nothing about the form.
    "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly", "strict"};

// The beginning of a client's text, for a sentence.
std::string shown(const std::string& text) {
  constexpr size_t kShown = 64;
  if (text.size() <= kShown) return text;
  size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

const std::string& SchemaReader::error() {
  stopped(0);
  if (error_.empty() && !shapes_.have_values(made_)) fail("no finite value fits it");
  made_.clear();
  return error_;
}

bool SchemaReader::stopped(int depth, const char* what) {
  if (depth > kMaxDepth) fail(fmt::format("it is nested deeper than {} levels", kMaxDepth));
  if (budget_.used_up()) fail(budget_.sentence(what));
  return !error_.empty();
}

// Copies are charged by what they copy.
void SchemaReader::pay_for(const Json& value, int depth) {
  if (!budget_.spend(
          value.is_string() ? 2 + static_cast<int64_t>(value.get_ref<const std::string&>().size() / 16) : 2))
    return;
  if (!value.is_structured() || depth > kMaxRequestDepth) return;
  for (const Json& inner : value) pay_for(inner, depth + 1);
}

Shape SchemaReader::schema(const Json& given, int depth) {
  budget_.spend(8);
  if (stopped(depth)) return 0;
  if (given.is_boolean())
    return given.get<bool>() ? shapes_.any() : fail("it contains a schema that nothing fits");
  if (!given.is_object()) return fail("a schema in it is neither an object nor a boolean");
  if (strict_) {
    for (const auto& [key, value] : given.items()) {
      if (!kKnown.contains(key)) return fail("the keyword " + shown(key) + " is not supported");
    }
  }
  const Shape shape = plain(given, depth);
  return given.value("nullable", Json()) == true ? shapes_.choice({shape, shapes_.words({"null"})}) : shape;
}

Shape SchemaReader::plain(const Json& given, int depth) {
  if (const auto ref = given.find("$ref"); ref != given.end()) return reference(*ref, depth);
  if (const auto value = given.find("const"); value != given.end())
    return shapes_.words({json_literal(*value)});
  if (const auto values = given.find("enum"); values != given.end()) return enumeration(*values);
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const auto options = given.find(key); options != given.end())
      return alternatives(given, key, *options, depth);
  }
  if (const auto all = given.find("allOf"); all != given.end()) {
    if (!all->is_array()) return fail("allOf is not an array");
    return schema(merged(given, *all, depth), depth + 1);
  }
  const auto type = given.find("type");
  if (type != given.end() && type->is_array()) {
    std::vector<Shape> shapes;
    for (const Json& name : *type) {
      if (stopped(depth, "a type that is a list")) return 0;
      shapes.push_back(of_type(given, name, depth));
    }
    if (shapes.empty()) return fail("type is an empty list");
    return shapes_.choice(std::move(shapes));
  }
  if (type != given.end()) return of_type(given, *type, depth);
  if (given.contains("properties") || given.contains("required")) return object(given, depth);
  if (given.contains("items") || given.contains("prefixItems")) return array(given, depth);
  for (const char* key : {"pattern", "minLength", "maxLength", "format"})
    if (given.contains(key)) return string(given);
  return shapes_.any();
}

Shape SchemaReader::of_type(const Json& given, const Json& type, int depth) {
  if (type == "object") return object(given, depth);
  if (type == "array") return array(given, depth);
  if (type == "string") return string(given);
  if (type == "integer") return integer(given);
  if (type == "number") {
    const Json minimum = given.value("minimum", Json());
    return shapes_.any_number(minimum.is_number() && minimum.get<double>() >= 0);
  }
  if (type == "boolean") return shapes_.words({"true", "false"});
  if (type == "null") return shapes_.words({"null"});
  return fail("a type in it is not known: " + shown(json_literal(type)));
}

Shape SchemaReader::enumeration(const Json& values) {
  if (!values.is_array() || values.empty()) return fail("enum is not a list of values");
  std::vector<std::string> texts;
  for (const Json& value : values) {
    texts.push_back(json_literal(value));
    budget_.spend(4 + static_cast<int64_t>(texts.back().size()) / 8);
    if (stopped(0, "an enum")) return 0;
  }
  return shapes_.words(std::move(texts));
}

// ---- Combinations ----------------------------------------------------------------------------------------

// Members beside anyOf hold for each of its options, if these are objects.
Shape SchemaReader::alternatives(const Json& given, const char* key, const Json& options, int depth) {
  if (!options.is_array() || options.empty()) return fail(std::string(key) + " is not a list of schemas");
  pay_for(given);
  Json beside = given;
  beside.erase(key);
  for (const char* name : {"title", "description", "default", "$defs", "definitions", "$schema"})
    beside.erase(name);
  std::vector<Shape> shapes;
  for (const Json& option : options) {
    if (stopped(depth, key)) return 0;
    const bool merge = !beside.empty() && option.is_object();
    shapes.push_back(schema(merge ? merged(beside, Json::array({option}), depth) : option, depth + 1));
  }
  return shapes_.choice(std::move(shapes));
}

Json SchemaReader::members() {
  if (!root_.is_object()) return Json::object();
  Json parts = Json::array({root_});
  Json out = merged(Json::object(), parts, 0);
  return out;
}

// `given` without allOf, with the members of all of `parts`.
Json SchemaReader::merged(const Json& given, const Json& parts, int depth) {
  pay_for(given);
  Json out = given;
  out.erase("allOf");
  for (const Json& part : parts) {
    // References may lead a merge into itself, twice at each level.
    if (stopped(0, "allOf and anyOf with $ref inside")) return out;
    const Json* source = &part;
    for (int hops = 0; source->is_object() && source->contains("$ref") && hops < 16; ++hops) {
      source = target((*source)["$ref"]);
      if (source == nullptr) return out;
    }
    if (!source->is_object()) continue;
    pay_for(*source);
    const auto all = source->find("allOf");
    if (all != source->end() && depth < kMaxDepth)
      merge_into(out, merged(*source, all->is_array() ? *all : Json::array(), depth + 1));
    else
      merge_into(out, *source);
  }
  return out;
}

void SchemaReader::merge_into(Json& out, const Json& flat) {
  for (const auto& [key, value] : flat.items()) {
    if (key == "properties" && value.is_object() && out.contains(key) && out[key].is_object()) {
      // Members of an ordered object are found one by one.
      budget_.spend(static_cast<int64_t>(value.size() * out[key].size()) / 8);
      if (budget_.used_up()) return;
      for (const auto& [name, property] : value.items()) out[key][name] = property;
    } else if (key == "required" && value.is_array() && out.contains(key) && out[key].is_array()) {
      for (const Json& name : value) out[key].push_back(name);
    } else {
      out[key] = value;
    }
  }
}

// A place inside the schema: "#", "#/$defs/name".
const Json* SchemaReader::target(const Json& ref) {
  if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with('#')) {
    fail("a $ref does not point into the schema");
    return nullptr;
  }
  const Json* at = &root_;
  const auto& path = ref.get_ref<const std::string&>();
  for (size_t begin = 1; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin + 1), path.size());
    std::string name;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escaped = path[i] == '~' && i + 1 < end && (path[i + 1] == '0' || path[i + 1] == '1');
      name += escaped ? (path[++i] == '1' ? '/' : '~') : path[i];
    }
    begin = end;
    budget_.spend(8 + static_cast<int64_t>(name.size()) / 8 + static_cast<int64_t>(at->size()) / 8);
    size_t index = at->size();
    if (at->is_array() && !name.empty() && name.size() < 7 &&
        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }))
      index = static_cast<size_t>(std::stoul(name));
    if (at->is_array() && index < at->size()) {
      at = &(*at)[index];
    } else if (at->is_object() && at->contains(name)) {
      at = &(*at)[name];
    } else {
      fail("a $ref points nowhere: " + shown(path));
      return nullptr;
    }
  }
  return at;
}

Shape SchemaReader::reference(const Json& ref, int depth) {
  const Json* at = target(ref);
  if (at == nullptr) return 0;
  const auto known = references_.find(at);
  if (known != references_.end()) return known->second;
  const Shape shape = shapes_.forward();  // before its body, which may refer to it
  references_.emplace(at, shape);
  const Shape body = schema(*at, depth + 1);
  if (!stopped(0)) shapes_.define(shape, body);
  return shape;
}

// ---- Objects and arrays ----------------------------------------------------------------------------------

Shape SchemaReader::object(const Json& given, int depth) {
  const auto listed = given.find("properties");
  if (listed != given.end() && !listed->is_object()) return fail("properties is not an object");
  std::set<std::string> required;
  if (const auto names = given.find("required"); names != given.end() && names->is_array()) {
    for (const Json& name : *names) {
      budget_.spend(8);
      if (stopped(depth, "required")) return 0;
      if (name.is_string()) required.insert(name.get<std::string>());
    }
  }
  std::vector<ValueShapes::Property> properties;
  if (listed != given.end()) {
    for (const auto& [name, property] : listed->items()) {
      if (stopped(depth, "properties")) return 0;
      properties.push_back({name, schema(property, depth + 1), required.erase(name) > 0});
    }
  }
  for (const std::string& name : required) properties.push_back({name, shapes_.any(), true});
  const auto additional = given.find("additionalProperties");
  const bool open = additional == given.end() ? properties.empty() : *additional != false;
  Shape more = -1;
  if (open) {
    const bool typed = additional != given.end() && additional->is_object();
    more = typed ? schema(*additional, depth + 1) : shapes_.any();
  }
  return shapes_.object(std::move(properties), more);
}

// A count of the schema; empty: not given, or so large a limit that it binds nobody.
std::optional<int64_t> SchemaReader::bound(const Json& given, const char* name, bool least) {
  const auto found = given.find(name);
  if (found == given.end()) return std::nullopt;
  const bool huge = found->is_number() && found->get<double>() >= static_cast<double>(kNoMore);
  const auto value = huge ? std::optional(kNoMore) : as_integer(*found);
  if (!value || *value < 0) {
    fail(fmt::format("{} must be a whole number, 0 or more", name));
    return std::nullopt;
  }
  if (least && *value > kMostAtLeast)
    fail(fmt::format("{} is more than {}, which no answer can hold", name, kMostAtLeast));
  return *value >= kNoMore ? std::nullopt : value;
}

Shape SchemaReader::array(const Json& given, int depth) {
  std::vector<Shape> prefix;
  if (const auto listed = given.find("prefixItems"); listed != given.end() && listed->is_array()) {
    for (const Json& item : *listed) {
      if (stopped(depth, "prefixItems")) return 0;
      prefix.push_back(schema(item, depth + 1));
    }
  }
  const auto items = given.find("items");
  const bool closed = items != given.end() && *items == false;
  const Shape item = items != given.end() && !closed ? schema(*items, depth + 1) : shapes_.any();
  const auto count = static_cast<int64_t>(prefix.size());
  const int64_t least = bound(given, "minItems", true).value_or(count);
  std::optional<int64_t> most = bound(given, "maxItems", false);
  if (closed || (items == given.end() && count > 0 && !most)) most = std::min(count, most.value_or(count));
  if (most && *most < least && given.contains("minItems")) return fail("maxItems is below minItems");
  return shapes_.array(std::move(prefix), item, std::min(least, most.value_or(least)), most.value_or(-1));
}

// ---- Strings and numbers ---------------------------------------------------------------------------------

Shape SchemaReader::string(const Json& given) {
  const auto least = bound(given, "minLength", true);
  const auto most = bound(given, "maxLength", false);
  if (least && most && *most < *least) return fail("maxLength is below minLength");
  if (!error_.empty()) return 0;
  const int64_t low = least.value_or(0), high = most.value_or(-1);
  if (const auto format = given.find("format"); format != given.end() && format->is_string()) {
    if (const auto text = format_pattern(format->get<std::string>())) return pattern(*text, low, high);
    if (strict_) return fail("the format " + shown(format->get<std::string>()) + " is not supported");
  }
  if (const auto text = given.find("pattern"); text != given.end() && text->is_string())
    return pattern(text->get_ref<const std::string&>(), low, high);
  return low == 0 && high < 0 ? shapes_.any_string() : shapes_.bounded_string(low, high);
}

Shape SchemaReader::pattern(const std::string& expression, int64_t least, int64_t most) {
  const std::string key = fmt::format("{} {} {}", least, most, expression);
  if (const auto known = regulars_.find(key); known != regulars_.end()) return known->second;
  const std::string name = "the pattern " + shown(expression);
  Expression tree(budget_);
  std::string why;
  const auto root = read_pattern(tree, expression, why);
  if (budget_.used_up()) return fail(budget_.sentence(name));
  if (!root) {
    if (strict_) return fail(name + " is not supported: it has " + why);
    return least == 0 && most < 0 ? shapes_.any_string() : shapes_.bounded_string(least, most);
  }
  auto automaton = tree.compile(*root, Expression::Spelling::json_string);
  if (!automaton) return fail(budget_.sentence(name));
  if (least > 0 || most >= 0) {
    automaton = with_length(*automaton, json_character(), least, most, budget_);
    if (!automaton) return fail(budget_.sentence(name + " with its minLength and maxLength"));
  }
  if (automaton->empty()) return fail("no string fits " + name);
  return regulars_[key] = shapes_.regular(automaton->quoted());
}

Shape SchemaReader::integer(const Json& given) {
  std::optional<WholeNumber> low, high;
  std::string key = "integer";
  const auto read = [&](const char* name, bool up, bool exclusive, std::optional<WholeNumber>& out) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    const auto value = WholeNumber::at(*found, up, exclusive);
    if (value && (!out || (up ? *out < *value : *value < *out))) out = value;
  };
  read("minimum", true, false, low);
  read("exclusiveMinimum", true, true, low);
  read("maximum", false, false, high);
  read("exclusiveMaximum", false, true, high);
  if (low && high && *high < *low) return fail("maximum is below minimum");
  for (const auto& bound : {low, high})
    key += bound ? (bound->negative ? " -" : " ") + bound->digits : " none";
  if (const auto known = regulars_.find(key); known != regulars_.end()) return known->second;
  Expression tree(budget_);
  auto automaton = tree.compile(integer_expression(tree, low, high), Expression::Spelling::plain);
  if (!automaton) return fail(budget_.sentence("the range of an integer"));
  return regulars_[key] = shapes_.regular(std::move(*automaton));
}

}  // namespace braid::server
