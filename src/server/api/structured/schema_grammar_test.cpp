// schema_grammar_test.cpp -- texts and tokens that a schema's grammar accepts.
#include "server/api/structured/schema_grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "server/api/read_request.h"
#include "server/api/structured/answer_mask.h"
#include "server/api/structured/grammar_matcher.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

class Form {
 public:
  explicit Form(const std::string& schema, bool strict = false) {
    auto made =
        schema_to_grammar(Json::parse(schema), strict, *demo_served_model(nullptr)->grammars);
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
  for (const auto& text : good)
    EXPECT_TRUE(form.takes(text)) << schema << "\n  should take " << text;
  for (const auto& text : bad)
    EXPECT_FALSE(form.takes(text)) << schema << "\n  should not take " << text;
}

TEST(SchemaGrammar, Objects) {
  expect_form(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
      {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}", " \n{\"a\":1}",
       R"({"b":"x","a":1})", R"({"a":1,"c":2})"},
      {"{}", R"({"b":"x"})", R"({"a":1,})", R"({"a":"1"})", "[]", R"({"a":1} )"});
  expect_form(R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})",
              {"{}", R"({"b":null})", R"({"a":1,"c":[]})", R"({"c":{}})", R"({"c":1,"a":1})"},
              {R"({"c":1,"c":1})", R"({"a":1,"b":2,"a":3})", R"({,"a":1})"});
  expect_form(R"({"type":"object","additionalProperties":{"type":"boolean"}})",
              {"{}", R"({"x":true,"y":false})"}, {R"({"x":1})"});
  expect_form(R"({"type":"object"})", {"{}", R"({"any":{"deep":[1,"x",null]}})"}, {"[]", "1"});
}

TEST(SchemaGrammar, StrictObjectsWithoutChoiceKeepTheSchemasOrder) {
  const std::string schema =
      R"({"type":"object","properties":{"why":{"type":"string"},"all":{"type":"object",
      "properties":{"b":{},"a":{}},"required":["a","b"],"additionalProperties":false}},
      "required":["all","why"],"additionalProperties":false})";
  const std::string told = R"({"why": "x", "all": {"b":1,"a":2}})",
                    turned = R"({"all":{"a":2,"b":1},"why":"x"})";
  const Form strict(schema, true), loose(schema);
  ASSERT_EQ(strict.error, "");
  EXPECT_TRUE(strict.takes(told));
  EXPECT_TRUE(strict.takes("{\n  \"why\": \"\",\n  \"all\": {\n\"b\": null, \"a\": []\n}\n}"));
  EXPECT_FALSE(strict.takes(turned));
  EXPECT_FALSE(strict.takes(R"({"why":"x"})"));
  EXPECT_TRUE(loose.takes(told));
  EXPECT_TRUE(loose.takes(turned));
  // With optional members any order is allowed. An unsatisfiable member cannot appear.
  const Form optional(
      R"({"properties":{"a":{},"b":{}},"required":["a"],"type":"object","additionalProperties":false})",
      true);
  EXPECT_TRUE(optional.takes(R"({"b":1,"a":1})"));
  const Form nothing(
      R"({"anyOf":[{"type":"object","properties":{"a":{"type":"string","enum":[1]}},"required":["a"],
      "additionalProperties":false},{"type":"null"}]})",
      true);
  EXPECT_TRUE(nothing.takes("null"));
  EXPECT_FALSE(nothing.takes("{}"));
}

std::string joined_by(const std::vector<std::string>& parts, const std::string& between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

TEST(SchemaGrammar, MembersComeInAnyOrderOnceEachAndTheRequiredOnesAll) {
  const Form form(R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"},
      "b":{"type":"string"},"aab":{"type":"boolean"}},"required":["b","aab"]})");
  ASSERT_EQ(form.error, "");
  const std::vector<std::string> members = {R"("a":1)", R"("ab":null)", R"("b":"")",
                                            R"("aab":true)"};
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

