// word_cuts_test.cpp -- where texts may be cut.
#include "text/compress/word_cuts.h"

#include <gtest/gtest.h>

#include "text/compress/compress_test_text.h"
#include "text/unicode.h"

namespace braid {
namespace {

CutKind kind(const std::string& before, const std::string& after) {
  return cut_kind(before + after, before.size());
}

TEST(CutKind, OfPlaces) {
  for (const std::string blank : {" ", "\n", "\t", "\r\n", "\u3000", "\u00a0", "\u2028"}) {
    EXPECT_EQ(kind("word", blank), CutKind::word);
    EXPECT_EQ(kind(blank, "word"), CutKind::word);
  }
  EXPECT_EQ(kind("", "word"), CutKind::word);
  EXPECT_EQ(kind("word", ""), CutKind::word);
  EXPECT_EQ(kind("wo", "rd"), CutKind::none);
  EXPECT_EQ(kind("12", "34"), CutKind::none);
  EXPECT_EQ(kind("a.", "b"), CutKind::none);
  EXPECT_EQ(kind("end", "."), CutKind::none);
  EXPECT_EQ(kind("при", "вет"), CutKind::none);
  EXPECT_EQ(kind("한국", "어"), CutKind::none) << "Korean writes blanks";
  EXPECT_EQ(kind("城", "市"), CutKind::script);
  EXPECT_EQ(kind("是", "1234567"), CutKind::script);
  EXPECT_EQ(kind("1234567", "，"), CutKind::none) << "punctuation stays with the words before it";
  EXPECT_EQ(kind("市，", "城"), CutKind::word);
  EXPECT_EQ(kind("市", "「城"), CutKind::word);
  EXPECT_EQ(kind("市。", "」"), CutKind::none);
  EXPECT_EQ(kind("か", "\u3099"), CutKind::none) << "a voiced mark";
  EXPECT_EQ(kind("e", "\u0301"), CutKind::none);
  EXPECT_EQ(kind("👍", "🏽"), CutKind::none) << "a color of skin";
  EXPECT_EQ(kind("👩\u200d", "👧"), CutKind::none);
  EXPECT_EQ(kind("👩", "👧"), CutKind::script);
  EXPECT_EQ(kind("\r", "\n"), CutKind::none);
  EXPECT_EQ(kind("a\xff", " "), CutKind::word);
  EXPECT_EQ(kind("\xff", "\xff"), CutKind::none);
}

TEST(CutKind, NeverInsideACharacter) {
  for (const std::string character : {"é", "中", "😀"})
    for (size_t at = 1; at < character.size(); ++at) {
      const std::string text = " " + character + " ";
      EXPECT_FALSE(is_character_border(text, 1 + at));
      EXPECT_EQ(cut_kind(text, 1 + at), CutKind::none);
      EXPECT_TRUE(is_character_border(text, 1));
      EXPECT_TRUE(is_character_border(text, 1 + character.size()));
    }
  EXPECT_TRUE(is_character_border("\xe4\xb8", 1)) << "not well-formed";
  EXPECT_TRUE(is_character_border("\xc0\x80", 1)) << "overlong";
  EXPECT_TRUE(is_character_border("\x80\x80\x80\x80\x80", 3));
  EXPECT_TRUE(is_character_border("é\x80", 2));
}

TEST(CutKind, CharacterBordersAreThoseOfReadingFromTheStart) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    while (text.size() < 30) {
      if (random() % 2 == 0) {
        append_utf8(text, static_cast<char32_t>(random() % 0x11'0000));
      } else {
        text += static_cast<char>(random() % 256);
      }
    }
    std::vector<bool> border(text.size() + 1, true);
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(std::string_view(text).substr(at));
      const auto length = static_cast<size_t>(step.length_bytes);
      if (step.kind == Utf8Kind::complete)
        for (size_t i = 1; i < length; ++i) border[at + i] = false;
      at += length;
    }
    for (size_t at = 0; at <= text.size(); ++at)
      EXPECT_EQ(is_character_border(text, at), border[at]) << round << " " << at;
  }
}

std::vector<std::string> fences_of(const std::string& text) {
  std::vector<std::string> out;
  for (const ByteRange& line : fence_lines(text))
    out.push_back(text.substr(line.begin, line.end - line.begin));
  return out;
}

TEST(FenceLines, AreFoundWithTheirLineBreaks) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(fences_of("a\n```cpp\nint x;\n```\nb"), (Lines{"```cpp\n", "```\n"}));
  EXPECT_EQ(fences_of("  ~~~~ text `x`\r\n> - ```\n```"),
            (Lines{"  ~~~~ text `x`\r\n", "> - ```\n", "```"}));
  EXPECT_EQ(fences_of("``\n```x``` y\na ```\n\n"), Lines{});
  EXPECT_EQ(fences_of(""), Lines{});
  EXPECT_EQ(fences_of("```" + std::string(253, 'x')).size(), 1u);
  EXPECT_EQ(fences_of("```" + std::string(254, 'x')).size(), 0u);
}

