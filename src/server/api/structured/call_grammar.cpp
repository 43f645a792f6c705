// call_grammar.cpp -- see call_grammar.h.
#include "server/api/structured/call_grammar.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <set>

#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/member_sets.h"
#include "server/api/structured/schema_reader.h"
#include "text/answer_parser.h"

namespace braid::server {

using Op = Instruction::Op;

namespace {

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out += part;
  return out;
}

// The opening of an unlisted parameter, through the byte after its name of at most `most` bytes.
Automaton parameter_name(std::string_view open, char behind, int64_t most) {
  GrammarBudget budget;
  Expression out(budget);
  const auto compiled = [&](Expression::Node node) {
    return *out.compile(node, Expression::Spelling::plain);
  };
  // The parser strips quotes from a name.
  const auto name =
      out.characters(complement({{0, 0x20}, {'<', '<'}, {'>', '>'}, {'"', '"'}, {'\'', '\''}}));
  Nfa byte(budget), whole(budget);
  const int32_t begin = byte.add(), end = byte.add();
  byte.edge(begin, 0, 0xFF, end);
  const auto names = with_length(compiled(out.repeat(name, 1, -1)), *byte.determinise(begin, end),
                                 1, most, budget);
  const int32_t first = whole.add(), before = whole.add(), after = whole.add(), last = whole.add();
  whole.embed(compiled(out.text(open)), first, before);
  whole.embed(*names, before, after);
  whole.edge(after, static_cast<uint8_t>(behind), static_cast<uint8_t>(behind), last);
  return *whole.determinise(first, last);
}

}  // namespace

CallGrammar::CallGrammar(GrammarProgram& program, ValueShapes& shapes, GrammarBudget& budget,
                         const Generation& generation, const Dialect& dialect, bool all_strict)
    : program_(program),
      shapes_(shapes),
      budget_(budget),
      generation_(generation),
      dialect_(dialect),
      line_(argkv() && !dialect.argkv_in_lines ? "" : "\n"),
      function_(joined({"\n", dialect.function.open})),
      name_open_(argkv() ? dialect.key.open : dialect.parameter.open),
      name_close_(argkv() ? joined({dialect.key.close, line_, dialect.value.open}) : ">\n"),
      parameter_end_(argkv() ? std::string(dialect.value.close)
                             : joined({"\n", dialect.parameter.close})),
      function_end_(argkv() ? std::string(dialect.call.close)
                            : joined({dialect.function.close, "\n", dialect.call.close})),
      hermes_end_(joined({"}\n", dialect.call.close})),
      all_strict_(all_strict) {}

void CallGrammar::add_text(std::string_view mark, std::string_view forbidden,
                           std::string_view begun) {
  std::string name = "until ";
  for (const std::string_view part : {mark, forbidden, begun}) name += std::string(part) + '\0';
  program_.add(Op::automaton,
               program_.add_shared(name, [&] { return text_until(mark, forbidden, begun); }));
}

int32_t CallGrammar::calls() {
  const int32_t place = program_.here();
  program_.literal(dialect_.call.open);
  body();
  const int32_t after = program_.here();
  if (generation_.parallel_calls) {
    program_.fork({after + 1, after + 2});
    program_.add(Op::end);
    add_literal(dialect_.between_calls);
    program_.add(Op::jump, place);
  } else {
    program_.add(Op::end);
  }
  finish_body(after);
  return place;
}

int32_t CallGrammar::text_with_calls() {
  const int32_t place = program_.here();
  const std::string name = "text until a call " + std::string(call_form_name(dialect_.calls));
  program_.add(Op::automaton, program_.add_shared(name, [&] { return text_until_call(dialect_); }));
  program_.at(place).b = 1;  // the answer may end in the text
  body();
  finish_body(place);
  return place;
}

void CallGrammar::finish_body(int32_t after) {
  for (const int32_t exit : exits_) program_.at(exit).a = after;
}

