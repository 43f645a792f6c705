// tool_calls_test.cpp -- calls under the token mask, from the request to the parsed answer.
#include <gtest/gtest.h>

#include "server/api/answer_stream.h"
#include "server/api/prompt.h"
#include "server/api/read_request.h"
#include "server/api/structured/schema_grammar.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

constexpr const char* kTools = R"([
  {"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{"cmd":{"type":"string"},"n":{"type":"integer"}},"required":["cmd"]}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}])";

struct Prepared {
  using Form = AnswerPolicy::ToolForm;
  explicit Prepared(const std::string& more, Form form = Form::full,
                    const std::string& tools = kTools, Dialect::Calls calls = Dialect::Calls::xml) {
    model->abilities.dialect.calls = calls;
    AnswerPolicy policy;
    policy.thinking = Thinking::off;
    policy.tool_form = form;
    auto generation = read_chat(
        Json::parse(R"({"messages":[{"role":"user","content":"q"}],"tools":)" + tools + more + "}"),
        {});
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, policy, 1);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    answer = std::move(*prepared);
  }

  bool may_be(const std::string& text, bool ends = true) const {
    return mask_allows(answer.requests[0].mask.get(), *model->tokenizer, text, ends);
  }

  // The calls and the content that the parser reads.
  std::string read_as(const std::string& text) const {
    AnswerParser parser(answer.format);
    AnswerEvents events;
    parser.push(text, events);
    parser.finish(false, events);
    std::string out;
    for (const AnswerEvent& event : events) {
      if (event.kind == AnswerEvent::Kind::call) out += "[" + event.text + "]";
      if (event.kind == AnswerEvent::Kind::arguments) out += event.text;
      if (event.kind == AnswerEvent::Kind::content) out += event.text;
    }
    return out;
  }

  std::shared_ptr<ServedModel> model = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  PreparedAnswer answer;
};

std::string call(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n<function=" + name + ">\n" + arguments + "</function>\n</tool_call>";
}
std::string cmd(const std::string& value) { return "<parameter=cmd>\n" + value + "</parameter>\n"; }

TEST(ToolCalls, AreHeldToNamesAndSchemas) {
  const Prepared free("");
  EXPECT_TRUE(free.may_be("It is fine."));
  EXPECT_TRUE(free.may_be("See <tool_response> and <b>."));
  EXPECT_TRUE(free.may_be(call("run", cmd("ls\n"))));
  EXPECT_TRUE(free.may_be("I look.\n\n" + call("run", cmd("ls\n")) + "\n" + call("stop", "")));
  EXPECT_TRUE(free.may_be(call("run", cmd("ls\n")) + "\n" + call("run", cmd("pwd\n"))));
  EXPECT_FALSE(free.may_be(call("run", cmd("ls\n")) + "\n" + call("run", ""), false));
  EXPECT_FALSE(free.may_be("<tool_call>\n<function=evil", false));
  EXPECT_FALSE(free.may_be("<tool_call>\n{\"name", false));
  EXPECT_FALSE(free.may_be(call("run", ""), false));  // cmd is required
  // Unlisted parameters are refused unless the schema allows them.
  EXPECT_FALSE(free.may_be(call("run", cmd("ls\n") + "<parameter=other>\nx\n</parameter>\n")));
  EXPECT_FALSE(
      free.may_be("<tool_call>\n<function=run>\n" + cmd("ls\n") + "<parameter=n>\nx", false));
}

// An immediately closed text is empty. Otherwise the rest of the answer would be part of it.
TEST(ToolCalls, AnEmptyTextEndsWhereItsTagDoes) {
  const Prepared free("");
  EXPECT_TRUE(free.may_be(call("run", cmd(""))));
  EXPECT_TRUE(free.may_be(call("run", cmd("\n"))));
  const std::string open = "<tool_call>\n<function=run>\n<parameter=cmd>\n";
  EXPECT_FALSE(free.may_be(call("run", cmd("")) + "\n<tool_call>\n<function=evil", false));
  EXPECT_FALSE(free.may_be(open + "x\n</function>\n</tool_call>", false));
  EXPECT_TRUE(free.may_be(call("run", cmd("a </parameter> <function=evil> </tool_call>\n"))));
}

