// grammar_test.cpp -- costs of hostile schemas, counted bounds, patterns, and the cache.
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "server/api/read_request.h"
#include "server/api/structured/grammar_matcher.h"
#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/schema_grammar.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

using Program = std::shared_ptr<const GrammarProgram>;

struct Compiled {
  explicit Compiled(const Json& schema, bool strict = false) {
    auto made = schema_to_grammar(schema, strict, *demo_served_model(nullptr)->grammars);
    if (made.ok())
      program = *made;
    else
      error = made.error().message;
  }
  bool takes(const std::string& text) const {
    if (program == nullptr) return false;
    GrammarMatcher matcher(program);
    return matcher.advance(text) && matcher.accepts();
  }
  Program program;
  std::string error;
};

Json text_schema(const std::string& pattern) { return {{"type", "string"}, {"pattern", pattern}}; }

std::vector<int32_t> allowed_by(GrammarMatcher& matcher) {
  const Tokenizer& tokenizer = *demo_served_model(nullptr)->tokenizer;
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  matcher.allowed(bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.size(); ++id)
    if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
  return ids;
}

std::string repeated(const std::string& what, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += what;
  return out;
}

Json wide_object(int properties) {
  Json out{{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < properties; ++i)
    out["properties"]["property" + std::to_string(i)] = Json{{"type", "null"}};
  return out;
}

Json record_schema() {
  return Json::parse(
      R"({"type":"object","properties":{"path":{"type":"string"},"line":{"type":"integer"},
      "kind":{"enum":["a","b","c"]}},"required":["path"]})");
}

struct Hostile {
  std::string name;
  Json schema;
  bool compiles;
};

