// schema_grammar.cpp -- see schema_grammar.h.
#include "server/api/structured/schema_grammar.h"

#include <algorithm>

#include "server/api/structured/call_grammar.h"
#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/schema_reader.h"

namespace braid::server {

using Op = Instruction::Op;

namespace {

using Made = std::shared_ptr<const GrammarProgram>;

ApiError schema_error(const std::string& param, const std::string& reason) {
  return {.code = "invalid_json_schema",
          .param = param,
          .message = param + ": the schema cannot be compiled: " + reason};
}

// Adds a value of the schema and the end to `program`. Returns an error, or an empty string.
std::string add_value(GrammarProgram& program, ValueShapes& shapes, GrammarBudget& budget,
                      const Json& schema, bool strict) {
  SchemaReader reader(shapes, budget, schema, strict);
  const auto shape = reader.value();
  if (!reader.error().empty()) return reader.error();
  shapes.call(program, shape);
  program.add(Op::end);
  if (shapes.finish(program)) return {};
  if (budget.used_up()) return budget.sentence("the schema");
  return "a value in it has more than " + std::to_string(ValueShapes::kMaxAlternatives) +
         " alternatives, not counting words";
}

std::string add_choice(GrammarProgram& program, GrammarBudget& budget,
                       std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  const int32_t place = program.add(Op::words);
  const std::vector<int32_t> targets(texts.size(), program.here());
  program.at(place).a = program.add_words(WordSet(texts, false, {}, budget), targets);
  program.add(Op::end);
  return budget.used_up() ? budget.sentence("the list of choices") : std::string();
}

// Models write a few blanks between a thought and the value.
void add_lead(GrammarProgram& program) {
  program.set_start(program.here());
  program.add(Op::automaton, program.add_shared("lead", json_lead));
}

Made finished(GrammarProgram program, const GrammarBudget& budget) {
  program.set_bytes(budget.bytes());
  program.finish();
  return std::make_shared<const GrammarProgram>(std::move(program));
}

struct Wanted {
  bool calls, required, form, full;
};

GrammarCache::Made compile(const Generation& generation, const ServedModel& model,
                           const Wanted& wanted) {
  GrammarBudget budget;
  GrammarProgram program = model.grammars->program();
  ValueShapes shapes(budget);
  CallGrammar calls(program, shapes, budget, generation, model.abilities.dialect, wanted.full);
  if (wanted.calls && !wanted.form && !wanted.required) {
    program.set_start(calls.text_with_calls());
  } else {
    const bool choice = wanted.form && generation.format.kind == OutputFormat::Kind::choice;
    // No leading blanks in completions: the text must equal a choice.
    if (choice && generation.endpoint == Endpoint::completions)
      program.set_start(program.here());
    else
      add_lead(program);
    // The first marker selects the value or the calls.
    const int32_t fork = program.here();
    program.fork(wanted.form && wanted.calls ? std::vector{fork + 1, fork + 2}
                                             : std::vector{fork + 1});
    const int32_t first = program.add(Op::jump);
    const int32_t second = wanted.form && wanted.calls ? program.add(Op::jump) : first;
    if (wanted.form) {
      const bool any_object = generation.format.kind == OutputFormat::Kind::json_object &&
                              generation.format.schema.is_null();
      const Json schema = any_object ? Json{{"type", "object"}} : generation.format.schema;
      program.at(first).a = program.here();
      const std::string error =
          choice ? add_choice(program, budget, generation.format.choices)
                 : add_value(program, shapes, budget, schema, generation.format.strict);
      if (!error.empty()) return schema_error(generation.format.param, error);
    }
    if (wanted.calls) {
      const int32_t place = calls.calls();
      program.at(second).a = place;
    }
  }
  if (!calls.error().empty()) return schema_error("tools", calls.error());
  return finished(std::move(program), budget);
}

// Everything that compile() depends on.
std::string describe(const Generation& generation, const ServedModel& model, const Wanted& wanted) {
  Json out = Json::array({wanted.calls, wanted.required, wanted.form, wanted.full});
  if (wanted.form) {
    out.push_back(static_cast<int>(generation.format.kind));
    out.push_back(generation.format.schema);
    out.push_back(generation.format.strict);
    out.push_back(generation.format.param);
    out.push_back(Json(generation.format.choices));
    out.push_back(generation.endpoint == Endpoint::completions);
  }
  if (wanted.calls) {
    for (const Json& tool : generation.tools) {
      const Json& function = tool["function"];
      const auto& name = function["name"].get_ref<const std::string&>();
      const auto parameters = function.find("parameters");
      out.push_back(Json::array({name, generation.strict_tools.contains(name),
                                 parameters == function.end() ? Json() : *parameters}));
    }
    out.push_back(Json(generation.tool_choice.names));
    out.push_back(generation.parallel_calls);
    const Dialect& dialect = model.abilities.dialect;
    out.push_back(Json::array(
        {call_form_name(dialect.calls), dialect.between_calls, dialect.argkv_in_lines}));
  }
  return json_literal(out);
}

}  // namespace

Result<Made> schema_to_grammar(const Json& schema, bool strict, const GrammarCache& grammars) {
  GrammarBudget budget;
  GrammarProgram program = grammars.program();
  ValueShapes shapes(budget);
  add_lead(program);
  const std::string error = add_value(program, shapes, budget, schema, strict);
  if (!error.empty()) return Error{ErrorKind::unsupported, error};
  return finished(std::move(program), budget);
}

ApiResult<Made> answer_grammar(const Generation& generation, const ServedModel& model,
                               const AnswerPolicy& policy) {
  using Mode = ToolChoice::Mode;
  if (model.grammars == nullptr) return Made();
  Wanted wanted{};
  wanted.calls = !generation.tools.empty() && generation.tool_choice.mode != Mode::none;
  wanted.required = wanted.calls && generation.tool_choice.mode == Mode::required;
  wanted.form = generation.format.kind != OutputFormat::Kind::text && !wanted.required;
  wanted.full = policy.tool_form == AnswerPolicy::ToolForm::full;
  const bool held =
      wanted.calls && (policy.tool_form != AnswerPolicy::ToolForm::free ||
                       !generation.strict_tools.empty() || !generation.tool_choice.names.empty());
  if (!wanted.required && !wanted.form && !held) return Made();
  return model.grammars->find(describe(generation, model, wanted),
                              [&] { return compile(generation, model, wanted); });
}

}  // namespace braid::server
