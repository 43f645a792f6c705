// detokenizer_test.cpp -- streamed text never has half a character and joins to the whole.
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer/tokenizer_test_vocabulary.h"
#include "text/unicode.h"

namespace braid {
namespace {

using namespace std::string_literals;

TEST(Detokenizer, AnEmojiOfFourTokensComesWithTheLast) {
  const Tokenizer tokenizer = make_tokenizer(tiny_vocabulary());  // every byte is a token
  StreamingDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x99), "");
  EXPECT_EQ(stream.push(0x82), "🙂");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, ADanglingTailBecomesOneReplacementCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ok\xF0\x9F\x99"), "ok");
  EXPECT_EQ(stream.held_bytes(), 3u);
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("again"), "again");
}

TEST(Detokenizer, BytesThatCanNeverBecomeACharacterAreReplacedAtOnce) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\x80"), "\uFFFD");
  EXPECT_EQ(stream.push("\xED"), "");
  EXPECT_EQ(stream.push("\xA0"), "\uFFFD\uFFFD");  // a surrogate: each byte is invalid
  EXPECT_EQ(stream.push("\xE4\xB8"), "");
  EXPECT_EQ(stream.push("x"), "\uFFFDx");
}

TEST(Detokenizer, ZeroBytesAreCharactersLikeOthers) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\0b"s), "a\0b"s);
}

TEST(Detokenizer, AnyCutOfAnyBytesAddsUpToTheWhole) {
  std::mt19937 random(5);
  const std::string parts[] = {"a",        "é",        "世",   "🙂",         "\x80", "\xC3",
                               "\xE4\xB8", "\xF0\x9F", "\xFF", "\xED\xA0\x80", "\0"s};
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (size_t count = random() % 12; count > 0; --count)
      bytes += parts[random() % std::size(parts)];
    Utf8Stream stream;
    std::string joined;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t length = 1 + random() % 3;
      const std::string text = stream.push(std::string_view(bytes).substr(begin, length));
      ASSERT_EQ(first_invalid_utf8(text), std::nullopt);
      ASSERT_LE(stream.held_bytes(), 3u);
      joined += text;
      begin += length;
    }
    joined += stream.flush();
    ASSERT_EQ(joined, repaired_utf8(bytes, Utf8Repair::maximal_subpart));
  }
}

TEST(Detokenizer, ControlTokensShowOnlyOnRequest) {
  VocabularyData data = tiny_vocabulary();
  const int32_t control = add_token(data, "<|turn|>", TokenType::control);
  const int32_t think = add_token(data, "<think>", TokenType::user_defined);
  const Tokenizer tokenizer = make_tokenizer(data);
  StreamingDetokenizer hidden(tokenizer);
  EXPECT_EQ(hidden.push(control), "");
  EXPECT_EQ(hidden.push(think), "<think>");
  StreamingDetokenizer shown(tokenizer, SpecialText::show);
  EXPECT_EQ(shown.push(control), "<|turn|>");
}

}  // namespace
}  // namespace braid
