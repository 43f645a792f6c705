// prompt_compressor_test.cpp -- what a question needs survives, and what cannot be read is refused.
#include "server/compress/prompt_compressor.h"

#include <gtest/gtest.h>

#include "gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {
namespace {

const std::string kModel = std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-q8_0.gguf";

struct Compressing {
  explicit Compressing(const char* keep = "0.1", int32_t context = 8192) {
    auto opened = GgufFile::open(kModel);
    EXPECT_TRUE(opened.ok());
    file = std::make_unique<GgufFile>(std::move(*opened));
    auto vocabulary = read_vocabulary(*file);
    EXPECT_TRUE(vocabulary.ok());
    auto made = Tokenizer::create(std::move(*vocabulary));
    EXPECT_TRUE(made.ok());
    tokenizer = std::make_unique<Tokenizer>(std::move(*made));
    EngineOptions options;
    options.device = "cpu";
    options.threads = 2;
    options.context_tokens = context;
    auto started = Engine::create(*file, PromptScorer::engine_options(options));
    EXPECT_TRUE(started.ok());
    auto scorer_made = PromptScorer::create(std::move(*started), {});
    EXPECT_TRUE(scorer_made.ok());
    scorer = std::move(*scorer_made);
    auto curve = KeepCurve::parse(keep);
    EXPECT_TRUE(curve.ok());
    compressor = std::make_unique<PromptCompressor>(*scorer, *tokenizer, *curve);
  }
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<PromptScorer> scorer;
  std::unique_ptr<PromptCompressor> compressor;
};

std::string sentences(int count) {
  const char* const kSentences[] = {"The morning was quiet and the street was empty. ",
                                    "A dog slept beside the old wooden door. ",
                                    "Nobody had seen the baker since last week. ",
                                    "Rain fell on the roofs of the village. "};
  std::string text;
  for (int i = 0; i < count; ++i) text += kSentences[(i * 7 + i / 5) % 4];
  return text;
}

TEST(PromptCompressor, KeepsTheFactAndTheQuestion) {
  Compressing c;
  const std::string fact = "The secret number for calm-falcon is 512.";
  const std::string text = sentences(150) + fact + " " + sentences(150);
  const std::string question = "\n\nWhat is the secret number for calm-falcon?";
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  size_t seen = 0;
  const auto compressed = c.compressor->compress(parts, [&](size_t done, size_t all) {
    EXPECT_LE(done, all);
    seen = done;
    return false;
  });
  ASSERT_TRUE(compressed.ok()) << compressed.error().message;
  EXPECT_EQ(compressed->original, text + question);
  EXPECT_NE(compressed->kept.text.find(fact), std::string::npos);
  EXPECT_TRUE(compressed->kept.text.ends_with(question));
  EXPECT_LT(compressed->kept.ratio(), 0.35);
  EXPECT_EQ(seen, compressed->kept.total_tokens);
  // A second prompt is not touched by the first.
  const auto again = c.compressor->compress(parts);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->kept.text, compressed->kept.text);
  EXPECT_EQ(again->chunk_scores, compressed->chunk_scores);
}

TEST(PromptCompressor, KeepingAllKeepsEveryByte) {
  Compressing c("1");
  const std::string text = sentences(60) + "\n```\nint x = 1;\n```\nZo\xc3\xab \xe4\xbd\xa0\n";
  const PromptPart parts[] = {{text}};
  const auto compressed = c.compressor->compress(parts);
  ASSERT_TRUE(compressed.ok());
  EXPECT_EQ(compressed->kept.text, text);
}

TEST(PromptCompressor, BytesThatAreNoTextAreRepaired) {
  Compressing c("0.5");
  const std::string text = sentences(30) + "\xff\xfe\x80" + sentences(30);
  const PromptPart parts[] = {{text}};
  EXPECT_TRUE(c.compressor->compress(parts).ok());
}

TEST(PromptCompressor, RefusesWhatItCannotRead) {
  Compressing c("0.1", 512);
  const PromptPart none[] = {{""}};
  EXPECT_EQ(c.compressor->compress(none).error().kind, ErrorKind::invalid_argument);
  const std::string text = sentences(200);
  const PromptPart longer[] = {{text}};
  const auto refused = c.compressor->compress(longer);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("context"), std::string::npos);
  const std::string some = sentences(20);
  const PromptPart fits[] = {{some}};
  const auto stopped = c.compressor->compress(fits, [](size_t, size_t) { return true; });
  EXPECT_TRUE(stopped.ok() || stopped.error().kind == ErrorKind::cancelled);
  EXPECT_TRUE(c.compressor->compress(fits).ok());
}

