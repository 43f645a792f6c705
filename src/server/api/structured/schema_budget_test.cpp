// schema_budget_test.cpp -- budgets of compiling, clean failure at every step, unknown keywords.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "server/api/structured/grammar_matcher.h"
#include "server/api/structured/schema_grammar.h"
#include "server/api/structured/schema_reader.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

const GrammarCache& grammars_of_demo() {
  static const auto kModel = demo_served_model(nullptr);
  return *kModel->grammars;
}

struct Compiled {
  std::string error;
  int64_t steps = 0, bytes = 0;
};

Compiled compiled(const Json& schema, bool strict, GrammarBudget budget = GrammarBudget()) {
  GrammarProgram program = grammars_of_demo().program();
  ValueShapes shapes(budget);
  SchemaReader reader(shapes, budget, schema, strict);
  const auto shape = reader.value();
  Compiled out{.error = reader.error()};
  if (out.error.empty()) {
    shapes.call(program, shape);
    program.add(Instruction::Op::end);
    if (!shapes.finish(program)) out.error = "too many alternatives";
    if (out.error.empty()) program.finish();
  }
  out.steps = budget.steps();
  out.bytes = budget.bytes();
  return out;
}

// Small schemas that together contain all keywords.
const char* const kSchemas[] = {
    R"({"type":"string","not":{"const":"x"}})",
    R"({"type":"string","not":{"pattern":"^a"},"maxLength":2})",
    R"({"type":"string","pattern":"^[ab]c?$","minLength":1,"maxLength":2})",
    R"({"type":"string","allOf":[{"pattern":"a"},{"pattern":"b"}],"not":{"enum":["ab","ba"]}})",
    R"({"type":"string","format":"ipv4"})",
    R"({"enum":["a",1,1.5,null,{"a":[true]},[]],"not":{"const":1}})",
    R"({"type":"integer","minimum":-2,"exclusiveMaximum":30,"multipleOf":3,"not":{"enum":[3,6]}})",
    R"({"type":"number","exclusiveMinimum":0.5,"maximum":2})",
    R"({"type":["null","boolean"],"not":{"const":true}})",
    R"({"type":"integer","nullable":true})",
    R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a","b"],"additionalProperties":{}})",
    R"({"type":"object","properties":{"a":{}},"patternProperties":{"^b":{"type":"null"},"c":false}})",
    R"({"type":"object","propertyNames":{"anyOf":[{"enum":["a","b"]},{"pattern":"^c$"},{"maxLength":1}]}})",
    R"({"type":"object","propertyNames":{"minLength":1},"properties":{"a":{}},"patternProperties":{"a":{}}})",
    R"({"type":"object","properties":{"a":{}},"allOf":[{"properties":{"b":{}}}],"unevaluatedProperties":false})",
    R"({"type":"object","dependentRequired":{"a":["b"]},"minProperties":1,"maxProperties":9})",
    R"({"dependentSchemas":{"a":{"required":["b"]}},"dependencies":{"c":["d"]}})",
    R"({"type":"array","items":{"$ref":"#"},"prefixItems":[{"type":"null"}],"minItems":1,"maxItems":3})",
    R"({"type":"array","contains":{"const":1},"items":{"type":"integer"},"uniqueItems":true})",
    R"({"$schema":"http://json-schema.org/draft-07/schema#","items":[{},{}],"additionalItems":false})",
    R"({"type":"array","prefixItems":[{}],"unevaluatedItems":false})",
    R"({"anyOf":[{"type":"null"},{"oneOf":[{"type":"integer"},{"minimum":3}]}]})",
    R"({"if":{"type":"integer"},"then":{"minimum":1},"else":{"type":"null"}})",
    R"({"$ref":"#/$defs/a","$defs":{"a":{"$anchor":"b","type":"object","properties":{"a":{"$ref":"#b"}}}}})",
    R"({"not":{"anyOf":[{"type":"string","minLength":1},{"required":["a"]},{"items":{"type":"null"}}]}})",
    "{}",
};

