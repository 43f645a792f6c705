// schema_grammar_test.cpp -- which texts a schema's grammar takes, and which tokens that leaves.
#include "server/schema/schema_grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "server/grammar/grammar_matcher.h"
#include "server/requests/read_request.h"
#include "server/schema/answer_mask.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

class Form {
 public:
  explicit Form(const std::string& schema, bool strict = false) {
    auto made = schema_to_grammar(Json::parse(schema), strict, *demo_served_model(nullptr)->grammars);
    if (!made.ok()) {
      error = made.error().message;
      return;
    }
    program = *made;
  }
  bool takes(const std::string& text) const { return whole(program, text); }
  static bool whole(const std::shared_ptr<const GrammarProgram>& program, const std::string& text) {
    if (program == nullptr) return false;
    GrammarMatcher matcher(program);
    return matcher.advance(text) && matcher.accepts();
  }
  std::shared_ptr<const GrammarProgram> program;
  std::string error;
};

void expect_form(const std::string& schema, const std::vector<std::string>& good,
                 const std::vector<std::string>& bad) {
  const Form form(schema);
  ASSERT_EQ(form.error, "") << schema;
  for (const auto& text : good) EXPECT_TRUE(form.takes(text)) << schema << "\n  should take " << text;
  for (const auto& text : bad) EXPECT_FALSE(form.takes(text)) << schema << "\n  should not take " << text;
}

TEST(SchemaGrammar, Objects) {
  expect_form(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
      {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}", " \n{\"a\":1}",
       R"({"b":"x","a":1})"},
      {"{}", R"({"b":"x"})", R"({"a":1,})", R"({"a":1,"c":2})", R"({"a":"1"})", "[]", R"({"a":1} )"});
  expect_form(R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})",
              {"{}", R"({"b":null})", R"({"a":1,"c":[]})", R"({"c":{}})", R"({"c":1,"a":1})"},
              {R"({"c":1,"c":1})", R"({"a":1,"b":2,"a":3})", R"({,"a":1})"});
  expect_form(R"({"type":"object","additionalProperties":{"type":"boolean"}})",
              {"{}", R"({"x":true,"y":false})"}, {R"({"x":1})"});
  expect_form(R"({"type":"object"})", {"{}", R"({"any":{"deep":[1,"x",null]}})"}, {"[]", "1"});
}

std::string joined_by(const std::vector<std::string>& parts, const std::string& between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

// All sequences of up to five members out of four: taken if none comes twice and the required ones are there.
TEST(SchemaGrammar, MembersComeInAnyOrderOnceEachAndTheRequiredOnesAll) {
  const Form form(R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"},
      "b":{"type":"string"},"aab":{"type":"boolean"}},"required":["b","aab"]})");
  ASSERT_EQ(form.error, "");
  const std::vector<std::string> members = {R"("a":1)", R"("ab":null)", R"("b":"")", R"("aab":true)"};
  const std::function<void(std::vector<size_t>)> check = [&](const std::vector<size_t>& chosen) {
    const std::set<size_t> once(chosen.begin(), chosen.end());
    const bool fits = once.size() == chosen.size() && once.contains(2) && once.contains(3);
    std::vector<std::string> parts;
    for (const size_t i : chosen) parts.push_back(members[i]);
    const std::string text = "{" + joined_by(parts, ",") + "}";
    EXPECT_EQ(form.takes(text), fits) << text;
    if (chosen.size() == 5) return;
    for (size_t i = 0; i < members.size(); ++i) {
      std::vector<size_t> more = chosen;
      more.push_back(i);
      check(more);
    }
  };
  check({});
}

// A member that is not listed has another name than those that are, however the name is written.
TEST(SchemaGrammar, MembersThatAreNotListedComeAnywhereAndHaveOtherNames) {
  expect_form(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b\"\n":{"type":"null"}},"required":["a"],
      "additionalProperties":{"type":"boolean"}})",
      {R"({"a":1})", R"({"x":true,"a":1})", R"({"a":1,"x":true,"b\"\n":null,"y":false})",
       R"({"aa":true,"a":1,"":true,"b":true})", R"({"b\"":true,"a":1,"b\"\n\n":true})",
       R"({"a":1,"\u0001é😀":true})"},
      {R"({"x":true})", R"({"a":true})", R"({"a":1,"a":true})", R"({"a":1,"\u0061":true})",
       R"({"a":1,"b\"\n":true})", R"({"a":1,"b\"\u000a":true})", R"({"a":1,"\/":true})", R"({"a":1,"x":1})"});
}