TEST(SchemaGrammar, MembersThatAreNotListedComeAnywhereAndHaveOtherNames) {
  expect_form(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b\"\n":{"type":"null"}},"required":["a"],
      "additionalProperties":{"type":"boolean"}})",
      {R"({"a":1})", R"({"x":true,"a":1})", R"({"a":1,"x":true,"b\"\n":null,"y":false})",
       R"({"aa":true,"a":1,"":true,"b":true})", R"({"b\"":true,"a":1,"b\"\n\n":true})",
       R"({"a":1,"\u0001é😀":true})"},
      {R"({"x":true})", R"({"a":true})", R"({"a":1,"a":true})", R"({"a":1,"\u0061":true})",
       R"({"a":1,"b\"\n":true})", R"({"a":1,"b\"\u000a":true})", R"({"a":1,"\/":true})",
       R"({"a":1,"x":1})"});
}

TEST(SchemaGrammar, Arrays) {
  expect_form(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1, 2,3]"},
              {"[1,]", "[\"a\"]", "1"});
  expect_form(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
              {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"});
  expect_form(R"({"type":"array","items":{"type":"integer"},"minItems":1})", {"[1]", "[1,2,3,4]"},
              {"[]"});
  expect_form(R"({"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":false})",
              {R"(["a",null])", R"(["a"])", "[]"}, {R"(["a",null,1])", "[null]"});
  expect_form(R"({"type":"array","prefixItems":[{"type":"string"}],"minItems":1})",
              {R"(["a"])", R"(["a",1,{}])"}, {"[]", "[1]"});
  // Tuples of drafts up to 7.
  expect_form(R"({"type":"array","items":[{"type":"string"},{"type":"integer"}],"minItems":2,
                  "additionalItems":false})",
              {R"(["a", 1])"}, {R"([1,"a"])", R"(["a",1,2])", R"(["a"])"});
  expect_form(R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"array","items":[{"const":1},{"const":2}],
                  "additionalItems":{"type":"null"}}}})",
              {"[]", "[1,2]", "[1,2,null,null]"}, {"[2]", "[1,2,3]"});
  expect_form(
      R"({"type":"array","contains":{"type":"integer"},"items":{"type":["integer","string"]},
                  "maxItems":3})",
      {"[1]", R"(["a",1])", R"(["a","b",1])", R"([1,"b","c"])"},
      {"[]", R"(["a"])", R"(["a","b","c"])", R"(["a","b","c",1])"});
  expect_form(
      R"({"type":"array","prefixItems":[{"type":["null","string"]}],"items":{"type":"string"},
                  "contains":{"type":"string"}})",
      {R"(["a"])", R"([null,"a"])", R"(["a","b"])"}, {"[]", "[null]"});
}

TEST(SchemaGrammar, StringsAndNumbers) {
  expect_form(R"({"type":"string"})", {R"("")", R"("a\"\\\n\u00e9é😀")"},
              {R"("a)", "\"\n\"", "a", R"("\x")", "\"\x80\""});
  expect_form(R"({"type":"string","minLength":2,"maxLength":3})",
              {R"("ab")", R"("é😀x")", R"("a\nb")"}, {R"("a")", R"("abcd")", R"("")"});
  expect_form(R"({"type":"string","minLength":2})", {R"("ab")", R"("abcdef")"}, {R"("a")"});
  expect_form(R"({"type":"number"})", {"0", "-1", "1.5", "2e10", "1.25E-3"},
              {"01", "1.", ".5", "+1", "-", "NaN"});
  expect_form(R"({"type":"integer"})", {"0", "-12", "123456"}, {"1.0", "00", "-0", "1e3"});
  expect_form(R"({"enum":["red","blue",3,null]})", {R"("red")", "3", "null"},
              {R"("green")", "4", "red"});
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
      ASSERT_EQ(form.takes(std::to_string(n)), n >= low && n <= high)
          << n << " in " << low << ".." << high;
    }
  }
  expect_form(R"({"type":"integer","exclusiveMinimum":4})", {"5", "1000"}, {"4", "-1"});
  expect_form(R"({"type":"integer","maximum":-2})", {"-2", "-1000"}, {"-1", "0", "3"});
}

