// stop_strings_test.cpp -- every cut of a text, against a search in the whole text.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace braid {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::string& text,
            const std::vector<size_t>& cuts) {
  StopStrings matcher(stops);
  Outcome out;
  size_t at = 0;
  for (const size_t cut : cuts) {
    out.text += matcher.push(std::string_view(text).substr(at, cut - at));
    at = cut;
  }
  out.text += matcher.push(std::string_view(text).substr(at));
  out.text += matcher.flush();
  out.matched = matcher.matched();
  return out;
}

// Earliest start, then order of the list.
Outcome expected(const std::vector<std::string>& stops, const std::string& text) {
  size_t best = std::string::npos;
  std::optional<size_t> index;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = text.find(stops[i]);
    if (at < best) {
      best = at;
      index = i;
    }
  }
  return {text.substr(0, best), index};
}

std::vector<size_t> every_byte(const std::string& text) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < text.size(); ++i) cuts.push_back(i);
  return cuts;
}

TEST(StopStrings, CutBeforeTheFirstMatch) {
  EXPECT_EQ(run({"END"}, "one END two", {}), (Outcome{"one ", 0}));
  EXPECT_EQ(run({"END"}, "one EN", {4, 5}), (Outcome{"one EN", std::nullopt}));
  EXPECT_EQ(run({"END"}, "END", {1, 2}), (Outcome{"", 0}));
  EXPECT_EQ(run({"\u2603!"}, "a\u2603\u2603!b", {2, 3, 5}), (Outcome{"a\u2603", 0}));
  EXPECT_EQ(run({}, "plain", {2}), (Outcome{"plain", std::nullopt}));
}

TEST(StopStrings, OfTwoThatStartTogetherTheFirstListedCounts) {
  EXPECT_EQ(run({"ab", "abc"}, "xabc", every_byte("xabc")), (Outcome{"x", 0}));
  EXPECT_EQ(run({"abc", "ab"}, "xabc", every_byte("xabc")), (Outcome{"x", 0}));
  EXPECT_EQ(run({"abc", "ab"}, "xabd", every_byte("xabd")), (Outcome{"x", 1}));
}

TEST(StopStrings, AnEarlierStartCountsAlsoWhenItEndsLater) {
  EXPECT_EQ(run({"bc", "abcd"}, "xabcd", every_byte("xabcd")), (Outcome{"x", 1}));
  EXPECT_EQ(run({"bc", "abcd"}, "xabce", every_byte("xabce")), (Outcome{"xa", 0}));
  EXPECT_EQ(run({"bc", "abcd"}, "xabc", every_byte("xabc")), (Outcome{"xa", 0}));
}

TEST(StopStrings, NothingThatMayBeAStopIsGivenOutAndNothingElseIsHeld) {
  StopStrings matcher({"</end>", "a"});
  EXPECT_EQ(matcher.push("text </e"), "text ");
  EXPECT_EQ(matcher.push("x <"), "</ex ");
  EXPECT_EQ(matcher.push("/end>more"), "");
  EXPECT_EQ(matcher.matched(), 0u);
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopStrings, RandomTextsAndCutsAgreeWithTheRule) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](size_t longest) {
      std::string out;
      for (size_t n = 1 + random() % longest; n > 0; --n) out += "abc"[random() % 3];
      return out;
    };
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(24);
    const Outcome want = expected(stops, text);
    ASSERT_EQ(run(stops, text, {}), want) << text;
    ASSERT_EQ(run(stops, text, every_byte(text)), want) << text << " / " << stops[0];
    std::vector<size_t> cuts;
    for (size_t at = 1 + random() % 4; at < text.size(); at += 1 + random() % 4) cuts.push_back(at);
    ASSERT_EQ(run(stops, text, cuts), want) << text;
  }
}

TEST(StopStrings, AStopThatRepeatsItselfCostsNoMoreThanOthers) {
  StopStrings matcher({std::string(512, 'a') + "b", std::string(511, 'a') + "c"});
  std::string out;
  for (int i = 0; i < 200'000; ++i) out += matcher.push("a");
  out += matcher.flush();
  EXPECT_EQ(out.size(), 200'000u);
}

}  // namespace
}  // namespace braid