TEST(PromptCompressor, AFactInAnyWindowOfALongerTextIsKept) {
  Compressing c("0.2", 1024);
  const std::string fact = "The secret number for calm-falcon is 512.";
  const std::string question = "\n\nWhat is the secret number for calm-falcon?";
  for (const int before : {10, 160, 310}) {
    const std::string text = sentences(before) + fact + " " + sentences(320 - before);
    const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
    size_t seen = 0, most = 0;
    const auto compressed = c.compressor->compress(parts, [&](size_t done, size_t all) {
      EXPECT_GE(done, seen);
      seen = done;
      most = all;
      return false;
    });
    ASSERT_TRUE(compressed.ok()) << compressed.error().message;
    EXPECT_GE(compressed->windows, 3u);
    EXPECT_EQ(seen, most);
    EXPECT_EQ(compressed->original, text + question);
    EXPECT_EQ(compressed->kept.total_tokens, part_tokens(*c.tokenizer, text)->size() +
                                                 part_tokens(*c.tokenizer, question)->size());
    const std::string& kept = compressed->kept.text;
    EXPECT_NE(kept.find(fact), std::string::npos) << before;
    EXPECT_TRUE(kept.ends_with(question));
    EXPECT_EQ(kept.find(question), kept.size() - question.size()) << "it stands there once";
    EXPECT_LT(compressed->kept.ratio(), 0.45);
    for (const KeptPart& part : compressed->kept.parts)
      EXPECT_EQ(compressed->original.substr(part.source.begin, part.source.end - part.source.begin),
                kept.substr(part.output.begin, part.output.end - part.output.begin));
  }
}

TEST(PromptCompressor, WindowsOfALongerTextLoseNoByteAndHaveTheShareOfItsLength) {
  const std::string text = sentences(320), question = "\n\nWhere did the dog sleep?";
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  const auto all = Compressing("1", 1024).compressor->compress(parts);
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->kept.text, text + question);
  // Each window alone is short enough to be kept as it is.
  const auto some = Compressing("1100:1 2000:0.1", 1024).compressor->compress(parts);
  ASSERT_TRUE(some.ok());
  EXPECT_GE(some->windows, 3u);
  EXPECT_LT(some->kept.ratio(), 0.4);
}

TEST(PromptCompressor, ATextThatTheContextHoldsIsReadAtOnce) {
  const std::string text = sentences(50), question = "\n\nWho slept beside the door?";
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  const auto small = Compressing("0.2", 1024).compressor->compress(parts);
  const auto large = Compressing("0.2", 8192).compressor->compress(parts);
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(small->windows, 1u);
  EXPECT_EQ(small->kept.text, large->kept.text);
  EXPECT_EQ(small->chunk_scores, large->chunk_scores);
}

TEST(PromptCompressor, WithoutAQuestionTheLastWordsOfALongerTextAreIt) {
  Compressing c("0.2", 1024);
  const std::string fact = "The secret number for calm-falcon is 512.";
  const std::string words = "What is the secret number for calm-falcon?";
  const std::string text = sentences(10) + fact + " " + sentences(310) + "\n\n" + words;
  const PromptPart parts[] = {{text}, {"", KeptBecause::last_user_turn}};
  const auto compressed = c.compressor->compress(parts);
  ASSERT_TRUE(compressed.ok()) << compressed.error().message;
  EXPECT_EQ(compressed->original, text);
  EXPECT_NE(compressed->kept.text.find(fact), std::string::npos);
  EXPECT_TRUE(compressed->kept.text.ends_with(words));
}

TEST(PromptCompressor, TooManyWindowsAreRefusedWithTheNumbers) {
  Compressing c("0.1", 1024);
  const std::string text = sentences(8000), question = "\n\nWho slept beside the door?";
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  const auto refused = c.compressor->compress(parts);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::invalid_argument);
  for (const char* words :
       {"too many for a context of 1024 (-c)", "windows of 1024 tokens", "more than 64"})
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
}

TEST(PromptCompressor, AQuestionThatLeavesNoRoomIsRefusedWithTheNumbers) {
  Compressing c("0.1", 1024);
  const std::string text = sentences(20), question = sentences(100);
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  const auto refused = c.compressor->compress(parts);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("too few for a question of"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace braid::server
