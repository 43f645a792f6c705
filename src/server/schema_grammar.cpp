// schema_grammar.cpp -- see schema_grammar.h. Strings, numbers and repetition are in grammar_parts.cpp.
#include "server/schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "server/fields.h"
#include "server/grammar_parts.h"
#include "text/arguments.h"

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

// Compiles one schema, or parts of it, into a grammar that others may add to as well.
class Compiler {
 public:
  Compiler(ByteGrammar& grammar, GrammarParts& parts, const Json& root, bool strict)
      : root_(root), strict_(strict), grammar_(grammar), parts_(parts) {}

  // The rule of the whole schema, or of a schema inside it.
  Rule value() { return made_.emplace_back(schema(root_, 0)); }
  Rule value(const Json& part) { return made_.emplace_back(schema(part, 1)); }

  // Empty: all went well. One sentence otherwise, and the rules are of no use.
  const std::string& error() {
    if (grammar_.symbols() > kMaxGrammarSymbols) fail("it is too large");
    if (error_.empty() && !grammar_.have_sentences(made_))
      fail("no finite value fits it: it contains itself");
    made_.clear();
    return error_;
  }

 private:
  static constexpr int kMaxMerges = 4096;
  int merges_ = 0;

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
      // References may lead a merge into itself, twice at each level.
      if (++merges_ > kMaxMerges) fail("its allOf and $ref have no end");
      if (!error_.empty()) return out;
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
  ByteGrammar& grammar_;
  GrammarParts& parts_;
  std::map<const Json*, Rule> references_;
  std::vector<Rule> made_;  // by value(), not looked at yet
  std::string error_;
};

// ---- Calls -----------------------------------------------------------------------------------------------

// Calls as the model's template writes them. Names are those of the offered tools; arguments follow the
// schema where the client asked for strictness, and are free elsewhere.
class CallCompiler {
 public:
  // `all_strict`: as if the client had asked for strictness everywhere.
  CallCompiler(ByteGrammar& grammar, GrammarParts& parts, const Generation& generation,
               const std::string& dialect, bool all_strict)
      : grammar_(grammar),
        parts_(parts),
        generation_(generation),
        dialect_(dialect),
        all_strict_(all_strict) {}

  // What stands behind the opening marker, up to the end of the closing one.
  Rule body() {
    const Rule rule = grammar_.add_rule();
    const std::vector<std::string>& chosen = generation_.tool_choice.names;
    for (const Json& tool : generation_.tools) {
      const Json& function = tool["function"];
      const auto& name = function["name"].get_ref<const std::string&>();
      if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) continue;
      Sequence out;
      const bool json = dialect_ == "hermes", pairs = dialect_ == "argkv";
      grammar_.literal(out, json ? "\n{\"name\": \"" : pairs ? "" : "\n<function=");
      grammar_.literal(out, name);
      const bool strict = (all_strict_ || generation_.strict_tools.contains(name)) && !pairs;
      if (json) {
        grammar_.literal(out, "\", \"arguments\": ");
        if (strict) {
          out.push_back(ByteGrammar::ref(arguments(function["parameters"])));
          grammar_.literal(out, "}\n</tool_call>");
        } else {
          grammar_.literal(out, "{");
          out.push_back(ByteGrammar::ref(parts_.text_until("</tool_call>")));
        }
      } else {
        grammar_.literal(out, pairs ? "" : ">\n");
        if (strict) {
          out.push_back(ByteGrammar::ref(parameters(function["parameters"])));
          grammar_.literal(out, "</function>\n</tool_call>");
        } else {
          // Another function in the same wrapper would be a call of any name.
          out.push_back(ByteGrammar::ref(parts_.text_until("</tool_call>", "\n<function=")));
        }
      }
      grammar_.add(rule, std::move(out));
    }
    return rule;
  }

  // One call and, if they may be several, more of them.
  Rule calls() {
    const Rule rule = grammar_.add_rule(), more = grammar_.add_rule();
    Sequence one;
    grammar_.literal(one, "<tool_call>");
    one.push_back(ByteGrammar::ref(body()));
    one.push_back(ByteGrammar::ref(more));
    grammar_.add(rule, std::move(one));
    grammar_.add(more, {});
    if (generation_.parallel_calls) grammar_.add(more, {grammar_.byte('\n'), ByteGrammar::ref(rule)});
    return rule;
  }

  // Free text in which a call, where one begins, keeps the form.
  Rule text_with_calls() {
    const Rule rule = grammar_.add_rule(), call = body();
    grammar_.add(rule, {ByteGrammar::ref(parts_.text_without("<tool_call>"))});
    grammar_.add(rule, {ByteGrammar::ref(parts_.text_until("<tool_call>")), ByteGrammar::ref(call),
                        ByteGrammar::ref(rule)});
    return rule;
  }

  const std::string& error() const { return error_; }

 private:
  Rule arguments(const Json& schema) {
    Compiler compiler(grammar_, parts_, schema, false);
    const Rule rule = compiler.value();
    if (error_.empty()) error_ = compiler.error();
    return rule;
  }

  // <parameter=KEY>\nVALUE\n</parameter>\n for each property, in the schema's order.
  Rule parameters(const Json& schema) {
    Compiler compiler(grammar_, parts_, schema, false);
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end() && names->is_array()) {
      for (const Json& name : *names) {
        if (name.is_string()) required.insert(name.get<std::string>());
      }
    }
    Sequence all;
    const auto listed = schema.find("properties");
    if (listed != schema.end() && listed->is_object()) {
      for (const auto& [name, property] : listed->items()) {
        const Rule rule = grammar_.add_rule();
        Sequence one;
        grammar_.literal(one, "<parameter=" + name + ">\n");
        one.push_back(ByteGrammar::ref(parameter_value(property, compiler)));
        grammar_.literal(one, "\n");
        grammar_.add(rule, std::move(one));
        if (!required.contains(name)) grammar_.add(rule, {});
        all.push_back(ByteGrammar::ref(rule));
      }
    }
    if (error_.empty()) error_ = compiler.error();
    const Rule rule = grammar_.add_rule();
    grammar_.add(rule, std::move(all));
    return rule;
  }

  // Strings stand without quotes and end where the tag does; everything else is JSON.
  Rule parameter_value(const Json& property, Compiler& compiler) {
    constexpr std::string_view kEnd = "\n</parameter>";
    const Rule rule = grammar_.add_rule();
    const auto add = [&](std::string_view text) {
      Sequence out;
      grammar_.literal(out, text);
      grammar_.literal(out, kEnd);
      grammar_.add(rule, std::move(out));
    };
    if (const auto values = property.find("enum");
        values != property.end() && values->is_array() && !values->empty()) {
      for (const Json& value : *values)
        add(value.is_string() ? value.get<std::string>() : json_literal(value));
      return rule;
    }
    const auto types = schema_types(property);
    const bool text =
        types.empty() || std::find(types.begin(), types.end(), ArgumentType::string) != types.end();
    if (text) {
      // The line feed behind the opening tag may be the one before the closing tag, of an empty text. What
      // would end the call for whoever reads it does not stand in a text.
      grammar_.add(rule, {ByteGrammar::ref(parts_.text_until(kEnd, "\n</function>\n</tool_call>", "\n"))});
    } else {
      Sequence out{ByteGrammar::ref(compiler.value(property))};
      grammar_.literal(out, kEnd);
      grammar_.add(rule, std::move(out));
    }
    return rule;
  }

  ByteGrammar& grammar_;
  GrammarParts& parts_;
  const Generation& generation_;
  std::string dialect_;
  bool all_strict_;
  std::string error_;
};