// Ends the budget at many steps; each is a clean error. BRAID_EVERY_STEP: at every step.
TEST(SchemaBudget, MayEndAnywhere) {
  constexpr int64_t kFirst = 1500, kLast = 200, kBetween = 150;
  const bool every = std::getenv("BRAID_EVERY_STEP") != nullptr;
  const auto next = [every](int64_t at, int64_t whole) {
    return every || at < kFirst || at >= whole - kLast
               ? at + 1
               : std::min(at + whole / kBetween, whole - kLast);
  };
  for (const char* text : kSchemas) {
    const Json schema = Json::parse(text);
    for (const bool strict : {false, true}) {
      const Compiled whole = compiled(schema, strict);
      for (int64_t steps = 0; steps < whole.steps; steps = next(steps, whole.steps))
        ASSERT_NE(compiled(schema, strict, GrammarBudget(steps)).error, "") << text << " " << steps;
      for (int64_t bytes = 0; bytes < whole.bytes; bytes += 1 + whole.bytes / kBetween)
        ASSERT_NE(compiled(schema, strict, GrammarBudget(whole.steps, bytes)).error, "") << text;
    }
  }
}

Json list_of(int from, int to, const char* text = nullptr) {
  Json out = Json::array();
  for (int i = from; i < to; ++i)
    out.push_back(text == nullptr ? Json(i) : Json(text + std::to_string(i)));
  return out;
}