TEST(SchemaGrammar, NumbersKeepTheirBoundsAndTheirDigits) {
  const std::string big = "1497549923779084388", small = "-9223372036854775808";
  expect_form(R"({"type":"integer"})", {big, small, std::string(60, '7')}, {"1e3", "1.5"});
  expect_form(R"({"type":"number"})",
              {big, "1.7976931348623157e+308", "-1.7976931348623157E308", "5e-324",
               "0.1000000000000000055511151231257827"},
              {"1.8e308", "1e309", "10e308", "1e400", "12e300"});
  expect_form(R"({"type":"number","minimum":0,"maximum":1})", {"0", "1", "0.25", "1.0", "0.999"},
              {"7.5", "1.5", "1.01", "-0.5", "-1", "10"});
  expect_form(R"({"type":"number","maximum":-1.5})", {"-1.5", "-3.25", "-1.50", "-20"},
              {"4.5", "-1.49", "-1", "0", "1.5"});
  expect_form(R"({"type":"number","exclusiveMaximum":-0.5,"minimum":-2})",
              {"-2", "-0.51", "-1.999"}, {"-0.5", "-0.50", "-0.4", "-2.001", "0", "1"});
  expect_form(R"({"type":"number","exclusiveMinimum":0})", {"0.001", "3", "1234567.5"},
              {"0", "0.0", "-1", "-2.5"});
  expect_form(R"({"type":"number","minimum":0})", {"0", "0.5", "1e10", big}, {"-1", "-0.5"});
  // Draft 4.
  expect_form(
      R"({"type":"number","minimum":1,"exclusiveMinimum":true,"maximum":2,"exclusiveMaximum":true})",
      {"1.5", "1.0001"}, {"1", "2", "1.0", "2.5"});
  expect_form(R"({"type":"integer","multipleOf":5,"minimum":-10,"maximum":20})",
              {"-10", "0", "15", "20"}, {"-15", "3", "25", "22"});
  expect_form(R"({"type":"number","multipleOf":0.01})",
              {"0", "1.25", "-3.1", "19", "2.50", "7.000"}, {"1.255", "0.001"});
  expect_form(R"({"type":"number","multipleOf":2.5})", {"0", "2.5", "-5", "1000000007.5"},
              {"1", "2.25", "3.5"});
  // 1 and 1.0 are equal.
  expect_form(R"({"const":1.0})", {"1", "1.0"}, {"2", "1.5"});
  expect_form(R"({"enum":[1,2.50]})", {"1", "2.5", "1.0"}, {"2", "5"});
  expect_form(R"({"type":"integer","enum":[1.0,2.5,"a"]})", {"1"}, {"2.5", "1.0", "\"a\""});
}

TEST(SchemaGrammar, RangesOfNumbersAreExact) {
  const std::vector<std::string> numbers = {"-12.5", "-3",   "-2.75", "-1",   "-0.5", "-0.05",
                                            "0",     "0.05", "0.5",   "0.9",  "1",    "1.5",
                                            "2.75",  "9.99", "10",    "123.4"};
  for (const std::string& low : numbers) {
    for (const std::string& high : numbers) {
      if (std::stod(low) > std::stod(high)) continue;
      for (const bool open : {false, true}) {
        if (open && low == high) continue;
        const Form form(R"({"type":"number",")" +
                        std::string(open ? "exclusiveMinimum" : "minimum") + "\":" + low + R"(,")" +
                        std::string(open ? "exclusiveMaximum" : "maximum") + "\":" + high + "}");
        ASSERT_EQ(form.error, "");
        for (const std::string& n : numbers) {
          const double x = std::stod(n), a = std::stod(low), b = std::stod(high);
          EXPECT_EQ(form.takes(n), open ? a < x && x < b : a <= x && x <= b)
              << n << " in " << low << ".." << high << (open ? " open" : "");
        }
      }
    }
  }
}

