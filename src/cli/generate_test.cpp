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

TEST(Summary, TellsOfDraftsBySourceAndDepth) {
  DraftStats drafts;
  EXPECT_EQ(describe_drafts(drafts), "");
  drafts.rounds = 10;
  DraftCounts& mtp = drafts.by_source[static_cast<size_t>(DraftSource::mtp)];
  mtp.rounds = {8, 5};
  mtp.drafted = {8, 5};
  mtp.accepted = {6, 2};
  DraftCounts& ngram = drafts.by_source[static_cast<size_t>(DraftSource::ngram)];
  ngram.rounds = {2, 0, 1};
  ngram.drafted = {2, 0, 1};
  ngram.accepted = {1};
  drafts.draft_ms = 12.4;
  drafts.verify_ms = 90;
  drafts.plain_ms = 20;
  drafts.host_ms = 3;
  drafts.lost_ms = -41.6;
  EXPECT_EQ(describe_drafts(drafts),
            ", 1 of 3 ngram drafts and 8 of 13 mtp drafts accepted (1.9 tokens a round, by depth 70 40 0 %, "
            "drafting 12 ms, verifying 90, other steps 20, host 3, 42 ms saved)");
  drafts.lost_ms = 0.2;  // or there is no budget
  EXPECT_TRUE(describe_drafts(drafts).ends_with("host 3)")) << describe_drafts(drafts);
  const DraftStats later = drafts.since(drafts);
  EXPECT_EQ(later.rounds + later.drafted() + later.accepted(), 0u);
  EXPECT_EQ(later.lost_ms, 0);
  EXPECT_EQ(later.draft_ms + later.verify_ms + later.plain_ms + later.host_ms, 0);
}

}  // namespace
}  // namespace braid::cli