std::vector<Hostile> hostile_schemas() {
  std::string alternatives = "a";
  for (int i = 0; i < 8000; ++i) alternatives += "|word" + std::to_string(i * 7919);
  Json words = Json::array(), objects = Json::array(), exponential{{"$ref", "#/$defs/x0"}};
  for (int i = 0; i < 30'000; ++i) words.push_back("word" + std::to_string(i * 7919));
  for (int i = 0; i < 600; ++i)
    objects.push_back(
        {{"type", "object"}, {"properties", {{"p", {{"const", i}}}, {"q", {{"type", "string"}}}}}});
  for (int i = 0; i < 40; ++i) {
    const Json next{{"$ref", "#/$defs/x" + std::to_string(i + 1)}};
    exponential["$defs"]["x" + std::to_string(i)] = {{"allOf", Json::array({next, next})}};
  }
  exponential["$defs"]["x40"] = {{"type", "object"}};
  Json deep{{"type", "null"}};
  for (int i = 0; i < 60; ++i) deep = {{"anyOf", Json::array({deep, {{"type", "null"}}})}};
  return {
      {"optional characters", text_schema("^(.?){1000}$"), true},
      {"thousands of alternatives", text_schema("^(" + alternatives + ")$"), true},
      {"thousands of brackets",
       text_schema("^" + std::string(4000, '(') + std::string(4000, ')') + "$"), true},
      {"repeats of repeats", text_schema("^((a{0,200}b?){0,200}c?){0,200}$"), false},
      {"stars in stars", text_schema("^(((a*)*)*b*)*$"), true},
      {"exponential", text_schema("(a|b)*a(a|b){40}"), false},
      {"a long repeat", text_schema("^(ab|cd){1000000}$"), false},
      {"2,000 optional properties", wide_object(2000), true},
      {"2,000 optional strings",
       [] {
         Json out = wide_object(2000);
         for (auto& [name, property] : out["properties"].items())
           property = Json{{"type", "string"}, {"maxLength", 9}};
         return out;
       }(),
       true},
      {"30,000 words", {{"enum", words}}, true},
      {"a long word", {{"const", std::string(200'000, 'x')}}, true},
      {"600 objects", {{"anyOf", objects}}, false},
      {"allOf that doubles", exponential, true},
      {"anyOf in anyOf", deep, true},
      {"long strings", {{"type", "string"}, {"minLength", 9000}, {"maxLength", 9400}}, true},
      {"endless bounds", {{"type", "string"}, {"maxLength", 1e18}}, true},
      {"endless lists",
       {{"type", "array"}, {"maxItems", 1'000'000'000}, {"items", {{"type", "integer"}}}},
       true},
      {"huge integers", {{"type", "integer"}, {"minimum", -1e300}, {"maximum", 1e299}}, true},
      {"huge integers only", {{"type", "integer"}, {"minimum", 1e298}, {"maximum", 1e299}}, true},
      {"a recursion",
       {{"type", "array"},
        {"items", {{"anyOf", Json::array({{{"$ref", "#"}}, {{"type", "null"}}})}}}},
       true},
      {"a bound and a pattern",
       {{"type", "string"}, {"pattern", "^\\S+$"}, {"maxLength", 1'000'000}},
       false},
  };
}

TEST(Grammar, AlternativesThatShareNamesKeepTheirOwnMembers) {
  const auto closed = [](const Json& properties, const Json& required) {
    return Json{{"type", "object"},
                {"properties", properties},
                {"required", required},
                {"additionalProperties", false}};
  };
  const Json kNone{{"const", "none"}}, kSome{{"const", "some"}}, kInteger{{"type", "integer"}};
  const Compiled tagged(Json{{"anyOf",
                              {closed({{"kind", kNone}}, {"kind"}),
                               closed({{"kind", kSome}, {"v", kInteger}}, {"kind", "v"})}}});
  EXPECT_TRUE(tagged.takes(R"({"kind":"none"})"));
  EXPECT_TRUE(tagged.takes(R"({"kind":"some","v":1})"));
  EXPECT_TRUE(tagged.takes(R"({"v":1,"kind":"some"})"));
  EXPECT_FALSE(tagged.takes(R"({"kind":"some"})"));
  const Compiled optional(Json{{"anyOf",
                                {closed({{"id", {{"type", "string"}}}}, {"id"}),
                                 closed({{"id", kInteger}}, Json::array())}}});
  for (const char* text : {R"({"id":5})", R"({"id":"x"})", "{}"})
    EXPECT_TRUE(optional.takes(text)) << text;
  Json small = wide_object(40), large = wide_object(100);
  const Compiled sizes(Json{{"anyOf", {small, large}}}, true);
  std::string all;
  for (int i = 0; i < 100; ++i)
    all += (i > 0 ? ",\"property" : "\"property") + std::to_string(i) + "\":null";
  EXPECT_TRUE(sizes.takes("{" + all + "}"));
}

TEST(Grammar, ManyAlternativesInTheSameTextAllowWhatOneDoes) {
  const auto described = [](int i) {
    return Json{{"type", "object"},
                {"properties", {{"description", {{"type", "string"}}}, {"kind", {{"const", i}}}}},
                {"required", {"description", "kind"}},
                {"additionalProperties", false}};
  };
  const auto allowed = [&](int alternatives) {
    Json options = Json::array();
    for (int i = 0; i < alternatives; ++i) options.push_back(described(i));
    GrammarMatcher matcher(Compiled(Json{{"anyOf", options}}).program);
    EXPECT_TRUE(matcher.advance(R"({"description":"A)"));
    return allowed_by(matcher).size();
  };
  const size_t one = allowed(1);
  EXPECT_GT(one, 1000u);
  for (const int alternatives : {4, 5, 40, 200})
    EXPECT_EQ(allowed(alternatives), one) << alternatives;
}

// Of one mask, with a trie walk for each automaton in a new state.
int64_t most_steps() {
  const TokenTrie& trie = demo_served_model(nullptr)->grammars->trie();
  return GrammarMatcher::kMostSteps +
         static_cast<int64_t>(GrammarMatcher::kMaxWide * trie.nodes().size() * 2);
}

TEST(HostileSchemas, CompileWithinTheBudgetOrSayWhatIsTooLarge) {
  for (const Hostile& hostile : hostile_schemas()) {
    const Compiled form(hostile.schema);
    EXPECT_EQ(form.error.empty(), hostile.compiles) << hostile.name << ": " << form.error;
    if (!hostile.compiles) {
      const bool says = form.error.find("too large") != std::string::npos ||
                        form.error.find("alternatives") != std::string::npos;
      EXPECT_TRUE(says) << hostile.name << ": " << form.error;
    }
    if (form.program == nullptr) continue;
    EXPECT_LE(form.program->bytes(), GrammarBudget::kBytes);
    GrammarMatcher matcher(form.program);
    std::mt19937 random(5);
    for (int step = 0; step < 30; ++step) {
      const auto ids = allowed_by(matcher);
      EXPECT_LE(matcher.steps(), most_steps()) << hostile.name;
      ASSERT_TRUE(!ids.empty() || matcher.accepts()) << hostile.name;
      if (ids.empty()) break;
      ASSERT_TRUE(matcher.advance(
          demo_served_model(nullptr)->tokenizer->piece(ids[random() % ids.size()])));
      EXPECT_LE(matcher.steps(), 1'000'000) << hostile.name;
    }
  }
}

TEST(HostileSchemas, OptionalPropertiesCostWhatTheyAre) {
  GrammarBudget budget;
  const auto bytes = [](int properties) {
    return Compiled(wide_object(properties)).program->bytes();
  };
  const int64_t one = bytes(1000), two = bytes(2000);
  EXPECT_LT(two, one * 3);
  const Compiled form(wide_object(2000));
  EXPECT_TRUE(form.takes(R"({"property0":null,"property7":null,"property1999":null})"));
  EXPECT_TRUE(form.takes(R"({"property7":null,"property0":null})"));
  EXPECT_FALSE(form.takes(R"({"property7":null,"property0":null,"property7":null})"));
  EXPECT_TRUE(form.takes("{}"));
}

TEST(Bounds, AreCountedExactly) {
  const Compiled form({{"type", "string"}, {"minLength", 9000}, {"maxLength", 9400}});
  ASSERT_EQ(form.error, "");
  for (const int length : {8999, 9000, 9400, 9401}) {
    const bool fits = length >= 9000 && length <= 9400;
    EXPECT_EQ(form.takes('"' + repeated("é", length) + '"'), fits) << length;
  }
  GrammarMatcher matcher(form.program);
  ASSERT_TRUE(matcher.advance('"' + repeated("x", 9399)));
  EXPECT_EQ(matcher.threads(), 1u);
  for (const int32_t id : allowed_by(matcher)) {  // one character, then the end
    const size_t depth = matcher.depth();
    ASSERT_TRUE(matcher.advance(demo_served_model(nullptr)->tokenizer->piece(id)));
    matcher.rewind_to(depth);
  }
  const Compiled list(
      {{"type", "array"}, {"items", {{"const", 1}}}, {"minItems", 3000}, {"maxItems", 4000}});
  ASSERT_EQ(list.error, "");
  for (const int count : {2999, 3000, 4000, 4001})
    EXPECT_EQ(list.takes("[1" + repeated(",1", count - 1) + "]"), count >= 3000 && count <= 4000)
        << count;
  const Compiled both(
      {{"type", "string"}, {"pattern", "^(ab)*$"}, {"minLength", 3}, {"maxLength", 6}});
  EXPECT_TRUE(both.takes("\"abab\"") && both.takes("\"ababab\""));
  EXPECT_FALSE(both.takes("\"ab\"") || both.takes("\"abababab\""));
}

TEST(Bounds, OfIntegersMayBeOfAnySize) {
  const Compiled form(Json::parse(
      R"({"type":"integer","minimum":9223372036854775808,"exclusiveMaximum":9223372036854775818})"));
  EXPECT_TRUE(form.takes("9223372036854775808") && form.takes("9223372036854775817"));
  EXPECT_FALSE(form.takes("9223372036854775807") || form.takes("9223372036854775818"));
  EXPECT_TRUE(
      Compiled(Json::parse(R"({"type":"integer","minimum":1e20})")).takes("100000000000000000000"));
  EXPECT_TRUE(Compiled(Json::parse(R"({"type":"integer","exclusiveMaximum":-9})")).takes("-10"));
  EXPECT_FALSE(Compiled(Json::parse(R"({"type":"integer","exclusiveMaximum":-9})")).takes("-9"));
  EXPECT_TRUE(Compiled(Json::parse(R"({"type":"integer","exclusiveMinimum":-10,"maximum":0})"))
                  .takes("-9"));
  EXPECT_FALSE(Compiled(Json::parse(R"({"type":"integer","exclusiveMinimum":-10,"maximum":0})"))
                   .takes("-10"));
}

// Numbers beyond a double are JSON, but readers refuse them.
TEST(Bounds, OfNumbersAreThoseOfADouble) {
  const Compiled number(Json{{"type", "number"}});
  EXPECT_TRUE(number.takes("-123456789012345678.5E+99"));
  EXPECT_FALSE(number.takes("1e999"));
}

TEST(Forms, ThatNothingFitsAreRefused) {
  for (const char* schema :
       {R"({"type":"string","minLength":5,"maxLength":3})", R"({"enum":[]})",
        R"({"type":"string","pattern":"^a$","minLength":2})",
        R"({"type":"array","minItems":2,"maxItems":1})", R"({"type":"string","pattern":"[]"})",
        R"({"$ref":"#"})", R"({"type":"array","minItems":1000000000})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"})
    EXPECT_NE(Compiled(Json::parse(schema)).error, "") << schema;
  // Unsatisfiable parts are omitted if there are alternatives.
  const Compiled form(
      Json::parse(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"type":"null"}},
      "$defs":{"x":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/x"}}}})"));
  EXPECT_TRUE(form.takes(R"({"b":null})"));
  GrammarMatcher matcher(form.program);
  EXPECT_FALSE(matcher.advance(R"({"a":)"));  // the name is not allowed for other members either
}

// Compared with std::regex on random short texts.
TEST(Patterns, MeanWhatEcmaSays) {
  const std::vector<std::string> patterns = {"^a*b$",
                                             "a|b|cc",
                                             "^(a|bc)+$",
                                             "^a{2,3}b?$",
                                             "^[a-c]{2}$",
                                             "^[^a]+$",
                                             "b+",
                                             "^(ab?){2,4}$",
                                             "^(a?){5}$",
                                             "^((a*)*)*$",
                                             "^a.c$",
                                             "^\\w\\d?$",
                                             "^(a{0,2}b){1,2}$",
                                             "^[\\w-]*$",
                                             "^a$|^bb",
                                             "c$",
                                             "^((a|b){2}){2}$",
                                             "^(a{2,3}){2}$",
                                             "^(a+){2,3}b*?$",
                                             "^[\\]a]+$",
                                             "^(?:ab|a)(bc|c)$",
                                             "^\\.\\*$",
                                             "^a\\|b$",
                                             "^$",
                                             "^\"\\\\$",
                                             "^(a{2}){0,3}$",
                                             "^(?<n>a)b{0}$",
                                             "^[a\\-c]+$"};
  std::mt19937 random(11);
  const std::string letters = "aabbc1-.]*|\"\\";
  for (const std::string& pattern : patterns) {
    std::string plain = pattern;
    if (const size_t at = plain.find("?<n>"); at != std::string::npos) plain.replace(at, 4, "?:");
    const std::regex expected(plain);
    const Compiled form(text_schema(pattern), true);
    ASSERT_EQ(form.error, "") << pattern;
    for (int round = 0; round < 400; ++round) {
      std::string text;
      for (size_t n = random() % 8; n > 0; --n)
        text += letters[random() % (round % 2 == 0 ? 5 : letters.size())];
      EXPECT_EQ(form.takes(json_literal(Json(text))), std::regex_search(text, expected))
          << pattern << " on " << text;
    }
  }
}

TEST(Patterns, WithCountsBeyondAllBudgetsAreTooLarge) {
  for (const char* pattern :
       {"^a{1000000001}$", "^a{0,99999999999999999999}$", "^a{99999999999999999999,}$"})
    for (const bool strict : {false, true})
      EXPECT_NE(Compiled(text_schema(pattern), strict)
                    .error.find("is too large: it has a repetition count above 1000000000"),
                std::string::npos)
          << pattern;
  const std::string far = "{0,1000000000}";
  const std::vector<std::string> patterns = {
      "^a" + far + "$", "^(((a?){100000}){100000}){2}$",
      "^(((a" + far + ")" + far + ")" + far + ")" + far + "$"};
  for (const std::string& pattern : patterns)
    EXPECT_NE(Compiled(text_schema(pattern)).error.find("is too large: compiling it takes"),
              std::string::npos)
        << pattern;
  const Compiled small(text_schema("^(((a?){2}){3}){4}$"), true);
  EXPECT_TRUE(small.takes('"' + repeated("a", 24) + '"'));
  EXPECT_FALSE(small.takes('"' + repeated("a", 25) + '"'));
  EXPECT_TRUE(Compiled(text_schema("^((a?){100000})*$"), true).takes("\"aaa\""));
}

TEST(Patterns, KnowCharactersBeyondAscii) {
  EXPECT_TRUE(Compiled(text_schema("^[а-я]{3}$")).takes("\"мир\""));
  EXPECT_FALSE(Compiled(text_schema("^[а-я]{3}$")).takes("\"мiр\""));
  EXPECT_TRUE(Compiled(text_schema("^\\u00e9\\x41\\u{1F600}$")).takes("\"éA😀\""));
  EXPECT_TRUE(Compiled(text_schema("^[^x]$")).takes("\"😀\""));
  EXPECT_TRUE(Compiled(text_schema("^.{2}$")).takes("\"é😀\""));
  EXPECT_FALSE(Compiled(text_schema("^.$")).takes(R"("\n")"));
  EXPECT_TRUE(Compiled(text_schema("^\\n\\t$")).takes(R"("\n\t")"));
  for (const char* pattern :
       {"(?=x)y", "(a)\\1", "\\bx", "\\p{L}", "a**", "(", "[a", "a{2,1}", "(?<!a)b", "a^b"}) {
    EXPECT_NE(Compiled(text_schema(pattern), true).error, "") << pattern;
    EXPECT_EQ(Compiled(text_schema(pattern)).error, "") << pattern;
  }
}

ApiResult<Program> calls_of(const std::string& parameters, bool strict,
                            Dialect::Calls form = Dialect::Calls::xml) {
  auto read = read_chat(
      Json::parse(R"({"messages":[{"role":"user","content":"q"}],"tools":[{"type":"function",
      "function":{"name":"big","strict":)" +
                  std::string(strict ? "true" : "false") + R"(,"parameters":)" + parameters +
                  R"(}},{"type":"function","function":{"name":"small","parameters":{"type":"object",
      "properties":{"n":{"type":"integer"}},"required":["n"]}}}]})"),
      {});
  EXPECT_TRUE(read.ok());
  auto model = demo_served_model(nullptr);
  model->abilities.dialect.calls = form;
  AnswerPolicy policy;
  policy.tool_form = AnswerPolicy::ToolForm::full;
  return answer_grammar(*read, *model, policy);
}

bool takes(const ApiResult<Program>& made, const std::string& text) {
  if (!made.ok() || *made == nullptr) return false;
  GrammarMatcher matcher(*made);
  return matcher.advance(text) && matcher.accepts();
}

TEST(ToolForms, ASchemaBeyondTheBudgetFreesItsToolsArgumentsOnly) {
  const std::string large =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"string","pattern":"(a|b)*a(a|b){40}"}}}})";
  const auto xml = calls_of(large, false);
  ASSERT_TRUE(xml.ok()) << xml.error().message;
  const auto call = [](const std::string& name, const std::string& key, const std::string& value) {
    return "<tool_call>\n<function=" + name + ">\n<parameter=" + key + ">\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  EXPECT_TRUE(takes(xml, call("big", "a", "anything")));
  EXPECT_FALSE(takes(xml, call("other", "a", "anything")));
  EXPECT_TRUE(takes(xml, call("small", "n", "7")));
  EXPECT_FALSE(takes(xml, call("small", "n", "seven")));
  const auto strict = calls_of(large, true);
  ASSERT_FALSE(strict.ok());
  EXPECT_EQ(strict.error().status, 400);
  EXPECT_NE(strict.error().message.find("too large"), std::string::npos) << strict.error().message;

  const auto hermes = calls_of(large, false, Dialect::Calls::hermes);
  ASSERT_TRUE(hermes.ok()) << hermes.error().message;
  const auto object = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
           "}\n</tool_call>";
  };
  EXPECT_TRUE(takes(hermes, object("big", R"({"x":[1]})")));
  EXPECT_FALSE(takes(hermes, object("big", "7")));
  EXPECT_FALSE(takes(hermes, object("other", "{}")));
  EXPECT_TRUE(takes(hermes, object("small", R"({"n":7})")));
  EXPECT_FALSE(takes(hermes, object("small", R"({"n":"7"})")));

  const auto argkv = calls_of(large, false, Dialect::Calls::argkv);
  ASSERT_TRUE(argkv.ok()) << argkv.error().message;
  const auto lines = [](const std::string& name, const std::string& key, const std::string& value) {
    return "<tool_call>" + name + "\n<arg_key>" + key + "</arg_key>\n<arg_value>" + value +
           "</arg_value>\n</tool_call>";
  };
  EXPECT_TRUE(takes(argkv, lines("big", "any", "thing")));
  EXPECT_TRUE(takes(argkv, "<tool_call>big\n</tool_call>"));
  EXPECT_FALSE(takes(argkv, lines("other", "a", "x")));
  EXPECT_TRUE(takes(argkv, lines("small", "n", "7")));
  EXPECT_FALSE(takes(argkv, lines("small", "n", "seven")));
  EXPECT_FALSE(takes(argkv, "<tool_call>smaller\n</tool_call>"));
}