void CallGrammar::body() {
  names_ = program_.add(Op::words);
  const std::set<std::string>& chosen = generation_.tool_choice.names;
  std::vector<std::string> openings;
  std::vector<int32_t> places;
  for (const Json& offered : generation_.tools) {
    const Json& function = offered["function"];
    const auto& name = function["name"].get_ref<const std::string&>();
    if (!chosen.empty() && !chosen.contains(name)) continue;
    openings.push_back(hermes()  ? "\n{\"name\": " + json_literal(Json(name)) + ", \"arguments\": "
                       : argkv() ? name + line_
                                 : function_ + name + ">\n");
    places.push_back(tool(function, generation_.strict_tools.contains(name)));
    if (!error_.empty()) return;
  }
  budget_.spend(0, static_cast<int64_t>(openings.size()) * 64);
  program_.at(names_).a =
      program_.add_words(WordSet(openings, false, {}, budget_), std::move(places));
  if (budget_.used_up()) error_ = budget_.sentence("the list of tools");
}

// The code of one tool's arguments. A tool's schema may use at most a quarter of the budget.
int32_t CallGrammar::tool(const Json& function, bool strict) {
  const auto found = function.find("parameters");
  const Json schema = found == function.end() || found->is_null() ? Json(true) : *found;
  const bool says_nothing = !hermes() && !schema.is_object();
  if ((!strict && !all_strict_) || says_nothing) return free_arguments();
  GrammarBudget budget(std::min(budget_.steps_left(), GrammarBudget::kSteps / 4),
                       std::min(budget_.bytes_left(), GrammarBudget::kBytes / 4));
  shapes_.charge(budget);
  const int32_t place = program_.here();
  const size_t exits = exits_.size();
  reason_.clear();
  const bool made =
      hermes() ? strict_arguments(schema, budget) : strict_parameters(schema, strict, budget);
  budget_.spend(std::min(budget.steps(), budget_.steps_left()),
                std::min(budget.bytes(), budget_.bytes_left()));
  shapes_.charge(budget_);
  if (made) {
    program_.hold_tool(function["name"].get<std::string>());
    return place;
  }
  exits_.resize(exits);
  if (!strict) return free_arguments();
  error_ = function["name"].get<std::string>() + ": " + reason_;
  return place;
}

int32_t CallGrammar::free_arguments() {
  const int32_t place = program_.here();
  if (argkv()) {
    // Without a line feed, the next tag ends the name.
    const std::string_view next = line_.empty() ? "<" : "";
    add_literal(next);
    add_text(dialect_.call.close, {}, next);
    leave();
    return place;
  }
  if (!hermes()) {
    // Otherwise a second function in the wrapper could have any name.
    add_text(dialect_.call.close, function_);
    leave();
    return place;
  }
  shapes_.call(program_, shapes_.any_object());
  program_.literal(hermes_end_);
  leave();
  if (!shapes_.finish(program_) || budget_.used_up())
    error_ = budget_.sentence("the list of tools");
  return place;
}

bool CallGrammar::strict_arguments(const Json& schema, GrammarBudget& budget) {
  SchemaReader reader(shapes_, budget, schema, false);
  const auto shape = reader.object_value();
  reason_ = reader.error();
  if (!reason_.empty()) return false;
  shapes_.call(program_, shape);
  program_.literal(hermes_end_);
  leave();
  if (!shapes_.finish(program_)) reason_ = "a value in it has too many alternatives";
  if (budget.used_up()) reason_ = budget.sentence("the schema");
  return reason_.empty();
}

