// schema_grammar.cpp -- see schema_grammar.h. Strings, numbers and repetition are in grammar_parts.cpp.
#include "server/schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "server/fields.h"
#include "server/grammar_parts.h"

namespace braid::server {
namespace {

using Rule = ByteGrammar::Rule;
using Sequence = ByteGrammar::Sequence;

const std::set<std::string> kKnown = {
    "type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
    "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "minLength", "maxLength", "pattern", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "format", "nullable",
    // They say nothing about the form.
    "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly", "strict"};

class Compiler {
 public:
  Compiler(const Json& root, bool strict) : root_(root), strict_(strict), parts_(grammar_) {}

  Result<ByteGrammar> compile() {
    const Rule value = schema(root_, 0);
    // A few blanks may stand before the value: models write them behind a thought.
    const Rule root = grammar_.add_rule();
    grammar_.add(root, {ByteGrammar::ref(parts_.lead()), ByteGrammar::ref(value)});
    grammar_.set_root(root);
    if (error_.empty() && grammar_.symbols() > kMaxGrammarSymbols) error_ = "it is too large";
    if (!error_.empty()) return Error{ErrorKind::unsupported, error_};
    return std::move(grammar_);
  }

 private:
  Rule fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return parts_.any_value();
  }
  bool stopped(int depth) {
    if (depth > kMaxSchemaDepth) fail(fmt::format("it is nested deeper than {} levels", kMaxSchemaDepth));
    if (grammar_.symbols() > kMaxGrammarSymbols) fail("it is too large");
    return !error_.empty();
  }

  Rule schema(const Json& given, int depth) {
    if (stopped(depth)) return parts_.any_value();
    if (given.is_boolean())
      return given.get<bool>() ? parts_.any_value() : fail("it contains a schema that nothing fits");
    if (!given.is_object()) return fail("a schema in it is neither an object nor a boolean");
    if (strict_) {
      for (const auto& [key, value] : given.items()) {
        if (!kKnown.contains(key)) return fail("the keyword " + key.substr(0, 64) + " is not supported");
      }
    }
    Rule rule = plain(given, depth);
    if (given.value("nullable", Json()) == true) rule = either({rule, parts_.literal("null")});
    return rule;
  }

  Rule either(const std::vector<Rule>& rules) {
    const Rule rule = grammar_.add_rule();
    for (const Rule one : rules) grammar_.add(rule, {ByteGrammar::ref(one)});
    return rule;
  }

  Rule plain(const Json& given, int depth) {
    if (const auto ref = given.find("$ref"); ref != given.end()) return reference(*ref, depth);
    if (const auto value = given.find("const"); value != given.end())
      return parts_.literal(json_literal(*value));
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
      std::vector<Rule> rules;
      for (const Json& name : *type) rules.push_back(of_type(given, name, depth));
      if (rules.empty()) return fail("type is an empty list");
      return either(rules);
    }
    if (type != given.end()) return of_type(given, *type, depth);
    if (given.contains("properties") || given.contains("required")) return object(given, depth);
    if (given.contains("items") || given.contains("prefixItems")) return array(given, depth);
    if (given.contains("pattern") || given.contains("minLength") || given.contains("format"))
      return string(given);
    return parts_.any_value();
  }

  Rule of_type(const Json& given, const Json& type, int depth) {
    if (type == "object") return object(given, depth);
    if (type == "array") return array(given, depth);
    if (type == "string") return string(given);
    if (type == "integer") return integer(given);
    if (type == "number")
      return parts_.number(given.value("minimum", Json()).is_number() && given["minimum"].get<double>() >= 0);
    if (type == "boolean") return either({parts_.literal("true"), parts_.literal("false")});
    if (type == "null") return parts_.literal("null");
    return fail("a type in it is not known: " + json_literal(type).substr(0, 64));
  }

  Rule enumeration(const Json& values) {
    if (!values.is_array() || values.empty()) return fail("enum is not a list of values");
    std::vector<Rule> rules;
    for (const Json& value : values) {
      if (stopped(0)) break;
      rules.push_back(parts_.literal(json_literal(value)));
    }
    return either(rules);
  }

  // Members beside anyOf hold for each of its options, if these are objects.
  Rule alternatives(const Json& given, const char* key, const Json& options, int depth) {
    if (!options.is_array() || options.empty()) return fail(std::string(key) + " is not a list of schemas");
    Json beside = given;
    beside.erase(key);
    for (const char* name : {"title", "description", "default", "$defs", "definitions", "$schema"})
      beside.erase(name);
    std::vector<Rule> rules;
    for (const Json& option : options) {
      if (stopped(depth)) break;
      const bool merge = !beside.empty() && option.is_object();
      rules.push_back(schema(merge ? merged(beside, Json::array({option}), depth) : option, depth + 1));
    }
    return either(rules);
  }