TEST(ToolForms, FreeParametersStayFree) {
  const auto open = calls_of(R"({"type":"object"})", false);
  EXPECT_TRUE(takes(
      open,
      "<tool_call>\n<function=big>\n<parameter=any>\n1\n</parameter>\n</function>\n</tool_call>"));
  const auto none =
      calls_of(R"({"type":"object","properties":{},"additionalProperties":false})", false);
  EXPECT_TRUE(takes(none, "<tool_call>\n<function=big>\n</function>\n</tool_call>"));
  EXPECT_FALSE(takes(
      none,
      "<tool_call>\n<function=big>\n<parameter=any>\n1\n</parameter>\n</function>\n</tool_call>"));
  const std::string more =
      "<tool_call>\n<function=big>\n<parameter=a>\n1\n</parameter>\n<parameter=z>\nq\n</"
      "parameter>\n"
      "</function>\n</tool_call>";
  const Json listed{{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}};
  Json said = listed;
  said["additionalProperties"] = true;
  EXPECT_TRUE(takes(calls_of(said.dump(), false), more));
  EXPECT_FALSE(takes(calls_of(listed.dump(), false), more));
}

TEST(GrammarCache, WhatFormsRememberIsBoundedTogetherAndGivenBack) {
  const auto model = demo_served_model(nullptr);
  const TokenTrie trie(*model->tokenizer);
  const Automaton text = json_string();
  const auto memory = std::make_shared<ReachMemory>();
  {
    ReachStore first(memory), second(memory);
    const auto of = [&](ReachStore& store) {
      int64_t steps = 0;
      return store.of(text, 0, trie, steps, INT64_MAX);
    };
    int64_t steps = 0;
    EXPECT_EQ(first.of(text, 0, trie, steps, 100), nullptr);  // exceeds the limit
    EXPECT_EQ(memory->bytes, 0);
    const auto reach = of(first);
    EXPECT_EQ(memory->bytes, reach->bytes());
    EXPECT_EQ(first.of(text, 0, trie, steps, 100), reach);  // the same object, without work
    memory->bytes += ReachMemory::kMaxBytes - reach->bytes();
    const auto again = of(second);
    EXPECT_EQ(again->bits, reach->bits);
    EXPECT_EQ(again->ids, reach->ids);
    EXPECT_NE(of(second), again);
    EXPECT_EQ(memory->bytes, ReachMemory::kMaxBytes);
    memory->bytes -= ReachMemory::kMaxBytes - reach->bytes();
  }
  EXPECT_EQ(memory->bytes, 0);
}