TEST(SchemaGrammar, Arrays) {
  expect_form(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1, 2,3]"},
              {"[1,]", "[\"a\"]", "1"});
  expect_form(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
              {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"});
  expect_form(R"({"type":"array","items":{"type":"integer"},"minItems":1})", {"[1]", "[1,2,3,4]"}, {"[]"});
  expect_form(R"({"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":false})",
              {R"(["a",null])"}, {R"(["a"])", R"(["a",null,1])", "[]"});
}

TEST(SchemaGrammar, StringsAndNumbers) {
  expect_form(R"({"type":"string"})", {R"("")", R"("a\"\\\n\u00e9é😀")"},
              {R"("a)", "\"\n\"", "a", R"("\x")", "\"\x80\""});
  expect_form(R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("é😀x")", R"("a\nb")"},
              {R"("a")", R"("abcd")", R"("")"});
  expect_form(R"({"type":"string","minLength":2})", {R"("ab")", R"("abcdef")"}, {R"("a")"});
  expect_form(R"({"type":"number"})", {"0", "-1", "1.5", "2e10", "1.25E-3"},
              {"01", "1.", ".5", "+1", "-", "NaN"});
  expect_form(R"({"type":"integer"})", {"0", "-12", "123456"}, {"1.0", "00", "-0", "1e3"});
  expect_form(R"({"enum":["red","blue",3,null]})", {R"("red")", "3", "null"}, {R"("green")", "4", "red"});
  expect_form(R"({"const":{"a":[1]}})", {R"({"a":[1]})"}, {R"({"a":[2]})"});
  expect_form(R"({"type":["string","null"]})", {R"("x")", "null"}, {"1"});
  expect_form(R"({"type":"string","nullable":true})", {R"("x")", "null"}, {"1"});
}

TEST(SchemaGrammar, RangesOfIntegersAreExact) {
  const std::vector<std::pair<int, int>> ranges = {{0, 9},     {3, 17}, {-5, 5}, {-120, -99},
                                                   {95, 1203}, {7, 7},  {0, 100}};
  for (const auto& [low, high] : ranges) {
    const Form form(R"({"type":"integer","minimum":)" + std::to_string(low) + R"(,"maximum":)" +
                    std::to_string(high) + "}");
    ASSERT_EQ(form.error, "");
    for (int n = -1300; n <= 1300; ++n) {
      ASSERT_EQ(form.takes(std::to_string(n)), n >= low && n <= high) << n << " in " << low << ".." << high;
    }
  }
  expect_form(R"({"type":"integer","exclusiveMinimum":4})", {"5", "1000"}, {"4", "-1"});
  expect_form(R"({"type":"integer","maximum":-2})", {"-2", "-1000"}, {"-1", "0", "3"});
}

TEST(SchemaGrammar, FormatsAndPatterns) {
  expect_form(R"({"type":"string","format":"date"})", {R"("2026-11-21")"},
              {R"("2026-13-01")", R"("2026-1-1")"});
  expect_form(R"({"type":"string","format":"date-time"})",
              {R"("2026-11-21T10:20:30Z")", R"("2026-11-21T10:20:30.5+01:00")"},
              {R"("2026-11-21 10:20:30Z")"});
  expect_form(R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
              {R"("123")"});
  expect_form(R"({"type":"string","pattern":"^[A-Z]{2,3}-\\d+(x|yz)?$"})", {R"("AB-1")", R"("ABC-12yz")"},
              {R"("A-1")", R"("AB-")", R"("AB-1xyz")", R"(" AB-1")"});
  expect_form(R"({"type":"string","pattern":"b+"})", {R"("abba")", R"("b")"}, {R"("a")", R"("")"});
  expect_form(R"({"type":"string","pattern":"^[^\"]*$"})", {R"("é")", R"("a\\b")"}, {R"("a\"b")"});
}