TEST(ToolCalls, OfToolsThatWereNotOfferedAreText) {
  const std::string kEvil[] = {
      call("evil", cmd("x\n")), R"(<tool_call>{"name":"evil","arguments":{}}</tool_call>)",
      "<tool_call>\n<function=run>\n" + cmd("x\n") + "</function>\n<function=evil>\n</function>",
      "<function=evil>\n" + cmd("x\n") + "</function>"};
  using Form = AnswerPolicy::ToolForm;
  const Form off = Form::free;
  const Prepared full(""), by_name("", Form::names), required(R"(,"tool_choice":"required")", off),
      free("", off);
  const Prepared stop_only(R"(,"tool_choice":{"type":"function","function":{"name":"stop"}})", off);
  for (const std::string& evil : kEvil) {
    for (const Prepared* held : {&full, &by_name, &required, &stop_only}) {
      EXPECT_EQ(held->read_as(evil).find("[evil]"), std::string::npos) << evil;
      EXPECT_NE(held->read_as(evil).find("evil"), std::string::npos) << "nothing is lost: " << evil;
    }
  }
  EXPECT_EQ(stop_only.read_as(call("run", cmd("x\n"))).find("[run]"), std::string::npos);
  EXPECT_EQ(stop_only.read_as(call("stop", "")), "[stop]{}");
  // Without a constraint, the client must reject unknown tools.
  EXPECT_EQ(free.read_as(kEvil[0]).substr(0, 6), "[evil]");
  EXPECT_TRUE(free.may_be(kEvil[0]));
}

TEST(ToolCalls, AreNamedAndShownInText) {
  using Form = AnswerPolicy::ToolForm;
  const Prepared full(""), names("", Form::names);
  const std::string good = call("run", cmd("ls\n")), bad = call("evil", cmd("x\n"));
  for (const Prepared* held : {&full, &names}) {
    for (const std::string& text : std::vector<std::string>{
             std::string(
                 "A call opens with `<tool_call>` and ends with `</tool_call>`, as it says."),
             std::string("`<tool_call>` opens it."), std::string("The <tool_call> tag opens it."),
             std::string("- <tool_call>: opens a call"), std::string("It opens with <tool_call>"),
             std::string("\"<tool_call>\" it is.\n\nAnd <tool_call>, too."),
             std::string("`<tool_call>{\"name\": \"x\"}</tool_call>`"),
             "So:\n```xml\n" + bad + "\n```\nThat is all.", "~~~\n" + good + "\n~~~",
             "```\n<tool_call>\nno\n```"}) {
      EXPECT_TRUE(held->may_be(text)) << text;
      EXPECT_EQ(held->read_as(text), text);
    }
    for (const std::string& before :
         std::vector<std::string>{"", "Hm.\n", "As <tool_call> says:\n", "```\n" + bad + "\n```\n",
                                  "`a`\n", "See ` there.\n", "```\nls\n```"}) {
      EXPECT_TRUE(held->may_be(before + good)) << before;
      EXPECT_FALSE(held->may_be(before + "<tool_call>\n<function=evil", false)) << before;
      EXPECT_FALSE(held->may_be(before + "<tool_call>\n{\"name", false)) << before;
      EXPECT_TRUE(held->may_be(good + "\n" + before + good)) << before;
    }
    EXPECT_FALSE(held->may_be("The <tool_call> {", false));
    EXPECT_FALSE(held->may_be("The `<tool_call>\n<function=evil", false));
    EXPECT_TRUE(held->may_be("The `<tool_call>\n<function=run>\n" + cmd("ls\n") +
                             "</function>\n</tool_call>"));
    // at the start of a line it is a call
    EXPECT_FALSE(held->may_be("<tool_call> is a tag", false));
  }
}

TEST(ToolCalls, ARequiredCallIsWrittenAsAFreeOne) {
  const Prepared free(""), required(R"(,"tool_choice":"required")");
  for (const std::string& one :
       {call("run", cmd("ls\n")), call("run", cmd("")), "\n\n" + call("stop", ""),
        call("stop", "") + "\n" +
            call("run", cmd("a\nb\n") + "<parameter=n>\n3\n</parameter>\n")}) {
    EXPECT_TRUE(free.may_be(one)) << one;
    EXPECT_TRUE(required.may_be(one)) << one;
  }
  EXPECT_FALSE(required.may_be("No."));
  EXPECT_FALSE(required.may_be(""));
}