TEST(GrammarCache, ManyAgentsInTurnFindTheirForms) {
  const auto model = demo_served_model(nullptr);
  for (const int agents : {8, 64}) {
    const GrammarStats before = model->grammars->stats();
    for (int round = 0; round < 3; ++round) {
      for (int agent = 0; agent < agents; ++agent) {
        Json tools = Json::array();
        for (int i = 0; i < 5; ++i) {
          Json parameters = record_schema();
          parameters["properties"]["of" + std::to_string(agents) + "agents" +
                                   std::to_string(agent)] =
              Json{{"type", "array"},
                   {"items", {{"type", "string"}, {"pattern", "^[a-z]+( [a-z]+){0,9}$"}}}};
          tools.push_back(
              {{"type", "function"},
               {"function", {{"name", "tool" + std::to_string(i)}, {"parameters", parameters}}}});
        }
        const auto read = read_chat(
            Json{{"messages", {{{"role", "user"}, {"content", "q"}}}}, {"tools", tools}}, {});
        ASSERT_TRUE(read.ok()) << read.error().message;
        AnswerPolicy policy;
        policy.tool_form = AnswerPolicy::ToolForm::full;
        const auto form = answer_grammar(*read, *model, policy);
        ASSERT_TRUE(form.ok() && *form != nullptr);
      }
    }
    const GrammarStats after = model->grammars->stats();
    EXPECT_EQ(after.compiled - before.compiled, static_cast<uint64_t>(agents));
    EXPECT_EQ(after.hits - before.hits, static_cast<uint64_t>(2 * agents));
    EXPECT_LE(after.bytes, GrammarCache::kMaxBytes);
    EXPECT_LE(after.remembered_bytes, ReachMemory::kMaxBytes);
  }
}