TEST(SchemaGrammar, CombinationsAndReferences) {
  expect_form(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("x")"}, {"true"});
  expect_form(R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                  {"properties":{"b":{"type":"null"}},"required":["b"]}]})",
              {R"({"a":1,"b":null})"}, {R"({"a":1})", R"({"b":null})"});
  expect_form(R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
                  "next":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}},"required":["v","next"]}}})",
              {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
              {R"({"v":1})", R"({"v":1,"next":1})"});
  expect_form("{}", {"1", "[]", R"({"a":[true,null,{"b":"c"}]})"}, {"", "tru", "[1"});
  expect_form("true", {"1"}, {""});
}

TEST(SchemaGrammar, WhatCannotBeCompiledSaysWhy) {
  EXPECT_NE(Form(R"({"$ref":"http://example.org/x"})").error, "");
  EXPECT_NE(Form(R"({"$ref":"#/$defs/none"})").error, "");
  EXPECT_NE(Form(R"({"type":"thing"})").error, "");
  EXPECT_NE(Form(R"({"type":"array","minItems":1000000000})").error, "");
  EXPECT_NE(Form(R"({"type":"string","maxLength":-1})").error, "");
  EXPECT_NE(Form(R"({"enum":[]})").error, "");
  EXPECT_NE(Form("false").error, "");
  EXPECT_EQ(Form(R"({"type":"string","contentEncoding":"base64"})").error, "");
  EXPECT_NE(Form(R"({"type":"string","contentEncoding":"base64"})", true).error, "");
  EXPECT_NE(Form(R"({"type":"string","pattern":"(?=x)y"})", true).error, "");
}

TEST(SchemaGrammar, BombsAreRefusedOrStaySmall) {
  std::string nested = R"({"type":"string","maxLength":20000})";
  for (int i = 0; i < 3; ++i)
    nested = R"({"type":"array","minItems":100,"maxItems":10000,"items":)" + nested + "}";
  EXPECT_EQ(Form(nested).error, "");  // bounds are counted
  // No finite value fits these.
  EXPECT_NE(Form(R"({"$ref":"#"})").error, "");
  EXPECT_NE(Form(R"({"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]})").error, "");
  EXPECT_NE(Form(R"({"type":"array","minItems":1,"items":{"$ref":"#"}})").error, "");
  // These end, however they begin.
  EXPECT_TRUE(Form(R"({"type":"array","items":{"$ref":"#"}})").takes("[[],[[]]]"));
  EXPECT_TRUE(Form(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})").takes("null"));
  EXPECT_TRUE(Form(R"({"type":"string","pattern":"^((a*)*)*$"})").takes(R"("aaa")"));
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 1500; ++i)
    wide += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"null"})";
  const Form form(wide + "}}");
  ASSERT_EQ(form.error, "");
  EXPECT_TRUE(form.takes(R"({"p3":null,"p1499":null})"));
}

std::vector<int32_t> allowed_by(GrammarMatcher& matcher, const Tokenizer& tokenizer) {
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  matcher.allowed(bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.size(); ++id)
    if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
  return ids;
}

// Walks the form with tokens chosen at random among the allowed ones, which are compared with those that the
// form takes byte by byte.
std::string random_answer(const Form& form, uint32_t seed, int steps = 400) {
  const auto model = demo_served_model(nullptr);
  const Tokenizer& tokenizer = *model->tokenizer;
  GrammarMatcher matcher(form.program);
  std::mt19937 random(seed);
  std::string text;
  for (int step = 0; step < steps; ++step) {
    const std::vector<int32_t> ids = allowed_by(matcher, tokenizer);
    const size_t depth = matcher.depth();
    std::vector<int32_t> possible;
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (tokenizer.piece(id).empty() || !matcher.advance(tokenizer.piece(id))) continue;
      matcher.rewind_to(depth);
      possible.push_back(id);
    }
    EXPECT_EQ(ids, possible) << text;
    if (ids.empty() || (matcher.accepts() && random() % 4 == 0)) break;
    // Short tokens more often, as they end things.
    int32_t id = ids[random() % ids.size()];
    for (int i = 0; i < 3; ++i)
      if (const int32_t other = ids[random() % ids.size()];
          tokenizer.piece(other).size() < tokenizer.piece(id).size())
        id = other;
    text += tokenizer.piece(id);
    EXPECT_TRUE(matcher.advance(tokenizer.piece(id)));
  }
  EXPECT_TRUE(matcher.accepts()) << text;
  return text;
}

TEST(GrammarMatcher, AllowedTokensLeadToValidAnswers) {
  const Form form(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer",
      "minimum":0,"maximum":130},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},
      "required":["name","age","tags"]})");
  ASSERT_EQ(form.error, "");
  for (uint32_t round = 0; round < 6; ++round) {
    const std::string text = random_answer(form, round);
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_LE(json["age"].get<int>(), 130);
  }
}

// ---- Calls -----------------------------------------------------------------------------------------------

class Calls {
 public:
  explicit Calls(const std::string& more, const AnswerPolicy& policy = {})
      : model(demo_served_model(nullptr)) {
    auto read = read_chat(Json::parse(R"({"messages":[{"role":"user","content":"q"}],)" + more + "}"), {});
    EXPECT_TRUE(read.ok()) << read.error().message;
    auto made = answer_grammar(*read, *model, policy);
    EXPECT_TRUE(made.ok()) << made.error().message;
    program = *made;
  }
  bool takes(const std::string& text) const { return Form::whole(program, text); }
  std::shared_ptr<ServedModel> model;
  std::shared_ptr<const GrammarProgram> program;
};

std::string tools(bool strict) {
  return R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
    "s":{"type":"string"},"n":{"type":"integer"},"e":{"enum":["a","b",3]}},"required":["s","n"]},"strict":)" +
         std::string(strict ? "true" : "false") + R"(}},{"type":"function","function":{"name":"g"}}])";
}