  // `given` without allOf, with the members of all of `parts`.
  Json merged(const Json& given, const Json& parts, int depth) {
    Json out = given;
    out.erase("allOf");
    for (const Json& part : parts) {
      const Json* source = &part;
      for (int hops = 0; source->is_object() && source->contains("$ref") && hops < 16; ++hops) {
        source = target((*source)["$ref"]);
        if (source == nullptr) return out;
      }
      if (!source->is_object()) continue;
      const Json flat =
          source->contains("allOf") && depth < kMaxSchemaDepth
              ? merged(*source, (*source)["allOf"].is_array() ? (*source)["allOf"] : Json::array(), depth + 1)
              : *source;
      for (const auto& [key, value] : flat.items()) {
        if (key == "properties" && value.is_object() && out.contains(key) && out[key].is_object()) {
          for (const auto& [name, property] : value.items()) out[key][name] = property;
        } else if (key == "required" && value.is_array() && out.contains(key) && out[key].is_array()) {
          for (const Json& name : value) out[key].push_back(name);
        } else {
          out[key] = value;
        }
      }
    }
    return out;
  }

  // A place inside the schema: "#", "#/$defs/name".
  const Json* target(const Json& ref) {
    if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with('#')) {
      fail("a $ref does not point into the schema");
      return nullptr;
    }
    const Json* at = &root_;
    std::string path = ref.get<std::string>().substr(1);
    while (!path.empty()) {
      const size_t end = std::min(path.find('/', 1), path.size());
      std::string name = path.substr(1, end - 1);
      path.erase(0, end);
      for (const auto& [from, to] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
        for (size_t i; (i = name.find(from)) != std::string::npos;) name.replace(i, 2, to);
      }
      if (!at->is_object() || !at->contains(name)) {
        fail("a $ref points nowhere: " + ref.get<std::string>().substr(0, 128));
        return nullptr;
      }
      at = &(*at)[name];
    }
    return at;
  }

  Rule reference(const Json& ref, int depth) {
    const Json* at = target(ref);
    if (at == nullptr) return parts_.any_value();
    const auto known = references_.find(at);
    if (known != references_.end()) return known->second;
    const Rule rule = grammar_.add_rule();  // before its body, which may refer to it
    references_.emplace(at, rule);
    const Rule body = schema(*at, depth + 1);
    grammar_.add(rule, {ByteGrammar::ref(body)});
    return rule;
  }

  // ---- Objects and arrays ------------------------------------------------------------------------------

  Rule object(const Json& given, int depth) {
    const auto listed = given.find("properties");
    if (listed != given.end() && !listed->is_object()) return fail("properties is not an object");
    std::set<std::string> required;
    if (const auto names = given.find("required"); names != given.end() && names->is_array()) {
      for (const Json& name : *names) {
        if (name.is_string()) required.insert(name.get<std::string>());
      }
    }
    std::vector<std::pair<Rule, bool>> pairs;  // of a property, and whether it must come
    if (listed != given.end()) {
      for (const auto& [name, property] : listed->items()) {
        if (stopped(depth)) return parts_.any_value();
        pairs.emplace_back(pair(parts_.literal(json_literal(Json(name))), schema(property, depth + 1)),
                           required.contains(name));
        required.erase(name);
      }
    }
    for (const std::string& name : required) {
      pairs.emplace_back(pair(parts_.literal(json_literal(Json(name))), parts_.any_value()), true);
    }
    const auto additional = given.find("additionalProperties");
    const bool none_listed = pairs.empty();
    const bool open = additional == given.end() ? none_listed : *additional != false;
    std::optional<Rule> more;
    if (open) {
      const bool typed = additional != given.end() && additional->is_object();
      more = pair(parts_.string_value(), typed ? schema(*additional, depth + 1) : parts_.any_value());
    }
    return braces(pairs, more);
  }

  Rule pair(Rule key, Rule value) {
    const Rule rule = grammar_.add_rule();
    grammar_.add(rule, {ByteGrammar::ref(key), grammar_.byte(':'), ByteGrammar::ref(parts_.gap()),
                        ByteGrammar::ref(value)});
    return rule;
  }

  // rest(i): properties i.. when some came before; first(i): when none did.
  Rule braces(const std::vector<std::pair<Rule, bool>>& pairs, std::optional<Rule> more) {
    const auto comma = [&](Rule what, Rule then) -> Sequence {
      return {grammar_.byte(','), ByteGrammar::ref(parts_.gap()), ByteGrammar::ref(what),
              ByteGrammar::ref(then)};
    };
    Rule rest = grammar_.add_rule(), first = grammar_.add_rule();
    grammar_.add(rest, {});
    grammar_.add(first, {});
    if (more) {
      grammar_.add(rest, comma(*more, rest));
      grammar_.add(first, {ByteGrammar::ref(*more), ByteGrammar::ref(rest)});
    }
    for (auto i = pairs.rbegin(); i != pairs.rend(); ++i) {
      const Rule next_rest = grammar_.add_rule(), next_first = grammar_.add_rule();
      grammar_.add(next_rest, comma(i->first, rest));
      grammar_.add(next_first, {ByteGrammar::ref(i->first), ByteGrammar::ref(rest)});
      if (!i->second) {
        grammar_.add(next_rest, {ByteGrammar::ref(rest)});
        grammar_.add(next_first, {ByteGrammar::ref(first)});
      }
      rest = next_rest;
      first = next_first;
    }
    const Rule rule = grammar_.add_rule();
    grammar_.add(rule, {grammar_.byte('{'), ByteGrammar::ref(parts_.gap()), ByteGrammar::ref(first),
                        ByteGrammar::ref(parts_.gap()), grammar_.byte('}')});
    return rule;
  }

  // A count of the schema; empty: not given.
  std::optional<int64_t> bound(const Json& given, const char* name, int64_t most) {
    const auto found = given.find(name);
    if (found == given.end()) return std::nullopt;
    const auto value = as_integer(*found);
    if (!value || *value < 0 || *value > most) {
      fail(fmt::format("{} must be between 0 and {}", name, most));
      return std::nullopt;
    }
    return value;
  }

  Rule array(const Json& given, int depth) {
    std::vector<Rule> fixed;
    if (const auto prefix = given.find("prefixItems"); prefix != given.end() && prefix->is_array()) {
      for (const Json& item : *prefix) {
        if (stopped(depth)) return parts_.any_value();
        fixed.push_back(schema(item, depth + 1));
      }
    }
    const auto items = given.find("items");
    const bool closed = items != given.end() && *items == false;
    const Rule item = items != given.end() && !closed ? schema(*items, depth + 1) : parts_.any_value();
    const int64_t least = bound(given, "minItems", 10'000).value_or(static_cast<int64_t>(fixed.size()));
    auto most = bound(given, "maxItems", 10'000);
    if (closed || (items == given.end() && !fixed.empty() && !most))
      most = static_cast<int64_t>(fixed.size());
    if (most && *most < least) return fail("maxItems is below minItems");
    if (stopped(depth)) return parts_.any_value();

    // tail(k): what follows k elements. The last of a bounded list first.
    const int64_t count = most.value_or(std::max<int64_t>(least, static_cast<int64_t>(fixed.size())));
    const auto element = [&](int64_t k) {
      return k < static_cast<int64_t>(fixed.size()) ? fixed[static_cast<size_t>(k)] : item;
    };
    Rule tail = grammar_.add_rule();
    grammar_.add(tail, {});
    if (!most) {
      grammar_.add(tail, {grammar_.byte(','), ByteGrammar::ref(parts_.gap()), ByteGrammar::ref(item),
                          ByteGrammar::ref(tail)});
    }
    Rule body = grammar_.add_rule();  // of an array without elements so far
    if (least == 0) grammar_.add(body, {});
    if (!most && count == 0) grammar_.add(body, {ByteGrammar::ref(item), ByteGrammar::ref(tail)});
    for (int64_t k = count - 1; k >= 0; --k) {
      if (stopped(depth)) return parts_.any_value();
      if (k == 0) {
        grammar_.add(body, {ByteGrammar::ref(element(0)), ByteGrammar::ref(tail)});
        break;
      }
      const Rule next = grammar_.add_rule();
      grammar_.add(next, {grammar_.byte(','), ByteGrammar::ref(parts_.gap()), ByteGrammar::ref(element(k)),
                          ByteGrammar::ref(tail)});
      if (k >= least) grammar_.add(next, {});
      tail = next;
    }
    const Rule rule = grammar_.add_rule();
    grammar_.add(rule, {grammar_.byte('['), ByteGrammar::ref(parts_.gap()), ByteGrammar::ref(body),
                        ByteGrammar::ref(parts_.gap()), grammar_.byte(']')});
    return rule;
  }

  // ---- Strings and numbers -----------------------------------------------------------------------------

  Rule string(const Json& given) {
    if (const auto format = given.find("format"); format != given.end() && format->is_string()) {
      if (const auto rule = parts_.format(format->get<std::string>())) return *rule;
      if (strict_)
        return fail("the format " + format->get<std::string>().substr(0, 64) + " is not supported");
    }
    if (const auto pattern = given.find("pattern"); pattern != given.end() && pattern->is_string()) {
      if (const auto rule = parts_.pattern(pattern->get<std::string>())) return *rule;
      if (strict_)
        return fail("the pattern " + pattern->get<std::string>().substr(0, 64) + " is not supported");
    }
    const auto least = bound(given, "minLength", 20'000);
    const auto most = bound(given, "maxLength", 20'000);
    if (least && most && *most < *least) return fail("maxLength is below minLength");
    if (!error_.empty() || (!least && !most)) return parts_.string_value();
    return parts_.bounded_string(least.value_or(0), most);
  }

  Rule integer(const Json& given) {
    std::optional<int64_t> low, high;
    const auto read = [&](const char* name, int64_t shift, std::optional<int64_t>& out) {
      const auto found = given.find(name);
      if (found == given.end() || !found->is_number()) return;
      const double value = found->get<double>();
      if (std::abs(value) > 1e15) return;  // further than anybody counts
      const auto whole = static_cast<int64_t>(shift >= 0 ? std::ceil(value) : std::floor(value));
      const bool exclusive = name[0] == 'e' && static_cast<double>(whole) == value;
      const int64_t bound = exclusive ? whole + shift : whole;
      if (!out || (shift >= 0 ? bound > *out : bound < *out)) out = bound;
    };
    read("minimum", 1, low);
    read("exclusiveMinimum", 1, low);
    read("maximum", -1, high);
    read("exclusiveMaximum", -1, high);
    if (low && high && *low > *high) return fail("maximum is below minimum");
    return parts_.integer(low, high);
  }

  const Json& root_;
  bool strict_;
  ByteGrammar grammar_;
  GrammarParts parts_;
  std::map<const Json*, Rule> references_;
  std::string error_;
};

}  // namespace

Result<ByteGrammar> schema_to_grammar(const Json& schema, bool strict) {
  return Compiler(schema, strict).compile();
}

// A call of one of `names`, and what follows it is free: <tool_call>\n<function=NAME>\n ...
static ByteGrammar call_grammar(const std::vector<std::string>& names, const std::string& dialect) {
  ByteGrammar grammar;
  GrammarParts parts(grammar);
  const Rule root = grammar.add_rule(), name = grammar.add_rule();
  const Rule free = parts.free_text();
  for (const std::string& one : names) {
    Sequence sequence;
    grammar.literal(sequence, one);
    grammar.add(name, std::move(sequence));
  }
  Sequence sequence{ByteGrammar::ref(parts.lead())};
  const bool json = dialect == "hermes", pairs = dialect == "argkv";
  grammar.literal(sequence, json    ? "<tool_call>\n{\"name\": \""
                            : pairs ? "<tool_call>"
                                    : "<tool_call>\n<function=");
  sequence.push_back(ByteGrammar::ref(name));
  grammar.literal(sequence, json ? "\", \"arguments\": {" : pairs ? "" : ">\n");
  sequence.push_back(ByteGrammar::ref(free));
  grammar.add(root, std::move(sequence));
  grammar.set_root(root);
  return grammar;
}

ApiResult<std::shared_ptr<const TokenGrammar>> answer_grammar(const Generation& generation,
                                                              const ServedModel& model) {
  using Made = std::shared_ptr<const TokenGrammar>;
  if (model.trie == nullptr) return Made();
  if (generation.tool_choice.mode == ToolChoice::Mode::required) {
    std::vector<std::string> names = generation.tool_choice.names;
    if (names.empty()) {
      for (const Json& tool : generation.tools) names.push_back(tool["function"]["name"]);
    }
    return Made(std::make_shared<TokenGrammar>(call_grammar(names, model.abilities.dialect), model.trie));
  }
  if (generation.format.kind == OutputFormat::Kind::text) return Made();
  // With tools the model may also call one, and then there is no form to hold it to.
  if (!generation.tools.empty() && generation.tool_choice.mode != ToolChoice::Mode::none) return Made();
  const bool any_object = generation.format.kind == OutputFormat::Kind::json_object;
  const Json schema = any_object ? Json{{"type", "object"}} : generation.format.schema;
  auto grammar = schema_to_grammar(schema, generation.format.strict);
  if (!grammar.ok()) {
    return ApiError{
        .code = "invalid_json_schema",
        .param = generation.format.param,
        .message = generation.format.param + ": the schema cannot be compiled: " + grammar.error().message};
  }
  return Made(std::make_shared<TokenGrammar>(std::move(*grammar), model.trie));
}

}  // namespace braid::server