// Above half of the memory limit, old grammars lose their token sets and stay compiled.
TEST(GrammarCache, OldFormsGiveBackWhatTheyRememberBeforeTheyGo) {
  const auto model = demo_served_model(nullptr);
  GrammarCache cache(*model->tokenizer);
  int made = 0;
  const auto make = [&]() -> GrammarCache::Made {
    auto program = std::make_shared<GrammarProgram>(cache.program());
    program->add_automaton(json_string());
    program->finish();
    ++made;
    return Program(std::move(program));
  };
  const auto find = [&](int form) { return cache.find("form " + std::to_string(form), make); };
  const Program first = *find(0);
  const int64_t one = cache.stats().remembered_bytes;
  ASSERT_GT(one, 0);
  for (int i = 1; i < 4; ++i) (void)find(i);
  EXPECT_EQ(cache.stats().remembered_bytes, 4 * one);
  // As if other grammars held nearly half of it.
  auto& memory = *cache.remembered();
  const int64_t others = ReachMemory::kMaxBytes / 2 - 3 * one;
  memory.bytes += others;
  (void)find(4);
  EXPECT_EQ(cache.stats().remembered_bytes, others + 3 * one);
  EXPECT_EQ(cache.stats().entries, 5U);
  for (int i = 0; i < 5; ++i) (void)find(i);
  EXPECT_EQ(made, 5);
  memory.bytes -= others;
}