TEST(SchemaGrammar, FormatsAndPatterns) {
  expect_form(R"({"type":"string","format":"date"})", {R"("2026-11-21")"},
              {R"("2026-13-01")", R"("2026-1-1")", R"("2026-02-29")", R"("2026-04-31")"});
  expect_form(R"({"type":"string","format":"date-time"})",
              {R"("2026-11-21T10:20:30Z")", R"("2026-11-21T10:20:30.5+01:00")"},
              {R"("2026-11-21 10:20:30Z")"});
  expect_form(R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
              {R"("123")"});
  expect_form(R"({"type":"string","format":"email"})", {R"("a.b@example.com")", R"("x+y@a.io")"},
              {R"("no mail")", R"("a@")", R"("@b.c")", R"("a..b@c.d")", R"("a@-b.c")"});
  expect_form(R"({"type":"string","format":"ipv4"})", {R"("10.0.0.255")"},
              {R"("10.0.0.256")", R"("1.2.3")", R"("01.2.3.4")"});
  expect_form(R"({"type":"string","format":"ipv6"})",
              {R"("::")", R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")",
               R"("::ffff:1.2.3.4")", R"("1:2:3:4:5:6:7::")"},
              {R"("1::2::3")", R"("1:2:3:4:5:6:7:8:9")", R"("12345::")", R"(":1")"});
  expect_form(R"({"type":"string","format":"hostname"})", {R"("example.com")", R"("localhost")"},
              {R"("-a.b")", R"("a..b")", R"("a_b")"});
  expect_form(R"({"type":"string","format":"duration"})",
              {R"("P3Y6M4DT12H30M5S")", R"("PT1M")", R"("P2W")"},
              {R"("P")", R"("PT")", R"("P1D2H")", R"("PT1D")"});
  expect_form(R"({"type":"string","format":"uri"})",
              {R"("https://a.example/b?c=d#e")", R"("mailto:a@b.c")", R"("urn:x:y")"},
              {R"("a b")", R"("//a.b")", R"("http://a b")", R"("1http://x")"});
  expect_form(R"({"anyOf":[{"type":"string","format":"date"},{"type":"null"}],"minLength":1})",
              {R"("2024-02-29")", "null"}, {R"("x")", R"("")"});
  expect_form(R"({"type":"string","allOf":[{"pattern":"^a"},{"pattern":"b$"}],"maxLength":3})",
              {R"("ab")", R"("axb")"}, {R"("a")", R"("b")", R"("axxb")"});
  expect_form(R"({"type":"string","pattern":"^[A-Z]{2,3}-\\d+(x|yz)?$"})",
              {R"("AB-1")", R"("ABC-12yz")"},
              {R"("A-1")", R"("AB-")", R"("AB-1xyz")", R"(" AB-1")"});
  expect_form(R"({"type":"string","pattern":"b+"})", {R"("abba")", R"("b")"}, {R"("a")", R"("")"});
  expect_form(R"({"type":"string","pattern":"^[^\"]*$"})", {R"("é")", R"("a\\b")"}, {R"("a\"b")"});
}

TEST(SchemaGrammar, CombinationsAndReferences) {
  expect_form(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("x")"}, {"true"});
  expect_form(R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                  {"properties":{"b":{"type":"null"}},"required":["b"]}]})",
              {R"({"a":1,"b":null})"}, {R"({"a":1})", R"({"b":null})"});
  expect_form(
      R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
                  "next":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}},"required":["v","next"]}}})",
      {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
      {R"({"v":1})", R"({"v":1,"next":1})"});
  // Keywords next to a reference apply; so does allOf next to other combinations.
  expect_form(
      R"({"type":"object","properties":{"n":{"$ref":"#/$defs/100%25","maximum":5,"title":"t"}},
                  "required":["n"],"additionalProperties":false,"$defs":{"100%":{"type":"integer","minimum":1}}})",
      {R"({"n":3})"}, {R"({"n":9})", R"({"n":0})", R"({"n":3,"m":1})"});
  expect_form(R"({"allOf":[{"properties":{"a":{"type":"string"}},"required":["a"]}],"type":"object",
                  "anyOf":[{"properties":{"b":{"type":"integer"}},"required":["b"]},
                           {"properties":{"c":{"type":"string"}},"required":["c"]}]})",
              {R"({"a":"x","b":1})", R"({"c":"x","a":"y"})"},
              {R"({"b":1})", R"({"a":"x"})", R"({"a":"x","b":"y"})"});
  expect_form(R"({"allOf":[{"type":"integer","minimum":10},{"minimum":1},{"maximum":12}]})",
              {"10", "12"}, {"2", "13"});
  expect_form(R"({"allOf":[{"anyOf":[{"type":"string"},{"type":"integer"}]},
                  {"anyOf":[{"type":"integer"},{"type":"boolean"}]}]})",
              {"3"}, {"true", R"("x")"});
  expect_form(R"({"enum":["a","b",3],"allOf":[{"type":"string"},{"not":{"const":"b"}}]})",
              {R"("a")"}, {R"("b")", "3"});
  expect_form(
      R"({"type":"object","properties":{"v":{"allOf":[{"$ref":"#/definitions/x"},{"required":["q"]}],
                  "properties":{"q":{"maximum":3}}}},"required":["v"],
                  "definitions":{"x":{"type":"object","properties":{"q":{"type":"number"}}}}})",
      {R"({"v":{"q":2.5}})"}, {R"({"v":{}})", R"({"v":{"q":4}})", R"({"v":{"q":"x"}})"});
  expect_form(R"({"$id":"http://x.org/a","$ref":"b#here","$defs":{"b":{"$id":"b",
                  "$defs":{"c":{"$anchor":"here","type":"null"}}}}})",
              {"null"}, {"1"});
  expect_form(
      R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"integer"},"x":{"minimum":5}},
                  "properties":{"ab":{"maximum":9}},"additionalProperties":false})",
      {"{}", R"({"cd":1})", R"({"x":5,"ab":9})", R"({"X x":"y"})", R"({"axb": 7})"},
      {R"({"CD":1})", R"({"x":4})", R"({"ab":10})", R"({"ab":"x"})", R"({"cd":"x"})"});
  expect_form(
      R"({"type":"object","patternProperties":{"^s_":{"type":"string"}},"additionalProperties":{"type":"null"},
                  "propertyNames":{"maxLength":4}})",
      {R"({"s_a":"x","b":null})"}, {R"({"s_a":null})", R"({"b":"x"})", R"({"s_abc":"x"})"});
  expect_form(R"({"type":"object","properties":{"k":{"enum":["a","b"]}},"required":["k"],
                  "if":{"properties":{"k":{"const":"a"}}},"then":{"required":["x"]},"else":{"required":["y"]}})",
              {R"({"k":"a","x":1})", R"({"y":1,"k":"b"})"}, {R"({"k":"a","y":1})", R"({"k":"b"})"});
  expect_form(R"({"oneOf":[{"type":"integer","multipleOf":1},{"type":"number","minimum":2}]})",
              {"2.5"}, {"1.5"});
  expect_form(R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":2}]})", {"1", "2.5"},
              {"2", "1.5"});
  expect_form(R"({"type":"object","dependentRequired":{"a":["b"]}})",
              {"{}", R"({"b":1})", R"({"b":1,"a":1})"}, {R"({"a":1})"});
  expect_form(R"({"type":"object","allOf":[{"properties":{"a":{}}}],"properties":{"b":{}},
                  "unevaluatedProperties":false})",
              {R"({"b":1,"a":1})"}, {R"({"c":1})"});
  // A keyword constrains only its own kind of values.
  expect_form(R"({"minimum":5,"pattern":"^a","minItems":1,"required":["x"]})",
              {"5", R"("ab")", "[1]", R"({"x":1})", "null", "true"}, {"4", R"("b")", "[]", "{}"});
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
  EXPECT_EQ(Form(R"({"type":"string","format":"regex"})").error, "");
  EXPECT_NE(Form(R"({"type":"string","format":"regex"})", true).error.find("regex"),
            std::string::npos);
  EXPECT_NE(Form(R"({"type":"array","uniqueItems":true})", true).error.find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(Form(R"({"type":"object","frobnicate":1})", true).error.find("frobnicate"),
            std::string::npos);
  // Annotations are not refused.
  EXPECT_EQ(
      Form(R"({"type":"string","title":"t","description":"d","example":1,"examples":[],"default":1,
      "deprecated":true,"readOnly":true,"xml":{},"externalDocs":{},"discriminator":{},"x-order":1,
      "$comment":"c","contentEncoding":"base64","contentMediaType":"a/b"})",
           true)
          .error,
      "");
  // Type names of programming languages, unless the client is strict.
  EXPECT_TRUE(Form(R"({"type":"dict","properties":{"a":{"type":"INTEGER"},"b":{"type":"list"}},
      "additionalProperties":false})")
                  .takes(R"({"a":1,"b":[]})"));
  EXPECT_NE(Form(R"({"type":"int"})", true).error, "");
  EXPECT_NE(Form(R"({"type":"string","pattern":"(?=x)y"})", true).error, "");
}