const std::string kGood =
    "<tool_call>\n<function=f>\n<parameter=s>\nany </parameter> "
    "text\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
    "</function>\n</tool_call>";
const std::string kBad =
    "<tool_call>\n<function=f>\n<parameter=n>\nx\n</parameter>\n</function>\n</tool_call>";

TEST(CallGrammar, RequiredCallsHoldNamesAndStrictArguments) {
  const Calls strict(R"("tool_choice":"required",)" + tools(true)),
      loose(R"("tool_choice":"required",)" + tools(false));
  EXPECT_TRUE(strict.takes(kGood));
  EXPECT_TRUE(strict.takes("\n\n" + kGood + "\n<tool_call>\n<function=g>\n</function>\n</tool_call>"));
  EXPECT_FALSE(strict.takes(kBad));
  EXPECT_TRUE(loose.takes(kBad));
  EXPECT_FALSE(loose.takes("Hello"));
  EXPECT_FALSE(loose.takes("<tool_call>\n<function=h>\n</function>\n</tool_call>"));
  const std::string chosen = "\n<parameter=e>\n3\n</parameter>\n</function>";
  std::string with_enum = kGood;
  with_enum.replace(with_enum.find("\n</function>"), 12, chosen);
  EXPECT_TRUE(strict.takes(with_enum));
  with_enum.replace(with_enum.find("\n3\n") + 1, 1, "4");
  EXPECT_FALSE(strict.takes(with_enum));
  const Calls one(R"("tool_choice":"required","parallel_tool_calls":false,)" + tools(true));
  EXPECT_TRUE(one.takes(kGood));
  EXPECT_FALSE(one.takes(kGood + "\n" + kGood));
  const Calls named(R"("tool_choice":{"type":"function","function":{"name":"g"}},)" + tools(true));
  EXPECT_FALSE(named.takes(kGood));
  EXPECT_TRUE(named.takes("<tool_call>\n<function=g>\n</function>\n</tool_call>"));
}