TEST(GrammarCache, CompilesOnceAndKeepsRefusals) {
  const auto model = demo_served_model(nullptr);
  GrammarCache cache(*model->tokenizer);
  int made = 0;
  const auto make = [&]() -> GrammarCache::Made {
    ++made;
    return Program(std::make_shared<GrammarProgram>(cache.program()));
  };
  const auto first = cache.find("a", make), again = cache.find("a", make),
             other = cache.find("b", make);
  EXPECT_EQ(*first, *again);
  EXPECT_NE(*first, *other);
  EXPECT_EQ(made, 2);
  const auto refuse = [&]() -> GrammarCache::Made {
    ++made;
    return ApiError{.message = "too large"};
  };
  EXPECT_FALSE(cache.find("c", refuse).ok());
  EXPECT_FALSE(cache.find("c", refuse).ok());
  EXPECT_EQ(made, 3);
  const auto large = [&]() -> GrammarCache::Made {
    auto program = std::make_shared<GrammarProgram>(cache.program());
    program->set_bytes(GrammarCache::kMaxBytes / 4);
    return Program(std::move(program));
  };
  for (int i = 0; i < 12; ++i) {
    (void)cache.find("a", make);
    (void)cache.find("large " + std::to_string(i), large);
    EXPECT_LE(cache.stats().bytes, GrammarCache::kMaxBytes);
  }
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace braid::server
