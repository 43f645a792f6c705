// vocabulary_test.cpp -- tokenizer keys that are present, missing, old or wrong.
#include "text/tokenizer/vocabulary.h"

#include <gtest/gtest.h>

#include <cstring>

#include "text/tokenizer/tokenizer_test_vocabulary.h"

namespace braid {
namespace {

class Metadata {
 public:
  Metadata& text(std::string_view key, std::string_view value) {
    entry(key, GgufValueType::STRING);
    string(value);
    return *this;
  }
  Metadata& texts(std::string_view key, const std::vector<std::string>& values) {
    entry(key, GgufValueType::ARRAY);
    number<uint32_t>(static_cast<uint32_t>(GgufValueType::STRING));
    number<uint64_t>(values.size());
    for (const std::string& value : values) string(value);
    return *this;
  }
  template <typename T>
  Metadata& value(std::string_view key, GgufValueType type, T value) {
    entry(key, type);
    number<T>(value);
    return *this;
  }

  Result<VocabularyData> read() {
    std::string bytes = "GGUF";
    bytes.swap(bytes_);
    number<uint32_t>(3);
    number<uint64_t>(0);
    number<uint64_t>(entries_);
    bytes_ += bytes;
    bytes_.resize((bytes_.size() + 31) / 32 * 32);
    BRAID_ASSIGN(const GgufFile file,
                 GgufFile::parse(std::as_bytes(std::span(bytes_)), "test.gguf"));
    return read_vocabulary(file);
  }

 private:
  void entry(std::string_view key, GgufValueType type) {
    ++entries_;
    string(key);
    number<uint32_t>(static_cast<uint32_t>(type));
  }
  void string(std::string_view text) {
    number<uint64_t>(text.size());
    bytes_ += text;
  }
  template <typename T>
  void number(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }

  uint64_t entries_ = 0;
  std::string bytes_;
};

TEST(Vocabulary, TheDemoModelSaysEverything) {
  const VocabularyData data = demo_vocabulary();
  EXPECT_EQ(data.model, "gpt2");
  EXPECT_EQ(data.pre, "qwen35");
  EXPECT_EQ(data.tokens.size(), 8192u);
  EXPECT_EQ(data.types.size(), 8192u);
  EXPECT_EQ(data.merges.size(), 7923u);
  EXPECT_EQ(data.eos, 8181);
}

TEST(Vocabulary, ModelTokensAndMergesMustBeThere) {
  const auto data = Metadata()
                        .text("tokenizer.ggml.model", "gpt2")
                        .texts("tokenizer.ggml.tokens", {"a", "b"})
                        .texts("tokenizer.ggml.merges", {})
                        .read();
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->tokens, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data->pre, "");
  EXPECT_TRUE(data->types.empty());
  EXPECT_TRUE(data->merges.empty());
  EXPECT_EQ(data->bos, std::nullopt);
  EXPECT_EQ(data->add_bos, std::nullopt);

  EXPECT_FALSE(Metadata().text("tokenizer.ggml.model", "gpt2").read().ok());
  const auto nameless = Metadata().texts("tokenizer.ggml.tokens", {"a"}).read();
  ASSERT_FALSE(nameless.ok());
  EXPECT_NE(nameless.error().message.find("tokenizer.ggml.model"), std::string::npos);
  const auto unmerged = Metadata()
                            .text("tokenizer.ggml.model", "gpt2")
                            .texts("tokenizer.ggml.tokens", {"a", "b"})
                            .read();
  ASSERT_FALSE(unmerged.ok());
  EXPECT_EQ(unmerged.error().message.find("test.gguf: has no tokenizer.ggml.merges"), 0u);
  const auto other = Metadata()
                         .text("tokenizer.ggml.model", "llama")
                         .texts("tokenizer.ggml.tokens", {"a", "b"})
                         .read();
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(Tokenizer::create(*other).error().kind, ErrorKind::unsupported);
}

TEST(Vocabulary, IdsComeInManyWidthsAndOldNames) {
  const auto data = Metadata()
                        .text("tokenizer.ggml.model", "gpt2")
                        .texts("tokenizer.ggml.tokens", {"a", "b", "c"})
                        .texts("tokenizer.ggml.merges", {})
                        .value<uint32_t>("tokenizer.ggml.bos_token_id", GgufValueType::U32, 1)
                        .value<uint64_t>("tokenizer.ggml.eos_token_id", GgufValueType::U64, 2)
                        .value<uint16_t>("tokenizer.ggml.prefix_token_id", GgufValueType::U16, 0)
                        .value<uint32_t>("tokenizer.ggml.seperator_token_id", GgufValueType::U32, 2)
                        .value<uint8_t>("tokenizer.ggml.add_bos_token", GgufValueType::BOOL, 1)
                        .read();
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->bos, 1);
  EXPECT_EQ(data->eos, 2);
  EXPECT_EQ(data->fim_prefix, 0);
  EXPECT_EQ(data->separator, 2);
  EXPECT_EQ(data->add_bos, true);
}

TEST(Vocabulary, AnIdThatIsNoneIsLeftOutAndOtherMistakesAreErrors) {
  const auto data =
      Metadata()
          .text("tokenizer.ggml.model", "gpt2")
          .texts("tokenizer.ggml.tokens", {"a"})
          .texts("tokenizer.ggml.merges", {})
          .value<uint32_t>("tokenizer.ggml.padding_token_id", GgufValueType::U32, 0xFFFFFFFF)
          .text("tokenizer.ggml.bos_token_id", "a")
          .read();
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->padding, std::nullopt);
  EXPECT_EQ(data->bos, std::nullopt);
  EXPECT_FALSE(Metadata()
                   .text("tokenizer.ggml.model", "gpt2")
                   .texts("tokenizer.ggml.tokens", {"a"})
                   .text("tokenizer.ggml.merges", "a b")
                   .read()
                   .ok());
}

}  // namespace
}  // namespace braid