TEST(CallGrammar, ParametersComeInAnyOrderOnceEachAndTheRequiredOnesAll) {
  AnswerPolicy policy;
  policy.tool_form = AnswerPolicy::ToolForm::full;
  const std::string name(64, 'n');
  const Calls calls(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
      "properties":{"s":{"type":"string"},"n":{"type":"integer"},")" +
                        name + R"(":{"type":"integer"}},"required":["s"],"additionalProperties":true}}},
      {"type":"function","function":{"name":"g","parameters":{"type":"object",
      "properties":{"s":{"type":"string"},"n":{"type":"integer"}},"required":["s"],"additionalProperties":false}}}])",
                    policy);
  const auto call = [](const std::string& tool, const std::vector<std::pair<std::string, std::string>>& all) {
    std::string out = "<tool_call>\n<function=" + tool + ">\n";
    for (const auto& [key, value] : all) out += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
    return out + "</function>\n</tool_call>";
  };
  for (const std::string tool : {"f", "g"}) {
    const bool open = tool == "f";
    EXPECT_TRUE(calls.takes(call(tool, {{"s", "x"}, {"n", "7"}})));
    EXPECT_TRUE(calls.takes(call(tool, {{"n", "7"}, {"s", "x"}})));
    EXPECT_FALSE(calls.takes(call(tool, {{"n", "7"}})));
    EXPECT_FALSE(calls.takes(call(tool, {{"s", "x"}, {"s", "y"}})));
    EXPECT_FALSE(calls.takes(call(tool, {{"n", "x"}, {"s", "x"}})));
    EXPECT_EQ(calls.takes(call(tool, {{"z", "q"}, {"s", "x"}, {"sn", "q"}, {"n", "7"}})), open);
    // The first call's parameters are not those of the second.
    EXPECT_TRUE(calls.takes(call(tool, {{"s", "x"}}) + "\n" + call(tool, {{"s", "x"}})));
  }
  EXPECT_FALSE(calls.takes(call("f", {{"s", "x"}, {name, "q"}})));
  EXPECT_TRUE(calls.takes(call("f", {{"s", "x"}, {name, "7"}, {name + "n", "q"}})));
}

TEST(CallGrammar, StrictToolsBindCallsWhereverTheyBegin) {
  const Calls strict(tools(true));
  EXPECT_TRUE(strict.takes("Just text < with <tool marks."));
  EXPECT_TRUE(strict.takes("Let me see.\n\n" + kGood));
  EXPECT_TRUE(strict.takes(kGood + "\nand more text"));
  EXPECT_FALSE(strict.takes("Let me see.\n\n" + kBad));
  EXPECT_EQ(Calls(tools(false)).program, nullptr);
  AnswerPolicy policy;
  policy.tool_form = AnswerPolicy::ToolForm::names;
  const Calls names(tools(false), policy);
  EXPECT_TRUE(names.takes("Let me see.\n\n" + kBad));
  EXPECT_FALSE(names.takes("<tool_call>\n<function=h>\n</function>\n</tool_call>"));
  EXPECT_FALSE(
      names.takes("<tool_call>\n<function=g>\n</function>\n<function=h>\n</function>\n</tool_call>"));
  policy.tool_form = AnswerPolicy::ToolForm::full;
  const Calls full(tools(false), policy);
  EXPECT_TRUE(full.takes("Let me see.\n\n" + kGood));
  EXPECT_FALSE(full.takes("Let me see.\n\n" + kBad));
}

TEST(CallGrammar, WithAFormTheAnswerIsAValueOrCalls) {
  const Calls both(
      tools(true) +
      R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}})");
  EXPECT_TRUE(both.takes("12"));
  EXPECT_TRUE(both.takes(kGood));
  EXPECT_FALSE(both.takes("Hello"));
}

// ---- Masks -----------------------------------------------------------------------------------------------

class Mask {
 public:
  explicit Mask(MaskRules rules) : model(demo_served_model(nullptr)) {
    rules.tokenizer = model->tokenizer;
    rules.end_ids = model->tokenizer->end_ids();
    rules.think_close = *model->tokenizer->find("</think>");
    mask = make_mask(std::make_shared<MaskRules>(std::move(rules)));
  }
  std::vector<int32_t> allowed() const {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < model->tokenizer->size(); ++id) {
      if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
    }
    return ids;
  }
  std::vector<int32_t> ids(const std::string& text) const {
    return model->tokenizer->encode(text, {.add_special = false, .parse_special = true}).value();
  }
  std::shared_ptr<ServedModel> model;
  std::unique_ptr<TokenMask> mask;
};