std::string tool_of(const std::string& parameters, bool strict = false) {
  return R"([{"type":"function","function":{"name":"f",)" +
         std::string(strict ? R"("strict":true,)" : "") + R"("parameters":)" + parameters + "}}]";
}
std::string refused(const std::string& tools) {
  const auto model = demo_served_model(nullptr);
  const auto read = read_chat(
      Json::parse(R"({"messages":[{"role":"user","content":"q"}],"tools":)" + tools + "}"), {});
  EXPECT_TRUE(read.ok()) << read.error().message;
  const auto made = answer_grammar(*read, *model, {});
  return made.ok() ? std::string() : made.error().message;
}
std::string given(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(ToolCalls, ParametersAreTypedByTheMaskAndTheParserAlike) {
  const struct {
    const char *parameters, *name, *written, *read;
    const char* never = nullptr;  // refused by the mask
  } kCases[] = {
      {R"({"type":"object","properties":{"c":{"$ref":"#/$defs/C"}},"$defs":{"C":{"enum":["red","blue"],"type":"string"}}})",
       "c", "red", "\"red\"", "\"red\""},
      {R"({"type":"object","properties":{"c":{"allOf":[{"$ref":"#/$defs/C"}],"default":"red"}},"$defs":{"C":{"enum":["red","blue"]}}})",
       "c", "blue", "\"blue\"", "green"},
      {R"({"type":"object","properties":{"c":{"anyOf":[{"$ref":"#/$defs/C"},{"type":"null"}]}},"$defs":{"C":{"enum":["red","blue"]}}})",
       "c", "null", "null", "none"},
      {R"({"type":"object","properties":{"n":{"$ref":"#/$defs/N"}},"$defs":{"N":{"type":"integer"}}})",
       "n", "2", "2", "x"},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"n":{"$ref":"#/properties/a"}}})",
       "n", "2", "2", "\"2\""},
      {R"({"type":"object","properties":{"s":{"$ref":"#/$defs/S"}},"$defs":{"S":{"type":"string"}}})",
       "s", "{\"a\": 1}", R"("{\"a\": 1}")"},
      {R"({"$ref":"#/definitions/A","definitions":{"A":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}})",
       "n", "3", "3", "x"},
      {R"({"type":"object","anyOf":[{"properties":{"k":{"const":"id"},"n":{"type":"integer"}}},{"properties":{"k":{"const":"t"},"t":{"type":"string"}}}]})",
       "n", "7", "7", "x"},
      {R"({"type":"object","anyOf":[{"properties":{"k":{"const":"id"}}},{"properties":{"k":{"const":"t"}}}]})",
       "k", "t", "\"t\"", "u"},
      {R"({"type":"object","properties":{},"additionalProperties":{"type":"integer"}})", "left",
       "3", "3", "x"},
      {R"({"type":"object","patternProperties":{"^.*$":{"type":"boolean"}},"additionalProperties":false})",
       "b", "true", "true", "x"},
      {R"({"type":"object","properties":{"n":{"type":"integer","nullable":true}}})", "n", "null",
       "null", "None"},
      {R"({"type":"object","properties":{"v":{"anyOf":[{"type":"string"},{"type":"array"}]}}})",
       "v", "[1, 2]", "[1, 2]"},
      {R"({"type":"object","properties":{"v":{"type":["string","integer"]}}})", "v", "42", "42"},
      {R"({"type":"object","properties":{"v":{}}})", "v", "{\"k\": 1}", "{\"k\": 1}"},
      {R"({"type":"object","properties":{"v":{"description":"d"}}})", "v", "42", "\"42\""},
      {R"({"type":"object","properties":{"v":{"type":"str"}}})", "v", "42", "\"42\""},
      {R"({"type":"object"})", "v", "42", "\"42\""},
      {R"({"type":"object","properties":{"c":{"$ref":"#/$defs/C","enum":["red"]}},"$defs":{"C":{"enum":["green","red"]}}})",
       "c", "red", "\"red\"", "green"},
      {R"({"type":"object","properties":{"v":{"type":"string","enum":["a",1]}}})", "v", "a",
       "\"a\"", "1"},
      {R"({"type":"object","properties":{"v":{"enum":["a",1,2.5,2.0],"type":"integer"}}})", "v",
       "2.0", "2.0", "2.5"},
      {R"({"type":"object","properties":{"v":{"enum":["a",null],"allOf":[{"type":"null"}]}}})", "v",
       "null", "null", "a"},
      {R"({"type":"object","properties":{"v":{"anyOf":[{"type":"string","enum":[1]},{"const":"b"}]}}})",
       "v", "b", "\"b\"", "1"},
  };
  for (const auto& [parameters, name, written, read, never] : kCases) {
    const Prepared full("", AnswerPolicy::ToolForm::full, tool_of(parameters));
    const std::string text = call("f", given(name, written));
    EXPECT_TRUE(full.may_be(text)) << parameters << " " << written;
    EXPECT_EQ(full.read_as(text), "[f]{\"" + std::string(name) + "\": " + read + "}") << parameters;
    if (never != nullptr) {
      EXPECT_FALSE(full.may_be(call("f", given(name, never)))) << parameters << " " << never;
    }
  }
}

