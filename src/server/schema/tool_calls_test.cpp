// tool_calls_test.cpp -- calls under the token mask: what an answer may write
// while tools are offered, followed from the request to the mask, and what the
// parser makes of it.
#include <gtest/gtest.h>

#include "server/answers/answer_stream.h"
#include "server/requests/prompt.h"
#include "server/requests/read_request.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

constexpr const char* kTools = R"([
  {"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{"cmd":{"type":"string"},"n":{"type":"integer"}},"required":["cmd"]}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}])";

struct Prepared {
  using Form = AnswerPolicy::ToolForm;
  explicit Prepared(const std::string& more, Form form = Form::full) {
    AnswerPolicy policy;
    policy.thinking = Thinking::off;
    policy.tool_form = form;
    auto generation = read_chat(Json::parse(R"({"messages":[{"role":"user","content":"q"}],"tools":)" +
                                            std::string(kTools) + more + "}"),
                                {});
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, policy, 1);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    answer = std::move(*prepared);
  }

  // Whether the mask lets the answer be `text`, byte by byte as tokens come,
  // and end behind it.
  bool may_be(const std::string& text, bool ends = true) const {
    return mask_allows(answer.requests[0].mask.get(), *model->tokenizer, text, ends);
  }

  // Names of the calls and the content that the parser takes a text for.
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

  std::shared_ptr<ServedModel> model =
      demo_served_model(std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
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
  // Each call begins at its first parameter, wherever the one before ended.
  EXPECT_TRUE(free.may_be(call("run", cmd("ls\n")) + "\n" + call("run", cmd("pwd\n"))));
  EXPECT_FALSE(free.may_be(call("run", cmd("ls\n")) + "\n" + call("run", ""), false));
  EXPECT_FALSE(free.may_be("<tool_call>\n<function=evil", false));
  EXPECT_FALSE(free.may_be("<tool_call>\n{\"name", false));
  EXPECT_FALSE(free.may_be(call("run", ""), false));  // cmd is required
  EXPECT_FALSE(free.may_be("<tool_call>\n<function=run>\n<parameter=other", false));
  EXPECT_FALSE(free.may_be("<tool_call>\n<function=run>\n" + cmd("ls\n") + "<parameter=n>\nx", false));
}

// A model that closes an empty text at once is out of it; else all that follows
// would be part of it for the mask and calls of any name for the parser.
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
  // With `off` it is the client who tells the model that there is no such tool.
  EXPECT_EQ(free.read_as(kEvil[0]).substr(0, 6), "[evil]");
  EXPECT_TRUE(free.may_be(kEvil[0]));
}

// What a model that calls by itself writes is what it may write when it must.
TEST(ToolCalls, ARequiredCallIsWrittenAsAFreeOne) {
  const Prepared free(""), required(R"(,"tool_choice":"required")");
  for (const std::string& one :
       {call("run", cmd("ls\n")), call("run", cmd("")), "\n\n" + call("stop", ""),
        call("stop", "") + "\n" + call("run", cmd("a\nb\n") + "<parameter=n>\n3\n</parameter>\n")}) {
    EXPECT_TRUE(free.may_be(one)) << one;
    EXPECT_TRUE(required.may_be(one)) << one;
  }
  EXPECT_FALSE(required.may_be("No."));
  EXPECT_FALSE(required.may_be(""));
}

}  // namespace
}  // namespace braid::server