TEST(AnswerMask, ABudgetClosesTheThoughtTokenByToken) {
  const auto tokenizer = demo_served_model(nullptr)->tokenizer;
  MaskRules rules;
  rules.starts_in_reasoning = true;
  rules.think_budget = 3;
  rules.closing = tokenizer->encode("\n</think>\n\n", {.add_special = false, .parse_special = true}).value();
  const size_t closing = rules.closing.size();
  Mask mask(rules);
  const int32_t word = mask.ids("x")[0];
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(mask.allowed().size(), 1000u);
    mask.mask->advance(word);
  }
  for (size_t i = 0; i < closing; ++i) {
    ASSERT_EQ(mask.allowed(), std::vector<int32_t>{rules.closing[i]});
    mask.mask->advance(rules.closing[i]);
  }
  EXPECT_GT(mask.allowed().size(), 1000u);
  mask.mask->rewind(static_cast<int32_t>(closing));
  EXPECT_EQ(mask.allowed(), std::vector<int32_t>{rules.closing[0]});
  mask.mask->rewind(1);
  EXPECT_GT(mask.allowed().size(), 1000u);
}

TEST(AnswerMask, AFormHoldsBehindTheThoughtOnly) {
  MaskRules rules;
  rules.starts_in_reasoning = true;
  rules.grammar = Form(R"({"const":7})").program;
  Mask mask(rules);
  for (const int32_t id : mask.ids("free {thought}\n</think>\n\n")) mask.mask->advance(id);
  for (const int32_t id : mask.allowed()) {
    const auto piece = mask.model->tokenizer->piece(id);
    EXPECT_TRUE(piece.find_first_not_of(" \n7") == std::string_view::npos) << piece;
  }
  mask.mask->advance(mask.ids("7")[0]);
  EXPECT_EQ(mask.allowed(), mask.model->tokenizer->end_ids());
}

// Of a conversation without any form: nearly everything may come, and both ways of asking say the same.
TEST(AnswerMask, ThoughtsAreNotClosedTwiceNorOpenedInTheMiddle) {
  const auto model = demo_served_model(nullptr);
  const int32_t open = *model->tokenizer->find("<think>"), close = *model->tokenizer->find("</think>");
  Generation generation;
  generation.endpoint = Endpoint::chat;
  const auto masks = MaskFactory::create(generation, *model, {}, true, true);
  ASSERT_TRUE(masks.ok());
  const auto mask = masks->make(-1);
  ASSERT_NE(mask, nullptr);
  const auto closed = [&] {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    std::set<int32_t> out;
    for (int32_t id = 0; id < model->tokenizer->size(); ++id)
      if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) out.insert(id);
    const auto few = mask->all_but();
    EXPECT_TRUE(few && std::set<int32_t>(few->begin(), few->end()) == out);
    return out;
  };
  EXPECT_EQ(closed(), std::set<int32_t>{});  // in the thought
  mask->advance(close);
  EXPECT_EQ(closed(), std::set<int32_t>{close});
  mask->advance(model->tokenizer->encode("x", {}).value()[0]);
  EXPECT_EQ(closed(), (std::set<int32_t>{open, close}));
  mask->rewind(2);
  EXPECT_EQ(closed(), std::set<int32_t>{});
  generation.endpoint = Endpoint::completions;
  EXPECT_EQ(MaskFactory::create(generation, *model, {}, false, false)->make(-1), nullptr);
}

TEST(AnswerMask, EndTokensWait) {
  MaskRules rules;
  rules.min_tokens = 2;
  Mask mask(rules);
  const auto has_end = [&] {
    const auto ids = mask.allowed();
    return std::find(ids.begin(), ids.end(), mask.model->tokenizer->end_ids()[0]) != ids.end();
  };
  EXPECT_FALSE(has_end());
  mask.mask->advance(65);
  EXPECT_FALSE(has_end());
  mask.mask->advance(65);
  EXPECT_TRUE(has_end());
}

TEST(AnswerMask, TokensThatTheClientStopsAtWaitAsEndTokensDo) {
  const auto model = demo_served_model(nullptr);
  Generation generation;
  generation.endpoint = Endpoint::completions;
  generation.min_tokens = 1;
  generation.stop_token_ids = {65};
  const auto mask = MaskFactory::create(generation, *model, {}, false, false)->make(-1);
  const auto has_stop = [&] {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    return (bits[1] >> 1 & 1) != 0;
  };
  EXPECT_FALSE(has_stop());
  mask->advance(66);
  EXPECT_TRUE(has_stop());
}

}  // namespace
}  // namespace braid::server
