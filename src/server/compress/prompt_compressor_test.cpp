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

}  // namespace
}  // namespace braid::server