TEST(ToolCalls, ParametersComeInAnyOrderAndNoneIsLost) {
  const char* parameters =
      R"({"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer"},
      "description":{"type":"string"}},"required":["command","description"],"additionalProperties":true})";
  const Prepared full("", AnswerPolicy::ToolForm::full, tool_of(parameters));
  std::vector<std::pair<std::string, std::string>> order{
      {"command", "ls"}, {"timeout", "5000"}, {"description", "List"}, {"more", "x"}};
  std::sort(order.begin(), order.end());
  do {
    std::string text, json;
    for (const auto& [name, value] : order) {
      text += given(name, value);
      json += (json.empty() ? "{\"" : ", \"") + name +
              "\": " + (name == "timeout" ? value : "\"" + value + "\"");
    }
    EXPECT_TRUE(full.may_be(call("f", text))) << text;
    EXPECT_EQ(full.read_as(call("f", text)), "[f]" + json + "}");
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_FALSE(full.may_be(call("f", given("command", "ls"))));
  EXPECT_FALSE(full.may_be(
      call("f", given("command", "ls") + given("command", "x") + given("description", "d"))));
  const char* closed =
      R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},
      "required":["a","b"],"additionalProperties":false})";
  const Prepared strict("", AnswerPolicy::ToolForm::names, tool_of(closed, true));
  EXPECT_TRUE(strict.may_be(call("f", given("b", "1") + given("a", "2"))));
  EXPECT_FALSE(strict.may_be(call("f", given("b", "1") + given("a", "2") + given("c", "3"))));
}

TEST(ToolCalls, WhatNoValueFitsIsLeftOutOrRefused) {
  for (const char* never :
       {R"({"type":"string","enum":[1]})", R"({"allOf":[{"const":"a"},{"const":"b"}]})", "false"}) {
    const std::string one = R"({"type":"object","properties":{"v":)" + std::string(never) + "}";
    for (const bool strict : {false, true}) {
      const Prepared optional(
          "", AnswerPolicy::ToolForm::full,
          tool_of(one + (strict ? "}" : R"(,"additionalProperties":true})"), strict));
      EXPECT_TRUE(optional.may_be(call("f", ""))) << never;
      EXPECT_FALSE(optional.may_be(call("f", given("v", "a")))) << never;
      EXPECT_EQ(optional.may_be(call("f", given("w", "a"))), !strict) << never;
    }
    EXPECT_NE(refused(tool_of(one + R"(,"required":["v"]})", true)), "");
  }
}

TEST(ToolCalls, NamesThatNoTagCanHoldFreeTheirTool) {
  for (const std::string& name :
       {std::string(129, 'n'), std::string("a>b"), std::string(" a"), std::string("a\n")}) {
    const std::string parameters =
        Json{{"type", "object"}, {"properties", {{name, {{"type", "integer"}}}}}}.dump();
    const Prepared full("", AnswerPolicy::ToolForm::full, tool_of(parameters));
    EXPECT_TRUE(full.may_be("<tool_call>\n<function=f>\nanything", false)) << name;
    EXPECT_NE(refused(tool_of(parameters, true)).find("cannot be written in a call"),
              std::string::npos)
        << name;
  }
  for (const std::string& name :
       {std::string(128, 'n'), std::string("a b"), std::string("\"q\""), std::string("x<y")}) {
    const std::string parameters =
        Json{{"type", "object"}, {"properties", {{name, {{"type", "integer"}}}}}}.dump();
    const Prepared full("", AnswerPolicy::ToolForm::full, tool_of(parameters, true));
    EXPECT_TRUE(full.may_be(call("f", given(name, "1")))) << name;
    EXPECT_EQ(full.read_as(call("f", given(name, "1"))), "[f]{" + Json(name).dump() + ": 1}");
  }
}

