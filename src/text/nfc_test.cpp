// nfc_test.cpp -- known strings, and all code points against utf8proc; cost of hostile runs.
#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace braid {
namespace {

std::string form_of(const std::string& text) {
  std::string buffer;
  const auto form = nfc(text, buffer);
  EXPECT_TRUE(form.ok()) << form.error().message;
  return form.ok() ? std::string(*form) : "";
}

bool is_copied(const std::string& text) {
  std::string buffer;
  return nfc(text, buffer).value().data() != text.data();
}

std::string utf8(std::initializer_list<char32_t> points) {
  std::string out;
  for (const char32_t c : points) append_utf8(out, c);
  return out;
}

// utf8proc's own pipeline; it orders marks in quadratic time, so nfc() does not use it.
std::string utf8proc_form(const std::string& text) {
  utf8proc_uint8_t* form = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &form, options);
  EXPECT_GE(size, 0);
  const std::string out(reinterpret_cast<const char*>(form), static_cast<size_t>(size));
  std::free(form);
  return out;
}

TEST(Nfc, KnownStrings) {
  const struct {
    const char* what;
    std::initializer_list<char32_t> text, form;
  } cases[] = {
      {"accent", {'c', 'a', 'f', 'e', 0x301, '!'}, {'c', 'a', 'f', 0xE9, '!'}},
      {"accent at the start", {0x301, 'e'}, {0x301, 'e'}},
      {"two accents", {'o', 0x302, 0x301}, {0x1ED1}},
      {"order of marks", {'q', 0x307, 0x323}, {'q', 0x323, 0x307}},
      {"order, then composed", {'s', 0x307, 0x323}, {0x1E69}},
      {"composed before, then ordered", {0x1E61, 0x323}, {0x1E69}},
      {"blocked by a mark of the same class",
       {'a', 0x315, 0x300, 0x5AE, 0x62},
       {0xE0, 0x5AE, 0x315, 'b'}},
      {"equal classes stay in order", {'x', 0x301, 0x300}, {'x', 0x301, 0x300}},
      {"a mark of early composites", {'e', 0x328, 'u', 0x31B}, {0x119, 0x1B0}},
      {"no composite", {'x', 0x301}, {'x', 0x301}},
      {"jamo", {0x1112, 0x1161, 0x11AB, 0x1100, 0x1173, 0x11AF}, {0xD55C, 0xAE00}},
      {"syllable and final", {0xAC00, 0x11A8}, {0xAC01}},
      {"U+11A7 is no final", {0xAC00, 0x11A7}, {0xAC00, 0x11A7}},
      {"vowel of none", {0x1161, 'a'}, {0x1161, 'a'}},
      {"a final behind a closed syllable", {0xAC01, 0x11A8}, {0xAC01, 0x11A8}},
      {"singletons", {0x212B, 0x2126, 0x212A, 0x37E, 0x2000}, {0xC5, 0x3A9, 'K', ';', 0x2002}},
      {"singleton, then mark", {0x212B, 0x301}, {0x1FA}},
      {"exclusions", {0x958, 0x9DC, 0xFB1D}, {0x915, 0x93C, 0x9A1, 0x9BC, 0x5D9, 0x5B4}},
      {"excluded pair", {0x915, 0x93C}, {0x915, 0x93C}},
      {"compatibility ideograph", {0xF900, 0x2F800}, {0x8C48, 0x4E3D}},
      {"compatibility forms stay", {0xFB01, 0xFF21, 0xB2, 0x2460}, {0xFB01, 0xFF21, 0xB2, 0x2460}},
      {"starters that compose", {0x9C7, 0x9BE, 0x1025, 0x102E}, {0x9CB, 0x1026}},
      {"kana", {0x304B, 0x3099, 0x30CF, 0x309A}, {0x304C, 0x30D1}},
      {"music", {0x1D15E}, {0x1D157, 0x1D165}},
      {"beyond the basic plane", {0x11099, 0x110BA}, {0x1109A}},
      {"vietnamese", {'V', 'i', 'e', 0x323, 0x302, 't'}, {'V', 'i', 0x1EC7, 't'}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(form_of(utf8(c.text)), utf8(c.form)) << c.what;
    EXPECT_EQ(form_of("a " + utf8(c.text) + " z"), "a " + utf8(c.form) + " z") << c.what;
    EXPECT_EQ(form_of(utf8(c.form)), utf8(c.form)) << c.what;
  }
}

TEST(Nfc, EveryCodePointAgainstUtf8proc) {
  for (char32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string around;
    for (const char32_t other : {U'e', U'\x327', U'\x301', U'\x1100', U'\xAC00'}) {
      append_utf8(around, other);
      append_utf8(around, c);
    }
    append_utf8(around, 0x301);
    if (c == 0x11A7) continue;  // utf8proc treats it as a final: KnownStrings
    ASSERT_EQ(form_of(around), utf8proc_form(around))
        << "U+" << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(Nfc, RandomRunsAgainstUtf8proc) {
  std::vector<char32_t> points = {'a',    'e',    'o',    ' ',    0x1100, 0x1161,
                                  0x11A8, 0xAC00, 0x4E2D, 0x212B, 0x958,  0x1E0A};
  for (char32_t c = 0x300; c < 0x370; ++c) points.push_back(c);
  for (const char32_t c :
       {0x5B0, 0x5B1, 0x64B, 0x93C, 0x94D, 0x9BE, 0x9C7, 0x9D7, 0x3099, 0x1D165, 0x1D16D, 0x110BA})
    points.push_back(static_cast<char32_t>(c));
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) append_utf8(text, points[random() % points.size()]);
    const std::string form = form_of(text);
    ASSERT_EQ(form, utf8proc_form(text));
    ASSERT_EQ(form_of(form), form);
  }
}

TEST(Nfc, WhatIsInTheFormIsNotCopied) {
  EXPECT_FALSE(is_copied(""));
  EXPECT_FALSE(is_copied("plain text"));
  EXPECT_FALSE(is_copied(utf8({0xE9, 0x4E2D, 0x6587, 0xD55C, 0x1F600, 0xE0100, 0x10FFFF})));
  EXPECT_FALSE(
      is_copied(utf8({0x5E9, 0x5B0, 0x5BC, 0x64B, 'x', 0x301, 0x915, 0x93C, 0x94D, 0xE01, 0xE38})));
  EXPECT_TRUE(is_copied(utf8({'e', 0x301})));
}

TEST(Nfc, RunsOfMarksAreBounded) {
  std::string worst = "q", most = "e";
  while (worst.size() < kMaxNfcRunBytes - 8)
    append_utf8(worst, worst.size() < kMaxNfcRunBytes / 2 ? 0x301 : 0x323);
  while (most.size() < kMaxNfcRunBytes - 1) append_utf8(most, 0x301);
  const std::string ordered = form_of(worst);
  EXPECT_EQ(ordered.size(), worst.size());
  EXPECT_EQ(ordered.substr(0, 3), utf8({'q', 0x323}));
  EXPECT_EQ(form_of(most).substr(0, 4), utf8({0xE9, 0x301}));
  std::string buffer;
  const std::string longer = most + utf8({0x301, 0x301});
  const auto refused = nfc(longer, buffer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::invalid_argument);
  std::string ordered_run = "q";
  while (ordered_run.size() < 2 * kMaxNfcRunBytes) append_utf8(ordered_run, 0x5B0);
  EXPECT_FALSE(is_copied(ordered_run));
}

}  // namespace
}  // namespace braid