ApiError schema_error(const std::string& param, const std::string& reason) {
  return {.code = "invalid_json_schema",
          .param = param,
          .message = param + ": the schema cannot be compiled: " + reason};
}

}  // namespace

Result<ByteGrammar> schema_to_grammar(const Json& schema, bool strict) {
  ByteGrammar grammar;
  GrammarParts parts(grammar);
  Compiler compiler(grammar, parts, schema, strict);
  const Rule value = compiler.value();
  // A few blanks may stand before the value: models write them behind a thought.
  const Rule root = grammar.add_rule();
  grammar.add(root, {ByteGrammar::ref(parts.lead()), ByteGrammar::ref(value)});
  grammar.set_root(root);
  if (!compiler.error().empty()) return Error{ErrorKind::unsupported, compiler.error()};
  return grammar;
}

ApiResult<std::shared_ptr<const TokenGrammar>> answer_grammar(const Generation& generation,
                                                              const ServedModel& model,
                                                              const AnswerPolicy& policy) {
  using Made = std::shared_ptr<const TokenGrammar>;
  using Mode = ToolChoice::Mode;
  if (model.trie == nullptr) return Made();
  const bool calls = !generation.tools.empty() && generation.tool_choice.mode != Mode::none;
  const bool required = calls && generation.tool_choice.mode == Mode::required;
  const bool form = generation.format.kind != OutputFormat::Kind::text && !required;
  const bool held = calls && (policy.tool_form != AnswerPolicy::ToolForm::free ||
                              !generation.strict_tools.empty() || !generation.tool_choice.names.empty());
  if (!required && !form && !held) return Made();
  const bool full = policy.tool_form == AnswerPolicy::ToolForm::full;

  ByteGrammar grammar;
  GrammarParts parts(grammar);
  const Rule root = grammar.add_rule(), content = grammar.add_rule();
  const bool choice = form && generation.format.kind == OutputFormat::Kind::choice;
  // A few blanks may stand before the value, which conversations drop; a completion is what was chosen.
  Sequence whole{ByteGrammar::ref(parts.lead()), ByteGrammar::ref(content)};
  if (choice && generation.endpoint == Endpoint::completions) whole.erase(whole.begin());
  grammar.add(root, std::move(whole));
  grammar.set_root(root);
  const bool any_object =
      generation.format.kind == OutputFormat::Kind::json_object && generation.format.schema.is_null();
  const Json schema = any_object ? Json{{"type", "object"}} : generation.format.schema;
  if (choice) {
    for (const std::string& text : generation.format.choices) {
      Sequence one;
      grammar.literal(one, text);
      grammar.add(content, std::move(one));
    }
  } else if (form) {
    Compiler compiler(grammar, parts, schema, generation.format.strict);
    grammar.add(content, {ByteGrammar::ref(compiler.value())});
    if (!compiler.error().empty()) return schema_error(generation.format.param, compiler.error());
  }
  if (calls) {
    // The first marker decides between a value of the form and calls.
    CallCompiler compiler(grammar, parts, generation, model.abilities.dialect, full);
    grammar.add(content,
                {ByteGrammar::ref(form || required ? compiler.calls() : compiler.text_with_calls())});
    if (!compiler.error().empty()) {
      // Nobody but the operator asked for it: names are better than no answer.
      AnswerPolicy names = policy;
      names.tool_form = AnswerPolicy::ToolForm::names;
      if (full && generation.strict_tools.empty()) return answer_grammar(generation, model, names);
      return schema_error("tools", compiler.error());
    }
  }
  return Made(std::make_shared<TokenGrammar>(std::move(grammar), model.trie));
}

}  // namespace braid::server