// Tag, value and closing tag of each parameter, in any order.
bool CallGrammar::strict_parameters(const Json& schema, bool strict, GrammarBudget& budget) {
  std::vector<std::unique_ptr<Json>> joined_schemas;  // referred to by `reader`
  SchemaReader reader(shapes_, budget, schema, false);
  if (strict) reader.value();  // reports all errors of the schema
  GrammarBudget text_budget(budget.steps_left() / 3, budget.bytes_left() / 3);
  SchemaReader texts(shapes_, text_budget, schema, false);
  const ToolParameters known = read_tool_parameters(schema);
  // Tags are split after the byte that follows the name, where the parameter is known.
  const std::string_view tag_end = std::string_view(name_close_).substr(1);
  if (!can_be_written(known)) return false;
  std::vector<std::string> openings, names;  // `names`: also those without a possible value
  std::vector<const ToolParameters::Parameter*> listed;
  std::vector<int32_t> required;
  for (const ToolParameters::Parameter& parameter : known.listed) {
    names.push_back(name_open_ + parameter.name + name_close_[0]);
    if (parameter.types.nothing()) continue;
    if (parameter.required) required.push_back(static_cast<int32_t>(openings.size()));
    openings.push_back(names.back());
    listed.push_back(&parameter);
  }
  budget.spend(static_cast<int64_t>(names.size()) * 4, static_cast<int64_t>(names.size()) * 108);
  const int32_t set = program_.add_words(WordSet(openings, true, required, budget),
                                         std::vector<int32_t>(openings.size(), 0));
  // Unlisted parameters: only if the schema mentions them, or lists none. JSON Schema allows them
  // by default, but weak models would invent names endlessly.
  const bool silent = !strict && !known.closed && known.listed.empty();
  const bool more = silent || !known.other_schemas.empty();
  program_.add(Op::set, MemberSets::kEmpty);  // an earlier call used the register
  const int32_t next = program_.here();
  auto ways = program_.fork(more ? 3 : 2);
  program_.way(ways);
  program_.add(Op::words, set);
  program_.way(ways);
  program_.add(Op::finished, set);
  program_.literal(function_end_);
  leave();
  const auto value = [&](const std::vector<const Json*>& schemas, bool all_hold,
                         const ArgumentTypes& types) {
    add_literal(tag_end);
    const Json* one = schemas.size() == 1 ? schemas[0] : nullptr;
    if (one == nullptr && types.values() == nullptr && !schemas.empty()) {
      Json list = Json::array();
      for (const Json* part : schemas) {
        list.push_back(*part);
        budget.spend(static_cast<int64_t>(part->size()) * 16 + 16);
      }
      joined_schemas.push_back(
          std::make_unique<Json>(Json{{all_hold ? "allOf" : "anyOf", std::move(list)}}));
      one = joined_schemas.back().get();
    }
    if (!parameter_value(one, types, reader, texts, budget, text_budget)) return;
    add_literal(line_);
    program_.add(Op::jump, next);
  };
  if (more) {
    program_.way(ways);
    int32_t others = set;
    if (names.size() > openings.size())
      others = program_.add_words(WordSet(names, false, {}, budget),
                                  std::vector<int32_t>(names.size(), 0));
    if (add_other_name(others, names)) value(known.other_schemas, false, known.others);
  }
  for (size_t i = 0; i < listed.size() && !budget.used_up() && reason_.empty(); ++i) {
    program_.set_target(set, static_cast<int32_t>(i), program_.here());
    value(listed[i]->schemas, listed[i]->all_hold, listed[i]->types);
  }
  budget.spend(std::min(text_budget.steps(), budget.steps_left()),
               std::min(text_budget.bytes(), budget.bytes_left()));
  if (reason_.empty()) reason_ = reader.error();
  if (reason_.empty() && !shapes_.finish(program_))
    reason_ = "a value in it has too many alternatives";
  if (reason_.empty() && budget.used_up()) reason_ = budget.sentence("the schema");
  if (!reason_.empty()) shapes_.forget_calls();
  return reason_.empty();
}

bool CallGrammar::can_be_written(const ToolParameters& known) {
  for (const ToolParameters::Parameter& parameter : known.listed) {
    if (!can_name_parameter(parameter.name, dialect_))
      reason_ = "the name of the parameter " + shown(parameter.name) +
                " cannot be written in a call: " +
                (argkv() ? "it has blanks at its ends or a tag in it"
                         : "it has blanks at its ends, a '>' or a line feed in it, or not 1 to " +
                               std::to_string(answer_limits::kMaxNameBytes) + " bytes");
    else if (parameter.types.nothing() && parameter.required)
      reason_ = "no value fits the parameter " + shown(parameter.name);
    if (!reason_.empty()) return false;
  }
  return true;
}

