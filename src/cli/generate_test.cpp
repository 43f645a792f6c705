// generate_test.cpp -- which chat template a file gets.
#include "cli/generate.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "gguf/gguf_writer.h"

namespace braid::cli {
namespace {

// A file with this template (empty: none), and a vocabulary of three tokens.
Result<ChatTemplate> template_of(const std::string& text, const std::string& turn_mark) {
  const std::string path = ::testing::TempDir() + "braid_generate_test.gguf";
  GgufWriter writer;
  writer.set_string("general.architecture", "toy");
  if (!text.empty()) writer.set_string("tokenizer.chat_template", text);
  EXPECT_TRUE(writer.write_file(path).ok());
  const auto file = GgufFile::open(path);
  EXPECT_TRUE(file.ok()) << file.error().message;
  VocabularyData data;
  data.model = "gpt2";
  data.pre = "qwen2";
  data.tokens = {"a", "b", turn_mark};
  const auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  auto chat = make_chat_template(*file, *tokenizer);
  std::remove(path.c_str());
  return chat;
}

TEST(ChatTemplateOfAFile, IsItsOwnOrTheBuiltInOneWhereTheVocabularyHasItsMarks) {
  EXPECT_EQ(template_of("own", "<assistant>")->text(), "own");
  EXPECT_EQ(template_of("", "<|im_start|>")->text(), ChatTemplate::built_in("", "").text());
  const auto none = template_of("", "<assistant>");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("no chat template"), std::string::npos) << none.error().message;
  EXPECT_FALSE(template_of("{% include 'chat_template.jinja' %}", "<assistant>").ok());
}

}  // namespace
}  // namespace braid::cli
