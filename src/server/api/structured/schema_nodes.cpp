// schema_nodes.cpp -- see schema_nodes.h. Reads keywords.
#include "server/api/structured/schema_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "server/api/fields.h"
#include "server/api/structured/expression.h"
#include "server/api/structured/formats.h"
#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/pattern.h"
#include "text/arguments.h"

namespace braid::server {

namespace {

constexpr int64_t kNoMore = int64_t{1} << 30;  // larger bounds are ignored

const std::set<std::string_view> kHeld = {"$ref",
                                          "$dynamicRef",
                                          "$recursiveRef",
                                          "type",
                                          "nullable",
                                          "enum",
                                          "const",
                                          "allOf",
                                          "anyOf",
                                          "oneOf",
                                          "not",
                                          "if",
                                          "then",
                                          "else",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "multipleOf",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "items",
                                          "prefixItems",
                                          "additionalItems",
                                          "minItems",
                                          "maxItems",
                                          "uniqueItems",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "unevaluatedItems",
                                          "properties",
                                          "patternProperties",
                                          "additionalProperties",
                                          "required",
                                          "minProperties",
                                          "maxProperties",
                                          "propertyNames",
                                          "unevaluatedProperties",
                                          "dependencies",
                                          "dependentRequired",
                                          "dependentSchemas"};

// Annotations, without effect.
const std::set<std::string_view> kNotes = {"$schema",
                                           "$id",
                                           "id",
                                           "$anchor",
                                           "$dynamicAnchor",
                                           "$recursiveAnchor",
                                           "$vocabulary",
                                           "$comment",
                                           "$defs",
                                           "definitions",
                                           "title",
                                           "description",
                                           "default",
                                           "examples",
                                           "example",
                                           "deprecated",
                                           "readOnly",
                                           "writeOnly",
                                           "strict",
                                           "discriminator",
                                           "xml",
                                           "externalDocs",
                                           "contentEncoding",
                                           "contentMediaType",
                                           "contentSchema"};

const Json* of(const std::map<std::string_view, const Json*>& found, std::string_view name) {
  const auto at = found.find(name);
  return at == found.end() ? nullptr : at->second;
}

}  // namespace

std::string shown(const std::string& text) {
  constexpr size_t kShown = 64;
  if (text.size() <= kShown) return text;
  size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

int64_t compared_steps(size_t texts, size_t bytes) {
  return std::bit_width(texts) * (1 + static_cast<int64_t>(bytes) / 64) +
         static_cast<int64_t>(bytes) / 8;
}

SchemaNodes::SchemaNodes(GrammarBudget& budget, const Json& root, bool strict)
    : budget_(budget), references_(root), strict_(strict) {
  nodes_.emplace_back().read = true;
}

bool SchemaNodes::stopped() {
  if (budget_.used_up()) fail(budget_.sentence("the schema"));
  return !error_.empty();
}

void SchemaNodes::unsupported(const std::string& what) {
  if (strict_) fail(what + " is not supported");
}

int32_t SchemaNodes::make() {
  budget_.spend(16);
  nodes_.emplace_back().read = true;
  return static_cast<int32_t>(nodes_.size() - 1);
}

Literal SchemaNodes::literal(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? kTrue : kFalse;
  if (!schema.is_object()) {
    fail("a schema in it is neither an object nor a boolean");
    return kTrue;
  }
  if (schema.empty()) return kTrue;
  const auto [known, added] = known_.emplace(&schema, static_cast<int32_t>(nodes_.size()));
  if (added) {
    budget_.spend(8);
    nodes_.emplace_back().json = &schema;
  }
  return known->second * 2;
}

Literal SchemaNodes::of_types(uint8_t kinds) {
  const int32_t id = make();
  at(id).types = kinds;
  return id * 2;
}

Literal SchemaNodes::all_of(std::vector<Literal> parts) {
  if (parts.size() == 1) return parts[0];
  const int32_t id = make();
  at(id).all = std::move(parts);
  return id * 2;
}

// absent(): values that are not an object with this member. present(): objects with it.
Literal SchemaNodes::absent(const std::string& name) {
  const int32_t id = make();
  at(id).properties = {{name, kFalse}};
  at(id).property = {{at(id).properties[0].first, kFalse}};
  return id * 2;
}

Literal SchemaNodes::present(const std::string& name) {
  const int32_t id = make();
  at(id).types = types::kObject;
  at(id).required = {name};
  return id * 2;
}

int32_t SchemaNodes::resolve(Literal literal) {
  const int32_t id = literal / 2;
  read(id);
  if (literal % 2 == 0) return id;
  const int32_t negation = negation_of(id);
  if (negation != kUnknown) return negation;
  unsupported("the content of a schema inside not, if or oneOf");
  return 0;
}

const SchemaNode& SchemaNodes::node(Literal literal) { return at(resolve(literal)); }

const Automaton* SchemaNodes::pattern(const std::string& expression, Spelling spelling) {
  const auto [known, added] = patterns_.try_emplace({expression, spelling});
  if (added) {
    Expression tree(budget_);
    PatternFault fault;
    const auto root = read_pattern(tree, expression, fault);
    const std::string name = "the pattern " + shown(expression);
    if (root)
      known->second = tree.compile(*root, spelling);
    else if (fault.too_large)
      fail(name + " is too large: it has " + fault.why);
    else if (!budget_.used_up() && strict_)
      fail(name + " is not supported: it has " + fault.why);
    if (budget_.used_up()) fail(budget_.sentence(name));
  }
  return known->second ? &*known->second : nullptr;
}

void SchemaNodes::read(int32_t id) {
  SchemaNode& node = at(id);
  if (node.read) return;
  node.read = true;
  Found found;
  budget_.spend(8 + static_cast<int64_t>(node.json->size()) * 4);
  for (const auto& [key, value] : node.json->items()) {
    if (kHeld.contains(key))
      found.emplace(key, &value);
    else if (!kNotes.contains(key) && !key.starts_with("x-"))
      unsupported("the keyword " + shown(key));
  }
  if (const Json* ref = of(found, "$ref"); ref != nullptr && !references_.siblings_hold())
    found = {{"$ref", ref}};
  read_general(node, found);
  read_combinations(node, found);
  read_conditions(node, found);
  read_numbers(node, found);
  read_strings(node, found);
  read_arrays(node, found);
  read_objects(node, found);
  read_dependencies(node, found);
  if (const Json* flag = of(found, "nullable"); flag != nullptr && *flag == true) nullable(node);
}

// Makes the node a choice of null and the previous contents.
void SchemaNodes::nullable(SchemaNode& node) {
  const int32_t other = make();
  const Json* json = node.json;
  at(other) = std::move(node);
  node = SchemaNode();
  node.json = json;
  node.read = true;
  node.choices = {{other * 2, of_types(types::kNull)}};
}

void SchemaNodes::read_general(SchemaNode& node, const Found& found) {
  for (const char* name : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const Json* ref = of(found, name);
    if (ref == nullptr) continue;
    const bool plain = std::string_view(name) == "$ref";
    const Json* target =
        plain ? references_.target(*node.json, *ref) : references_.dynamic_target(*node.json, *ref);
    budget_.spend(references_.steps() - charged_);
    charged_ = references_.steps();
    const std::string text = ref->is_string() ? ref->get<std::string>() : std::string();
    if (target != nullptr)
      node.all.push_back(literal(*target));
    else if (plain)
      fail(text.empty() ? "a $ref is not a text"
                        : "a $ref points nowhere in the schema: " + shown(text));
    else
      unsupported("the keyword " + std::string(name)), node.partly = true;
  }
  if (const Json* type = of(found, "type")) read_types(node, *type);
  if (const Json* value = of(found, "const")) node.values.push_back({value});
  if (const Json* values = of(found, "enum")) {
    if (!values->is_array() || values->empty()) return fail("enum is not a list of values");
    std::vector<const Json*> list;
    budget_.spend(static_cast<int64_t>(values->size()) * 4);
    for (const Json& value : *values) list.push_back(&value);
    node.values.push_back(std::move(list));
  }
}

void SchemaNodes::read_types(SchemaNode& node, const Json& type) {
  if (!type.is_array()) {
    node.types = type_named(type);
    return;
  }
  node.types = 0;
  for (const Json& name : type) {
    budget_.spend(4);
    node.types |= type_named(name);
  }
  if (type.empty()) fail("type is an empty list");
}

uint8_t SchemaNodes::type_named(const Json& name) {
  static const std::map<std::string_view, uint8_t> kNames = {
      {"null", types::kNull},     {"boolean", types::kBoolean}, {"integer", types::kInteger},
      {"number", types::kNumber}, {"string", types::kString},   {"array", types::kArray},
      {"object", types::kObject}};
  const std::string text = name.is_string() ? name.get<std::string>() : std::string();
  if (const auto found = kNames.find(text); found != kNames.end()) return found->second;
  // Type names of programming languages.
  static const std::map<ArgumentType, uint8_t> kKinds = {
      {ArgumentType::null, types::kNull},       {ArgumentType::boolean, types::kBoolean},
      {ArgumentType::integer, types::kInteger}, {ArgumentType::number, types::kNumber},
      {ArgumentType::string, types::kString},   {ArgumentType::array, types::kArray},
      {ArgumentType::object, types::kObject}};
  if (!strict_ && text == "any") return types::kAll;
  if (const auto meant = strict_ ? std::nullopt : argument_type_of(text)) return kKinds.at(*meant);
  fail("a type in it is not known: " + shown(json_literal(name)));
  return types::kAll;
}

std::vector<Literal> SchemaNodes::list(const Json& value, const char* keyword) {
  std::vector<Literal> out;
  if (!value.is_array() || value.empty()) {
    fail(std::string(keyword) + " is not a list of schemas");
    return out;
  }
  for (const Json& schema : value) out.push_back(literal(schema));
  return out;
}

std::vector<std::string> SchemaNodes::name_list(const Json& value) {
  std::vector<std::string> out;
  if (!value.is_array()) return out;
  for (const Json& name : value) {
    budget_.spend(8);
    if (name.is_string()) out.push_back(name.get<std::string>());
  }
  return out;
}

void SchemaNodes::read_combinations(SchemaNode& node, const Found& found) {
  if (const Json* parts = of(found, "allOf"))
    for (const Literal part : list(*parts, "allOf")) node.all.push_back(part);
  if (const Json* options = of(found, "anyOf")) node.choices.push_back(list(*options, "anyOf"));
  if (const Json* options = of(found, "oneOf")) {
    auto read = list(*options, "oneOf");
    if (read.size() == 1)
      node.all.push_back(read[0]);
    else
      node.exclusive.push_back(std::move(read));
  }
  if (const Json* other = of(found, "not")) node.all.push_back(literal(*other) ^ 1);
}

void SchemaNodes::read_conditions(SchemaNode& node, const Found& found) {
  const Json *condition = of(found, "if"), *then = of(found, "then"),
             *otherwise = of(found, "else");
  if (condition == nullptr || (then == nullptr && otherwise == nullptr)) return;
  const Literal when = literal(*condition);
  node.choices.push_back({all_of({when, then == nullptr ? kTrue : literal(*then)}),
                          all_of({when ^ 1, otherwise == nullptr ? kTrue : literal(*otherwise)})});
}

void SchemaNodes::read_numbers(SchemaNode& node, const Found& found) {
  const auto value = [&](const char* name) {
    const Json* given = of(found, name);
    return given == nullptr ? std::nullopt : Decimal::of(*given);
  };
  // In draft 4, a boolean says whether the bound is exclusive.
  const auto flag = [&](const char* name) {
    const Json* given = of(found, name);
    return given != nullptr && *given == true;
  };
  if (const auto low = value("minimum")) node.number.at_least(*low, flag("exclusiveMinimum"));
  if (const auto low = value("exclusiveMinimum")) node.number.at_least(*low, true);
  if (const auto high = value("maximum")) node.number.at_most(*high, flag("exclusiveMaximum"));
  if (const auto high = value("exclusiveMaximum")) node.number.at_most(*high, true);
  for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    const Json* given = of(found, name);
    if (given != nullptr && !given->is_number() && !given->is_boolean())
      fail(std::string(name) + " is not a number");
  }
  if (const Json* given = of(found, "multipleOf")) {
    const auto step = Decimal::of(*given);
    if (!step || step->negative || *step == Decimal())
      return fail("multipleOf is not a number above 0");
    if (is_multiple(*step, *step).has_value())
      node.number.steps.insert(*step);
    else
      unsupported("the multipleOf " + shown(given->dump())), node.partly = true;
  }
}

// A count; `otherwise` if it has no effect.
int64_t SchemaNodes::count(const Json& value, const char* keyword, bool least, int64_t otherwise) {
  const bool huge = value.is_number() && value.get<double>() >= static_cast<double>(kNoMore);
  const auto read = huge ? std::optional(kNoMore) : as_integer(value);
  if (!read || *read < 0) {
    fail(fmt::format("{} must be a whole number, 0 or more", keyword));
    return otherwise;
  }
  if (least && *read > kMostAtLeast)
    fail(fmt::format("{} is more than {}, which no answer can hold", keyword, kMostAtLeast));
  return *read >= kNoMore ? otherwise : *read;
}

void SchemaNodes::read_strings(SchemaNode& node, const Found& found) {
  if (const Json* least = of(found, "minLength"))
    node.min_length = count(*least, "minLength", true, 0);
  if (const Json* most = of(found, "maxLength"))
    node.max_length = count(*most, "maxLength", false, -1);
  if (const Json* text = of(found, "pattern"); text != nullptr && text->is_string()) {
    node.patterns.push_back(text->get<std::string>());
    node.partly = node.partly || pattern(node.patterns.back()) == nullptr;
  }
  const Json* format = of(found, "format");
  if (format == nullptr || !format->is_string() || (node.types & types::kString) == 0) return;
  if (const auto known = find_format(format->get<std::string>())) {
    if (!known->pattern.empty()) node.patterns.push_back(known->pattern);
    if (known->most >= 0 && (node.max_length < 0 || known->most < node.max_length))
      node.max_length = known->most;
  } else {
    unsupported("the format " + shown(format->get<std::string>()));
    node.partly = true;
  }
}

void SchemaNodes::read_arrays(SchemaNode& node, const Found& found) {
  const Json *items = of(found, "items"), *prefix = of(found, "prefixItems");
  // Up to draft 2019-09, `items` may be a tuple, followed by additionalItems.
  if (items != nullptr && items->is_array()) {
    for (const Json& item : *items) node.prefix.push_back(literal(item));
    if (const Json* more = of(found, "additionalItems")) {
      node.items = literal(*more);
      node.items_all = true;
    }
  } else {
    if (prefix != nullptr && !prefix->is_array()) fail("prefixItems is not a list of schemas");
    if (prefix != nullptr && prefix->is_array())
      for (const Json& item : *prefix) node.prefix.push_back(literal(item));
    if (items != nullptr) node.items = literal(*items);
    node.items_all = items != nullptr;
  }
  if (const Json* least = of(found, "minItems"))
    node.min_items = count(*least, "minItems", true, 0);
  if (const Json* most = of(found, "maxItems"))
    node.max_items = count(*most, "maxItems", false, -1);
  if (const Json* unique = of(found, "uniqueItems")) node.unique = *unique == true;
  if (const Json* other = of(found, "unevaluatedItems")) node.unevaluated_items = literal(*other);
  read_contains(node, found);
}

void SchemaNodes::read_contains(SchemaNode& node, const Found& found) {
  const Json* contains = of(found, "contains");
  if (contains == nullptr) return;
  node.contains = literal(*contains);
  node.min_contains = 1;
  if (const Json* least = of(found, "minContains"))
    node.min_contains = count(*least, "minContains", true, 0);
  if (const Json* most = of(found, "maxContains"))
    node.max_contains = count(*most, "maxContains", false, -1);
}

void SchemaNodes::read_objects(SchemaNode& node, const Found& found) {
  const auto members = [&](const char* name, std::vector<std::pair<std::string, Literal>>& out) {
    const Json* given = of(found, name);
    if (given == nullptr) return;
    if (!given->is_object()) return fail(std::string(name) + " is not an object");
    budget_.spend(static_cast<int64_t>(given->size()) * 8);
    if (stopped()) return;
    for (const auto& [key, value] : given->items()) out.emplace_back(key, literal(value));
  };
  members("properties", node.properties);
  for (const auto& [name, value] : node.properties) node.property.emplace(name, value);
  members("patternProperties", node.name_patterns);
  if (const Json* more = of(found, "additionalProperties")) {
    node.additional = literal(*more);
    node.names_all = true;
  }
  if (const Json* names = of(found, "required")) node.required = name_list(*names);
  if (const Json* least = of(found, "minProperties"))
    node.min_properties = count(*least, "minProperties", true, 0);
  if (const Json* most = of(found, "maxProperties"))
    node.max_properties = count(*most, "maxProperties", false, -1);
  if (const Json* names = of(found, "propertyNames")) node.names = literal(*names);
  if (const Json* other = of(found, "unevaluatedProperties")) node.unevaluated = literal(*other);
}

// If the member is present, `then` applies too.
void SchemaNodes::depends(SchemaNode& node, const std::string& name, Literal then) {
  if (then == kTrue) return;
  node.choices.push_back({absent(name), all_of({present(name), then})});
}

void SchemaNodes::read_dependencies(SchemaNode& node, const Found& found) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Json* given = of(found, keyword);
    if (given == nullptr) continue;
    if (!given->is_object()) return fail(std::string(keyword) + " is not an object");
    for (const auto& [name, value] : given->items()) {
      if (stopped()) return;
      if (!value.is_array()) {
        depends(node, name, literal(value));
        continue;
      }
      const auto names = name_list(value);
      if (names.empty()) continue;
      const int32_t then = make();
      at(then).required = names;
      depends(node, name, then * 2);
    }
  }
}

}  // namespace braid::server