// A name of maximum length could only end. So the maximum is a length that no listed name has.
bool CallGrammar::add_other_name(int32_t set, const std::vector<std::string>& openings) {
  constexpr size_t kBytes = 64;
  std::set<size_t> taken;
  for (const std::string& opening : openings) taken.insert(opening.size() - name_open_.size() - 1);
  size_t most = kBytes;
  while (most <= answer_limits::kMaxNameBytes && taken.contains(most)) ++most;
  if (most > answer_limits::kMaxNameBytes) return false;
  const char behind = name_close_[0];
  program_.other_name(set, "name " + name_open_ + '\0' + behind + std::to_string(most), [&] {
    return parameter_name(name_open_, behind, static_cast<int64_t>(most));
  });
  return true;
}

// Without quotes, up to the closing tag.
void CallGrammar::string_value() {
  // In argkv only the closing tag ends the value for the parser.
  if (argkv()) return add_text(parameter_end_);
  // For an empty text, the line feed after the opening tag may also precede the closing tag. Text
  // that the parser would read as the end of the call is excluded.
  add_text(parameter_end_, "\n" + function_end_, "\n");
}

// A text that matches its schema, up to the first closing tag. False: any text, or over budget.
bool CallGrammar::held_text(const Json& schema, bool null, SchemaReader& texts,
                            GrammarBudget& budget) {
  const SchemaReader::PlainText held = texts.plain_text(schema);
  if (held.any || !held.texts) return false;
  Nfa nfa(budget);
  const int32_t start = nfa.add(), behind = nfa.add(), end = nfa.add();
  const auto literal = [&](std::string_view text, int32_t from) {
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t to = i + 1 == text.size() ? end : nfa.add();
      nfa.edge(from, static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), to);
      from = to;
    }
  };
  nfa.embed(*held.texts, start, behind);
  literal(parameter_end_, behind);
  if (null)
    for (const std::string_view word : {"null", "None"})
      literal(joined({word, parameter_end_}), start);
  if (!argkv() && !held.texts->empty() && held.texts->accepts(0))
    literal(std::string_view(parameter_end_).substr(1), start);
  const auto ended = nfa.determinise(start, end);
  const Automaton until =
      argkv() ? text_until(parameter_end_) : text_until(parameter_end_, "\n" + function_end_, "\n");
  const auto made = ended ? combined(until, *ended, false, budget) : std::nullopt;
  if (!made || budget.used_up()) return false;
  if (made->empty())
    reason_ = "no text fits a parameter of it";
  else
    program_.add(Op::automaton, program_.add_automaton(*made));
  return true;
}

// Texts are unquoted, other values JSON. `types`: as the answer parser reads `schema`.
bool CallGrammar::parameter_value(const Json* schema, const ArgumentTypes& types,
                                  SchemaReader& reader, SchemaReader& texts_of,
                                  GrammarBudget& budget, GrammarBudget& text_budget) {
  if (types.values() != nullptr) {
    std::set<std::string> texts;
    const std::string tag = parameter_end_.substr(argkv() ? 0 : 1);
    for (const ArgumentTypes::Value& value : *types.values()) {
      budget.spend(8 + compared_steps(texts.size(), value.text.size()), 16);
      // The parser ends the value at the first such tag.
      if (value.text.find(parameter_end_) == std::string::npos && !value.text.starts_with(tag))
        texts.insert(value.text + parameter_end_);
    }
    if (texts.empty()) reason_ = "the listed values of a parameter cannot be written in a call";
    if (texts.empty()) return false;
    const int32_t behind = program_.here() + 1;
    const std::vector<std::string> list(texts.begin(), texts.end());
    program_.add(Op::words, program_.add_words(WordSet(list, false, {}, budget),
                                               std::vector<int32_t>(list.size(), behind)));
    return true;
  }
  if (types.is_text() || schema == nullptr) {
    using Type = ArgumentType;
    const auto others = {Type::boolean, Type::integer, Type::number, Type::array, Type::object};
    const bool text =
        std::none_of(others.begin(), others.end(), [&](Type type) { return types.admits(type); });
    if (schema != nullptr && text &&
        held_text(*schema, types.admits(Type::null), texts_of, text_budget))
      return reason_.empty();
    string_value();
    return true;
  }
  shapes_.call(program_, reader.value(*schema));
  program_.literal(parameter_end_);
  return true;
}

}  // namespace braid::server