TEST(SchemaBudget, ListsCostTheirComparisonsAndNoMore) {
  const auto steps_of = [](const std::function<Json(int)>& schema, int n) {
    GrammarBudget budget(int64_t{1} << 40, int64_t{1} << 40);
    const Compiled made = compiled(schema(n), false, budget);
    EXPECT_EQ(made.error, "") << n;
    return made.steps;
  };
  const std::pair<const char*, std::function<Json(int)>> kLists[] = {
      {"denied values of an enum",
       [](int n) {
         return Json{{"enum", list_of(0, n, "v")}, {"not", {{"enum", list_of(n, 2 * n, "v")}}}};
       }},
      {"denied texts",
       [](int n) {
         return Json{{"type", "string"}, {"not", {{"enum", list_of(0, n, "v")}}}};
       }},
      {"members that a listed value must have",
       [](int n) {
         Json value = Json::object();
         for (int i = 0; i < n; ++i) value["m" + std::to_string(i)] = i;
         return Json{{"enum", Json::array({value})}, {"required", list_of(0, n, "m")}};
       }},
  };
  for (const auto& [what, schema] : kLists) {
    const int64_t some = steps_of(schema, 1000), more = steps_of(schema, 4000);
    EXPECT_GE(some, 1000 * 2 * 9) << what;
    EXPECT_LE(more, some * 5) << what;
  }
  // The automaton of excluded numbers is large, but listing them is cheap.
  const Json numbers{{"type", "integer"}, {"not", {{"enum", list_of(0, 100'000)}}}};
  const Compiled made = compiled(numbers, false);
  EXPECT_NE(made.error.find("the range of a number"), std::string::npos) << made.error;
  EXPECT_LT(made.steps, GrammarBudget::kSteps + 4'000'000);
}

TEST(SchemaBudget, StepsOfNumbersAreASet) {
  NumberRule rule;
  for (const int step : {3, 2, 3, 2}) rule.steps.insert(*Decimal::of(Json(step)));
  EXPECT_EQ(rule.steps.size(), 2U);
  EXPECT_TRUE(rule.holds(*Decimal::of(Json(6))));
  EXPECT_FALSE(rule.holds(*Decimal::of(Json(4))));
}

TEST(SchemaBudget, AnotherSchemaIsNoWorseOff) {
  const Json free = Json::object(), first{{"enum", {"first"}}};
  for (int64_t steps = 0; steps < 400; ++steps) {
    GrammarBudget small(steps), budget;
    ValueShapes shapes(budget);
    SchemaReader(shapes, budget, first, false).value();
    shapes.charge(small);
    SchemaReader(shapes, small, free, false).value();
    shapes.charge(budget);
    GrammarProgram program = grammars_of_demo().program();
    program.set_start(program.here());
    shapes.call(program, shapes.any_object());
    program.add(Instruction::Op::end);
    ASSERT_TRUE(shapes.finish(program));
    program.finish();
    GrammarMatcher matcher(std::make_shared<const GrammarProgram>(std::move(program)));
    ASSERT_TRUE(matcher.advance(R"({"a":[1,{"b":null}]})") && matcher.accepts()) << steps;
  }
}

class Taken {
 public:
  explicit Taken(const std::string& schema, bool strict = false) {
    const auto made = schema_to_grammar(Json::parse(schema), strict, grammars_of_demo());
    if (made.ok())
      program_ = *made;
    else
      error = made.error().message;
  }
  bool takes(const std::string& text) const {
    if (program_ == nullptr) return false;
    GrammarMatcher matcher(program_);
    return matcher.advance(text) && matcher.accepts();
  }
  std::string error;

 private:
  std::shared_ptr<const GrammarProgram> program_;
};

void expect_taken(const std::string& schema, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  const Taken form(schema);
  ASSERT_EQ(form.error, "") << schema;
  for (const auto& text : good)
    EXPECT_TRUE(form.takes(text)) << schema << "\n  should take " << text;
  for (const auto& text : bad)
    EXPECT_FALSE(form.takes(text)) << schema << "\n  should not take " << text;
}

TEST(SchemaBounds, MultiplesHaveNoMoreDigitsThanADouble) {
  const Taken fives(R"({"type":"integer","multipleOf":5})"),
      hundreds(R"({"type":"integer","multipleOf":100})");
  EXPECT_TRUE(fives.takes(std::string(307, '1') + "5"));
  EXPECT_FALSE(fives.takes(std::string(308, '1') + "5"));
  EXPECT_TRUE(hundreds.takes("-18446744073709551600"));
  EXPECT_FALSE(hundreds.takes(std::string(398, '1') + "00"));
  EXPECT_TRUE(Taken(R"({"type":"integer","multipleOf":7,"minimum":8})").takes("14"));
  EXPECT_FALSE(
      Taken(R"({"type":"integer","multipleOf":5,"minimum":8})").takes(std::string(400, '5')));
}

TEST(SchemaBounds, TypesHaveTheNamesThatTheParserOfCallsKnows) {
  for (const char* name : {"uint", "short", "bigint", "Int64"})
    EXPECT_TRUE(Taken(Json{{"type", name}}.dump()).takes("7")) << name;
  for (const char* name : {"dictionary", "record", "Dict[str, int]"})
    EXPECT_TRUE(Taken(Json{{"type", name}}.dump()).takes("{}")) << name;
  EXPECT_TRUE(Taken(R"({"type":"list[int]"})").takes("[]"));
  EXPECT_TRUE(Taken(R"({"type":"any"})").takes("[]"));
  EXPECT_NE(Taken(R"({"type":"uint"})", true).error, "");
}

TEST(SchemaBounds, WhatIsNotUnderstoodBindsNobody) {
  // Whether the negated schema holds is unknown.
  expect_taken(R"({"enum":["a","b"],"not":{"pattern":"(?=x)x"}})", {R"("a")", R"("b")"},
               {R"("c")"});
  expect_taken(R"({"enum":["a",1],"not":{"type":"string","pattern":"(?=x)x"}})", {R"("a")", "1"},
               {});
  expect_taken(R"({"enum":["a",1],"not":{"type":"string"}})", {"1"}, {R"("a")"});
  expect_taken(R"({"enum":[[1],[]],"not":{"contains":{"multipleOf":0.12345}}})", {"[1]", "[]"}, {});
  expect_taken(R"({"enum":[{"a":1},{}],"not":{"patternProperties":{"(?=x)x":false}}})",
               {R"({"a":1})"}, {});
  expect_taken(R"({"enum":["a","b"],"oneOf":[{"pattern":"(?=x)x"},{"const":"a"}]})",
               {R"("a")", R"("b")"}, {});
  expect_taken(
      R"({"enum":[{"a":1},{"b":1}],"not":{"properties":{"a":{}},"unevaluatedProperties":false}})",
      {R"({"a":1})", R"({"b":1})"}, {});
  // Any name may match the unknown pattern, so `additionalProperties` excludes none.
  expect_taken(R"({"type":"object","patternProperties":{"(?=x)x":{}},"additionalProperties":false,
                  "properties":{"n":{"type":"integer"}}})",
               {R"({"x1":true,"n":1})", "{}"}, {R"({"n":"x"})"});
  expect_taken(
      R"({"type":"object","patternProperties":{"(?=x)x":{}},"allOf":[{"additionalProperties":false}]})",
      {"{}"}, {R"({"x1":true})"});
  expect_taken(
      R"({"type":"object","patternProperties":{"(?=x)x":{}},"unevaluatedProperties":false})",
      {R"({"x1":true})"}, {});
}

}  // namespace
}  // namespace braid::server
