// tokenizer_test_vocabulary.h -- vocabularies for tests: a tiny one, and the demo model's.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/tokenizer.h"

namespace braid {

// The 256 bytes as ids 0..255, then one token per merge, in order. Parts are plain bytes.
inline VocabularyData tiny_vocabulary(
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  VocabularyData data;
  data.pre = "qwen2";
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    data.tokens.push_back(to_byte_alphabet({&value, 1}));
  }
  for (const auto& [left, right] : merges) {
    data.merges.push_back(to_byte_alphabet(left) + " " + to_byte_alphabet(right));
    data.tokens.push_back(to_byte_alphabet(left + right));
  }
  data.types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::normal));
  return data;
}

inline int32_t add_token(VocabularyData& data, std::string text, TokenType type) {
  data.tokens.push_back(std::move(text));
  data.types.push_back(static_cast<int32_t>(type));
  return static_cast<int32_t>(data.tokens.size()) - 1;
}

inline Tokenizer make_tokenizer(VocabularyData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

inline VocabularyData demo_vocabulary() {
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  EXPECT_TRUE(file.ok()) << file.error().message;
  auto data = read_vocabulary(*file);
  EXPECT_TRUE(data.ok()) << data.error().message;
  return std::move(data).value();
}

}  // namespace braid