TEST(ToolCalls, NamesThatAreNotListedAreBoundInBytes) {
  const Prepared full(
      "", AnswerPolicy::ToolForm::full,
      tool_of(R"({"type":"object","properties":{"n":{}},"additionalProperties":true})"));
  std::string wide;
  for (int i = 0; i < 16; ++i) wide += "\U0001F600";
  EXPECT_EQ(wide.size(), 64U);
  EXPECT_TRUE(full.may_be(call("f", given(wide, "1"))));
  EXPECT_EQ(full.read_as(call("f", given(wide, "1"))), "[f]{" + Json(wide).dump() + ": \"1\"}");
  EXPECT_FALSE(full.may_be(call("f", given(wide + "x", "1"))));
  EXPECT_FALSE(full.may_be(call("f", given("\"n\"", "1"))));  // the parser would read n
  EXPECT_TRUE(full.may_be(call("f", given(std::string(64, 'x'), "1"))));
  EXPECT_FALSE(full.may_be(call("f", given(std::string(65, 'x'), "1"))));
  // A length that no listed name has.
  const std::string parameters = Json{
      {"type", "object"},
      {"properties", {{std::string(64, 'x'), true}}},
      {"additionalProperties", true}}.dump();
  const Prepared longer("", AnswerPolicy::ToolForm::full, tool_of(parameters));
  EXPECT_TRUE(longer.may_be(call("f", given(std::string(65, 'x'), "1"))));
  EXPECT_FALSE(longer.may_be(call("f", given(std::string(66, 'x'), "1"))));
}

TEST(ToolCalls, TextsAreHeldToPatternsFormatsAndLengths) {
  const struct {
    const char* schema;
    std::vector<std::string> good, bad;
  } kCases[] = {
      {R"({"type":"string","pattern":"^[a-z]+$"})", {"abc"}, {"ABC", "a b", ""}},
      {R"({"type":"string","format":"date"})", {"2026-11-28"}, {"28.11.", "2026-11-28x"}},
      {R"({"type":"string","minLength":1,"maxLength":3})",
       {"a", "\U0001F600xy", "</p"},
       {"", "abcd"}},
      {R"({"type":"string","minLength":1})", {"a", "a\nb </parameter> c", "\"q\" \\"}, {""}},
      {R"({"type":["string","null"],"maxLength":2})", {"null", "None", "ab", ""}, {"abc"}},
      {R"({"anyOf":[{"type":"string","pattern":"^x"},{"type":"null"}]})", {"xy", "null"}, {"y"}},
      {R"({"type":"string","not":{"enum":["a","b"]}})", {"c", "ab"}, {"a", "b"}},
      {R"({"anyOf":[{"type":"string","pattern":"^x"},{"type":"string"}]})", {"y", ""}, {}},
      {R"({"type":"string","maxLength":100000})", {"y", ""}, {}},  // too long to be counted
      // other types are unconstrained
      {R"({"type":["string","integer"],"maxLength":1})", {"xyz", "12"}, {}},
  };
  for (const Dialect::Calls calls : {Dialect::Calls::xml, Dialect::Calls::argkv}) {
    for (const auto& [schema, good, bad] : kCases) {
      const std::string all = R"({"type":"object","properties":{"v":)" + std::string(schema) + "}}";
      const Prepared full("", AnswerPolicy::ToolForm::full, tool_of(all, true), calls);
      const auto written = [xml = calls == Dialect::Calls::xml](const std::string& value) {
        return xml ? call("f", given("v", value))
                   : "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>" + value +
                         "</arg_value>\n</tool_call>";
      };
      for (const std::string& value : good) {
        EXPECT_TRUE(full.may_be(written(value))) << schema << value;
        const bool bare = value == "null" || value == "None" || value == "12";
        const std::string read = value == "None" ? "null" : bare ? value : Json(value).dump();
        EXPECT_EQ(full.read_as(written(value)), "[f]{\"v\": " + read + "}") << schema;
      }
      for (const std::string& value : bad)
        EXPECT_FALSE(full.may_be(written(value))) << schema << value;
    }
  }
  EXPECT_NE(refused(tool_of(R"({"properties":{"v":{"type":"string","minLength":2,"maxLength":1}}})",
                            true)),
            "");
}