TEST(SchemaGrammar, BombsAreRefusedOrStaySmall) {
  std::string nested = R"({"type":"string","maxLength":20000})";
  for (int i = 0; i < 3; ++i)
    nested = R"({"type":"array","minItems":100,"maxItems":10000,"items":)" + nested + "}";
  EXPECT_EQ(Form(nested).error, "");  // bounds are counted
  EXPECT_NE(Form(R"({"$ref":"#"})").error, "");
  EXPECT_NE(Form(R"({"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]})").error, "");
  EXPECT_NE(Form(R"({"type":"array","minItems":1,"items":{"$ref":"#"}})").error, "");
  EXPECT_NE(Form(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},
      "b":{"$ref":"#/$defs/a"}}})")
                .error,
            "");
  EXPECT_FALSE(
      Form(R"({"anyOf":[{"anyOf":[{"$ref":"#"},{"type":"null"}]},{"type":"null"}]})").takes("1"));
  // Nested alternatives are refused by cost, not by time.
  std::string product = "{\"type\":\"object\",\"allOf\":[";
  for (int i = 0; i < 40; ++i) {
    const std::string k = std::to_string(i);
    product += (i > 0 ? "," : "") + (R"({"anyOf":[{"required":["a)" + k) +
               R"("]},{"required":["b)" + k + R"("]}]})";
  }
  EXPECT_NE(Form(product + "]}").error, "");
  // A chain of references that would overflow any stack.
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 20'000; ++i)
    chain += "\"" + std::to_string(i) + R"(":{"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"},";
  EXPECT_TRUE(Form(chain + R"("20000":{"type":"null"}}})").takes("null"));
  chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 2'000; ++i)
    chain += "\"" + std::to_string(i) + R"(":{"type":"array","items":{"$ref":"#/$defs/)" +
             std::to_string(i + 1) + "\"}},";
  EXPECT_TRUE(Form(chain + R"("2000":{"type":"null"}}})").takes("[[],[[[]]]]"));
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

// Random walk with allowed tokens, compared with the tokens that are accepted byte by byte.
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
      "required":["name","age","tags"],"additionalProperties":false})");
  ASSERT_EQ(form.error, "");
  for (uint32_t round = 0; round < 6; ++round) {
    const std::string text = random_answer(form, round);
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_LE(json["age"].get<int>(), 130);
  }
}

