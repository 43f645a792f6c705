// unicode_test.cpp -- decoding and repair of UTF-8 by Unicode's table 3-7.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace braid {
namespace {

using namespace std::string_literals;

TEST(Unicode, EveryScalarValueSurvivesEncodingAndDecoding) {
  for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point == 0xD800) code_point = 0xE000;
    std::string text;
    append_utf8(text, code_point);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8Kind::complete) << uint32_t{code_point};
    ASSERT_EQ(step.code_point, code_point);
    ASSERT_EQ(static_cast<size_t>(step.length_bytes), text.size());
    for (size_t bytes = 1; bytes < text.size(); ++bytes) {
      const Utf8Step prefix = utf8_step(text.substr(0, bytes));
      ASSERT_EQ(prefix.kind, Utf8Kind::incomplete) << uint32_t{code_point};
      ASSERT_EQ(static_cast<size_t>(prefix.length_bytes), bytes);
    }
  }
}

TEST(Unicode, WhatIsNoScalarValueIsWrittenAsTheReplacementCharacter) {
  for (const char32_t code_point : {0xD800u, 0xDFFFu, 0x110000u, 0xFFFFFFFFu}) {
    std::string text;
    append_utf8(text, code_point);
    EXPECT_EQ(text, "\uFFFD");
  }
}

TEST(Unicode, RepairCountsBytesOrMaximalSubparts) {
  struct Case {
    std::string bytes;
    size_t each_byte;  // expected number of U+FFFD
    size_t maximal_subpart;
  };
  const Case cases[] = {
      {"\x80"s, 1, 1},
      {"\xC0\x80"s, 2, 2},          // overlong
      {"\xE0\x80\x80"s, 3, 3},      // overlong
      {"\xF0\x80\x80\x80"s, 4, 4},  // overlong
      {"\xED\xA0\x80"s, 3, 3},      // surrogate
      {"\xF4\x90\x80\x80"s, 4, 4},  // beyond U+10FFFF
      {"\xF5"s, 1, 1},
      {"\xFF\xFE"s, 2, 2},
      {"\xE4\xB8"s, 2, 1},          // truncated
      {"\xF0\x9F\x99"s, 3, 1},      // truncated
      {"\xF0\x9F\xE4\xB8"s, 4, 2},  // truncated twice
  };
  for (const Case& c : cases) {
    const auto copies = [](size_t count) {
      std::string out;
      while (count-- > 0) out += "\uFFFD";
      return out;
    };
    const std::string around = "a" + c.bytes + "z";
    EXPECT_EQ(first_invalid_utf8(around), 1u);
    EXPECT_EQ(repaired_utf8(around, Utf8Repair::each_byte), "a" + copies(c.each_byte) + "z");
    EXPECT_EQ(repaired_utf8(around, Utf8Repair::maximal_subpart),
              "a" + copies(c.maximal_subpart) + "z");
  }
}

TEST(Unicode, TheFirstInvalidByteIsFoundAtEveryOffset) {
  const std::string good = "0123456789 Grüße, 世界! 🙂 0123456789";
  EXPECT_EQ(first_invalid_utf8(good), std::nullopt);
  EXPECT_EQ(first_invalid_utf8(""), std::nullopt);
  for (size_t offset = 0; offset < good.size(); ++offset) {
    std::string bad = good;
    bad[offset] = '\xFF';
    size_t start = offset;  // an invalid sequence is reported at its start
    while ((static_cast<uint8_t>(good[start]) & 0xC0) == 0x80) --start;
    EXPECT_EQ(first_invalid_utf8(bad), start);
  }
}

}  // namespace
}  // namespace braid
