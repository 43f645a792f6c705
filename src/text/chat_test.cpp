// chat_test.cpp -- conversations through templates, against recorded results of Python's Jinja.
#include "text/chat.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "gguf/gguf_writer.h"
#include "text/tokenizer/vocabulary.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> render_golden(const Json& golden) {
  BRAID_ASSIGN(ChatTemplate chat,
               ChatTemplate::parse(golden["template"].get<std::string>(), "", ""));
  ChatOptions options;
  options.variables = golden["kwargs"];
  BRAID_ASSIGN(RenderedText rendered, chat.render(golden["messages"], golden["tools"], options));
  return std::move(rendered.text);
}

TEST(Chat, EveryGoldenRendersAsRecorded) {
  int ran = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/chat")) {
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
  EXPECT_EQ(chat->render(messages, Json::array(), options)->text,
            "<s>hi</s>|False|False|True|True|low");
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
      "<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n<parameter=a>\n[1, "
      "true]\n</parameter>\n"
      "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</"
      "tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}])");
  const std::string with_tools = chat.render(messages, tools)->text;
  EXPECT_NE(
      with_tools.find("\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                      "{\"z\": 1, \"a\": 2}}}\n</tools>"),
      std::string::npos);
  EXPECT_NE(with_tools.find("</tool_call>\n\nBe brief.<|im_end|>\n"), std::string::npos);
  EXPECT_EQ(with_tools.substr(with_tools.size() - 22), "<|im_start|>assistant\n");
}

// A model file with these templates, and a vocabulary of three tokens.
Result<ChatTemplate> template_of(const std::map<std::string, std::string>& templates,
                                 const std::string& turn_mark, const std::string& choice = "") {
  GgufWriter writer;
  writer.set_string("general.architecture", "toy");
  for (const auto& [name, text] : templates)
    writer.set_string("tokenizer.chat_template" + (name.empty() ? "" : "." + name), text);
  const std::vector<std::byte> bytes = writer.to_bytes();
  const auto file = GgufFile::parse(bytes, "toy.gguf");
  EXPECT_TRUE(file.ok()) << file.error().message;
  VocabularyData data;
  data.model = "gpt2";
  data.pre = "qwen2";
  data.tokens = {"a", "b", turn_mark};
  const auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return read_chat_template(*file, *tokenizer, choice);
}

std::string rendered(const Result<ChatTemplate>& chat, const Json& tools = {}) {
  if (!chat.ok()) return chat.error().message;
  const auto text = chat->render(Json::array(), tools);
  return text.ok() ? text->text : text.error().message;
}

TEST(ChatTemplateOfAFile, IsItsOwnOrTheBuiltInOneWhereTheVocabularyHasItsMarks) {
  EXPECT_EQ(template_of({{"", "own"}}, "<assistant>")->text(), "own");
  EXPECT_EQ(template_of({}, "<|im_start|>")->text(), ChatTemplate::built_in("", "").text());
  const auto none = template_of({}, "<assistant>");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("no chat template"), std::string::npos)
      << none.error().message;
  EXPECT_FALSE(template_of({{"", "{% include 'chat_template.jinja' %}"}}, "<assistant>").ok());
}

TEST(ChatTemplateOfAFile, HasAnotherOneForConversationsWithTools) {
  const Json tools = Json::array({{{"type", "function"}}});
  const auto chat = template_of({{"", "plain"}, {"tool_use", "tools"}}, "<assistant>");
  EXPECT_EQ(rendered(chat), "plain");
  EXPECT_EQ(rendered(chat, tools), "tools");
  EXPECT_EQ(rendered(template_of({{"", "plain"}, {"rag", "other"}}, "<assistant>"), tools),
            "plain");
}

TEST(ChatTemplateOfAFile, IsReplacedByANamedOneOrByAFile) {
  const std::map<std::string, std::string> templates = {{"", "plain"}, {"rag", "other"}};
  EXPECT_EQ(rendered(template_of(templates, "<assistant>", "rag")), "other");
  const std::string path =
      testing::TempDir() + "braid-template-" + std::to_string(::getpid()) + ".jinja";
  std::ofstream(path) << "\xEF\xBB\xBFmine {{ bos_token }}";
  EXPECT_EQ(rendered(template_of(templates, "<assistant>", path)), "mine ");
  std::ofstream(path) << "{% if %}";
  EXPECT_FALSE(template_of(templates, "<assistant>", path).ok());
  std::ofstream(path) << "\xff";
  EXPECT_NE(rendered(template_of(templates, "<assistant>", path)).find("not UTF-8"),
            std::string::npos);
  std::filesystem::resize_file(path, (1 << 20) + 1);
  EXPECT_NE(rendered(template_of(templates, "<assistant>", path)).find("1 MiB"), std::string::npos);
  std::filesystem::remove(path);
  const std::string missing = rendered(template_of(templates, "<assistant>", path));
  EXPECT_NE(missing.find("neither a readable file"), std::string::npos) << missing;
  EXPECT_FALSE(template_of(templates, "<assistant>", "/").ok());
}

}  // namespace
}  // namespace braid
