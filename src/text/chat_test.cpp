// chat_test.cpp -- conversations through templates, against recorded results of Python's Jinja.
#include "text/chat.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> render_golden(const Json& golden) {
  BRAID_ASSIGN(ChatTemplate chat, ChatTemplate::parse(golden["template"].get<std::string>(), "", ""));
  ChatOptions options;
  options.variables = golden["kwargs"];
  BRAID_ASSIGN(RenderedText rendered, chat.render(golden["messages"], golden["tools"], options));
  return std::move(rendered.text);
}

TEST(Chat, EveryGoldenRendersAsRecorded) {
  int ran = 0;
  for (const auto& file : std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/chat")) {
    const Json golden = Json::parse(std::ifstream(file.path()));
    SCOPED_TRACE(file.path().filename().string());
    const auto result = render_golden(golden);
    ++ran;
    if (golden["expected_error"].is_null()) {
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_EQ(*result, golden["expected"].get<std::string>());
    } else {
      ASSERT_FALSE(result.ok()) << *result;
      EXPECT_EQ(result.error().message, golden["expected_error"].get<std::string>());
    }
  }
  std::printf("[          ] %d conversation goldens\n", ran);
  EXPECT_EQ(ran, 40);
}

TEST(Chat, VariablesReachTheTemplate) {
  const auto chat = ChatTemplate::parse(
      "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}|{{ tools is defined }}|{{ "
      "add_generation_prompt }}|"
      "{{ enable_thinking is defined }}|{{ enable_thinking }}|{{ effort }}",
      "<s>", "</s>");
  ASSERT_TRUE(chat.ok());
  const Json messages = Json::array({chat_message("user", "hi")});
  EXPECT_EQ(chat->render(messages, nullptr)->text, "<s>hi</s>|False|True|False||");
  ChatOptions options;
  options.add_generation_prompt = false;
  options.enable_thinking = true;
  options.variables = {{"effort", "low"}, {"messages", "no"}, {"tools", "no"}};
  EXPECT_EQ(chat->render(messages, Json::array(), options)->text, "<s>hi</s>|False|False|True|True|low");
}

TEST(Chat, ThingsThatAreNotConversationsAreRefused) {
  const ChatTemplate chat = ChatTemplate::built_in("", "");
  EXPECT_FALSE(chat.render(Json::object(), nullptr).ok());
  EXPECT_FALSE(chat.render(Json::array(), "tools").ok());
  EXPECT_FALSE(ChatTemplate::parse("{% for %}", "", "").ok());
}

TEST(Chat, BuiltInTemplateRendersAToolLoop) {
  const ChatTemplate chat = ChatTemplate::built_in("", "");
  const Json messages = Json::parse(R"([
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1", "reasoning_content": "old"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": null, "reasoning_content": "plan", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": "x", "a": [1, true]}}},
      {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "r1"},
    {"role": "tool", "tool_call_id": "2", "content": "r2"}])");
  ChatOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(
      chat.render(messages, nullptr, options)->text,
      "<|im_start|>system\nBe brief.<|im_end|>\n"
      "<|im_start|>user\nq1<|im_end|>\n"
      "<|im_start|>assistant\na1<|im_end|>\n"
      "<|im_start|>user\nq2<|im_end|>\n"
      "<|im_start|>assistant\n<think>\nplan\n</think>\n\n"
      "<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n<parameter=a>\n[1, true]\n</parameter>\n"
      "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</"
      "tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}])");
  const std::string with_tools = chat.render(messages, tools)->text;
  EXPECT_NE(with_tools.find("\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                            "{\"z\": 1, \"a\": 2}}}\n</tools>"),
            std::string::npos);
  EXPECT_NE(with_tools.find("</tool_call>\n\nBe brief.<|im_end|>\n"), std::string::npos);
  EXPECT_EQ(with_tools.substr(with_tools.size() - 22), "<|im_start|>assistant\n");
}

}  // namespace
}  // namespace braid