// One token for each byte.
std::string cut(const std::string& text, size_t begin, size_t end,
                const std::vector<ByteRange>& markers = {}) {
  std::vector<uint32_t> ends;
  for (size_t i = 1; i <= text.size(); ++i) ends.push_back(static_cast<uint32_t>(i));
  const ByteRange bytes = WordCuts(text, ends, markers).extended({begin, end});
  return text.substr(bytes.begin, bytes.end - bytes.begin);
}

TEST(WordCuts, GrowToWholeWords) {
  EXPECT_EQ(cut("one two three four", 5, 10), "two three");
  EXPECT_EQ(cut("one two three four", 4, 7), "two");
  EXPECT_EQ(cut("one two three four", 0, 18), "one two three four");
  const std::string far = "密码密码密码密码密码";  // more bytes than are looked at
  EXPECT_EQ(cut(far + "1234567" + far, 33, 34), "1234567") << "the nearest places of a script";
  EXPECT_EQ(cut("城市，密码是123吧。我", 20, 21), "密码是123吧。") << "better: a clause";
}

TEST(WordCuts, EndAfterTheMostTokens) {
  const std::string word(100, 'x');
  EXPECT_EQ(cut(word, 50, 51).size(), 49u);
  std::string marks = word + "e";
  for (int i = 0; i < 10; ++i) marks += "\u0301";
  EXPECT_EQ(cut(marks + word, 124, 140), marks.substr(100) + word.substr(0, 43));
  EXPECT_EQ(cut(marks + word, 130, 131), marks.substr(100) + word.substr(0, 34))
      << "24 bytes back is a mark, whose base stays with it";
}

TEST(WordCuts, NeverCutMarkersAndFences) {
  const std::string text = "aa<|im start|>bb";
  const std::vector<ByteRange> marker = {{2, 14}};
  for (size_t at = 3; at < 14; ++at) {
    EXPECT_EQ(cut(text, 0, at, marker), "aa<|im start|>");
    EXPECT_EQ(cut(text, at, 16, marker), "<|im start|>bb");
  }
  EXPECT_EQ(cut(text, 0, 1, marker), "aa") << "up to its edge";
  EXPECT_EQ(cut(text, 15, 16, marker), "bb");
  const std::string code = "a\n```cpp title x\ny\n";
  for (size_t at = 3; at < 17; ++at) EXPECT_EQ(cut(code, 0, at), "a\n```cpp title x\n");
  for (size_t at = 3; at < 17; ++at) EXPECT_EQ(cut(code, at, 19), "```cpp title x\ny\n");
  const std::string longer = std::string(50, 'x') + "<" + std::string(500, '-') + ">" + "yy";
  EXPECT_EQ(cut(longer, 300, 301, {{50, 552}}), longer.substr(50, 502));
  EXPECT_EQ(cut("ab城cd", 2, 3, {{0, 3}, {4, 6}}), "ab城c") << "edges inside of a character";
}

}  // namespace
}  // namespace braid