TEST(ToolCalls, NoTextTalksItselfOutOfItsParameter) {
  const Prepared full("");
  for (const std::string& value : std::vector<std::string>{
           "a</parameter><parameter=n>\nx", "a </parameter> </function>", "a\n<parameter=n>\nx",
           "a\n</tool_call>", "a\n</function>\n<function=evil>\n<parameter=n>\nx"}) {
    const std::string text = call("run", cmd(value + "\n"));
    EXPECT_TRUE(full.may_be(text)) << value;
    EXPECT_EQ(full.read_as(text), "[run]{\"cmd\": " + Json(value).dump() + "}");
  }
}

TEST(ToolCalls, ATagInsideAStringEndsNoValue) {
  const std::string tools =
      tool_of(R"({"type":"object","properties":{"a":{"type":"array"},"o":{"type":"object"},
      "e":{"enum":["x</arg_value>y","z"]}}})");
  const Prepared argkv("", AnswerPolicy::ToolForm::full, tools, Dialect::Calls::argkv);
  const auto pair = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
  };
  for (const char* list :
       {R"(["x</arg_value>y"])", R"(["\"</arg_value>", "\\"])", R"(["</arg_value>"])"}) {
    const std::string object = R"({"k": )" + std::string(list) + "}";
    const std::string text =
        "<tool_call>f\n" + pair("a", list) + pair("o", object) + "</tool_call>";
    EXPECT_TRUE(argkv.may_be(text)) << text;
    EXPECT_EQ(argkv.read_as(text),
              R"([f]{"a": )" + std::string(list) + R"(, "o": )" + object + "}");
  }
  EXPECT_FALSE(argkv.may_be("<tool_call>f\n" + pair("e", "x</arg_value>y") + "</tool_call>"));
  EXPECT_TRUE(argkv.may_be("<tool_call>f\n" + pair("e", "z") + "</tool_call>"));
}

TEST(ToolCalls, OtherDialectsAreTypedAlike) {
  const std::string tools = tool_of(
      R"({"type":"object","properties":{"c":{"$ref":"#/$defs/C"},"n":{"type":"integer"}},"required":["c"],"$defs":{"C":{"enum":["red","blue"]}}})");
  const Prepared argkv("", AnswerPolicy::ToolForm::full, tools, Dialect::Calls::argkv);
  const auto pair = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
  };
  const std::string told = "<tool_call>f\n" + pair("n", "3") + pair("c", "red") + "</tool_call>";
  EXPECT_TRUE(argkv.may_be(told));
  EXPECT_EQ(argkv.read_as(told), R"([f]{"n": 3, "c": "red"})");
  EXPECT_FALSE(argkv.may_be("<tool_call>f\n" + pair("c", "\"red\"") + "</tool_call>"));
  EXPECT_TRUE(argkv.may_be("The <tool_call> tag, and `<tool_call>f</tool_call>`."));
  EXPECT_EQ(argkv.read_as("```\n" + told + "\n```"), "```\n" + told + "\n```");
  EXPECT_TRUE(argkv.may_be("```\n" + told + "\n```"));
  const Prepared hermes("", AnswerPolicy::ToolForm::full, tools, Dialect::Calls::hermes);
  const std::string object =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3, \"c\": \"red\"}}\n</tool_call>";
  EXPECT_TRUE(hermes.may_be(object));
  EXPECT_EQ(hermes.read_as(object), R"([f]{"n": 3, "c": "red"})");
  EXPECT_TRUE(hermes.may_be("```json\n" + object + "\n```\nSo."));
  EXPECT_EQ(hermes.read_as("```json\n" + object + "\n```\nSo."),
            "```json\n" + object + "\n```\nSo.");
  EXPECT_EQ(hermes.read_as("Hm.\n" + object + "\n</tool_call>\nSo."),
            "Hm.[f]{\"n\": 3, \"c\": \"red\"}\n\nSo.");
}

}  // namespace
}  // namespace braid::server