class Calls {
 public:
  explicit Calls(const std::string& more, const AnswerPolicy& policy = {})
      : model(demo_served_model(nullptr)) {
    auto read =
        read_chat(Json::parse(R"({"messages":[{"role":"user","content":"q"}],)" + more + "}"), {});
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
         std::string(strict ? "true" : "false") +
         R"(}},{"type":"function","function":{"name":"g"}}])";
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
  EXPECT_TRUE(
      strict.takes("\n\n" + kGood + "\n<tool_call>\n<function=g>\n</function>\n</tool_call>"));
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
  const Calls calls(
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
      "properties":{"s":{"type":"string"},"n":{"type":"integer"},")" +
          name + R"(":{"type":"integer"}},"required":["s"],"additionalProperties":true}}},
      {"type":"function","function":{"name":"g","parameters":{"type":"object",
      "properties":{"s":{"type":"string"},"n":{"type":"integer"}},"required":["s"],
      "additionalProperties":false}}}])",
      policy);
  const auto call = [](const std::string& tool,
                       const std::vector<std::pair<std::string, std::string>>& all) {
    std::string out = "<tool_call>\n<function=" + tool + ">\n";
    for (const auto& [key, value] : all)
      out += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
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
    // The second call may repeat the parameters of the first.
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
  EXPECT_FALSE(names.takes(
      "<tool_call>\n<function=g>\n</function>\n<function=h>\n</function>\n</tool_call>"));
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

}  // namespace
}  // namespace braid::server
