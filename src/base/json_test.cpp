// json_test.cpp -- hostile documents cost no more than their size suggests; errors have a position.
#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace braid {
namespace {

std::string said(const std::string& text) {
  const auto json = parse_json(text);
  return json.ok() ? json->dump() : "ERROR " + json.error().message;
}

std::string many(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Json, ErrorsSayWhere) {
  EXPECT_EQ(said(R"({"a":1,"b":tru})"), "ERROR is not valid JSON (at byte 14)");
  EXPECT_EQ(said(R"({"a" 1})"), "ERROR is not valid JSON (at byte 5)");
  EXPECT_EQ(said("[1]]"), "ERROR is not valid JSON (at byte 3)");
  EXPECT_EQ(said(R"({"a":[1,)"), "ERROR is not valid JSON: it ends too early (at byte 8)");
  EXPECT_EQ(said(""), "ERROR is not valid JSON: it ends too early (at byte 0)");
  EXPECT_EQ(said("[0,1e999]"), "ERROR is not valid JSON: a number is out of range (at byte 7)");
  EXPECT_EQ(said("[\"\xff\"]"), "ERROR is not valid JSON (at byte 2)");
  EXPECT_EQ(said(std::string("[1]\0[2]", 7)),
            "ERROR is not valid JSON: it has a zero byte (at byte 3)");
  EXPECT_EQ(said(std::string("{\"a\":\"\0\"}", 9)),
            "ERROR is not valid JSON: it has a zero byte (at byte 6)");
  EXPECT_EQ(said("[\"\x01\"]"), "ERROR is not valid JSON (at byte 2)");
  EXPECT_EQ(parse_json("x").error().kind, ErrorKind::corrupt);
}

TEST(Json, SurrogatesThatStandAloneAreReplaced) {
  EXPECT_EQ(said(R"(["\ud83d"])"), "[\"\xef\xbf\xbd\"]");
  EXPECT_EQ(said(R"(["\ude00\ud83d\ud83d\ude00"])"),
            "[\"\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80\"]");
  EXPECT_EQ(said(R"({"\udfff":1})"), "{\"\xef\xbf\xbd\":1}");
  EXPECT_EQ(said(R"(["\\ud83d"])"), R"(["\\ud83d"])");
  EXPECT_EQ(said(R"(["\ud83"])").find("ERROR is not valid JSON"), 0u);
}

TEST(Json, RepeatedNamesKeepTheFirstPlaceAndTheLastValue) {
  EXPECT_EQ(said(R"({"a":1,"b":2,"a":3})"), R"({"a":3,"b":2})");
  EXPECT_EQ(said(R"({"a":1,"a":2,"a":3,"":4,"":5})"), R"({"a":3,"":5})");
  std::string text = "{", expected = "{";
  for (int i = 0; i < 40; ++i)
    text += "\"k" + std::to_string(i % 20) + "\":" + std::to_string(i) + ",";
  for (int i = 0; i < 20; ++i)
    expected += "\"k" + std::to_string(i) + "\":" + std::to_string(i + 20) + ",";
  text.back() = expected.back() = '}';
  EXPECT_EQ(said(text), expected);
}

TEST(Json, EveryValueCounts) {
  for (const std::string& one :
       {std::string("1"), std::string("[]"), std::string("{}"), std::string("\"\""),
        many("[", 100) + many("]", 100), std::string(R"({"a":null})")}) {
    JsonBudget count;
    const std::string text = "[" + one + "," + one + "]";
    ASSERT_TRUE(parse_json(text, count).ok());
    JsonBudget exact{.max_values = count.values};
    EXPECT_TRUE(parse_json(text, exact).ok()) << one;
    EXPECT_EQ(exact.values, count.values);
    JsonBudget less{.max_values = count.values - 1};
    const auto refused = parse_json(text, less);
    ASSERT_FALSE(refused.ok()) << one;
    EXPECT_EQ(refused.error().kind, ErrorKind::exhausted);
    EXPECT_EQ(less.values, less.max_values) << "what is refused is not read on";
  }
  JsonBudget nested;
  ASSERT_TRUE(parse_json(many("[", 128) + many("]", 128), nested).ok());
  EXPECT_EQ(nested.values, 128u);
  JsonBudget both{.max_values = 5};
  EXPECT_TRUE(parse_json("[1,2]", both).ok());
  EXPECT_FALSE(parse_json("[1,2]", both).ok()) << "two documents share one budget";
  JsonBudget flood;
  const auto refused =
      parse_json("[" + many(many("[", 127) + many("]", 127) + ",", 10'000) + "1]", flood);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "has more than 1000000 values");
}

TEST(Json, DepthIsBounded) {
  EXPECT_TRUE(parse_json(many("[", 128) + many("]", 128)).ok());
  for (const char* open : {"[", "{\"a\":"}) {
    const auto deep = parse_json(many(open, 100'000));
    ASSERT_FALSE(deep.ok());
    EXPECT_EQ(deep.error().message, "is nested deeper than 128 levels");
    EXPECT_EQ(deep.error().kind, ErrorKind::unsupported);
  }
  JsonBudget flat{.max_depth = 0};
  EXPECT_TRUE(parse_json("1", flat).ok());
  EXPECT_FALSE(parse_json("[]", flat).ok());
}

// Names of 16 printable bytes with the same libstdc++ hash (Murmur with a fixed seed).
class Collider {
 public:
  std::vector<std::string> names(size_t count) {
    std::vector<std::string> out;
    for (uint64_t counter = 1; out.size() < count; ++counter) {
      char free[8];
      for (uint64_t i = 0, rest = counter; i < 8; ++i, rest /= 10)
        free[i] = static_cast<char>('0' + rest % 10);
      uint64_t word = 0;
      std::memcpy(&word, free, 8);
      const uint64_t hash = (kStart ^ mixed(word)) * kFactor;
      const uint64_t needed = unshift((hash ^ (kTarget * inverse())) * inverse()) * inverse();
      char forced[8];
      std::memcpy(forced, &needed, 8);
      const auto plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
      if (std::all_of(std::begin(forced), std::end(forced), plain))
        out.push_back(std::string(free, 8) + std::string(forced, 8));
    }
    return out;
  }

 private:
  static constexpr uint64_t kFactor = 0xc6a4a7935bd1e995, kTarget = 0x123456789abcdef;
  static constexpr uint64_t kStart = 0xc70f6907 ^ (16 * kFactor);
  static uint64_t unshift(uint64_t value) { return value ^ (value >> 47); }
  static uint64_t mixed(uint64_t value) { return unshift(value * kFactor) * kFactor; }
  static uint64_t inverse() {
    uint64_t x = kFactor;
    for (int i = 0; i < 6; ++i) x *= 2 - kFactor * x;
    return x;
  }
};

TEST(Json, NoChoiceOfNamesIsSlow) {
  constexpr size_t kNames = 3000;
  const std::vector<std::string> names = Collider().names(kNames);
#ifdef __GLIBCXX__
  EXPECT_EQ(std::hash<std::string>()(names.front()), std::hash<std::string>()(names.back()));
#endif
  std::string colliding = "{", equal = "{", falling = "{";
  for (size_t i = 0; i < kNames; ++i) {
    colliding += "\"" + names[i] + "\":0,";
    equal += "\"a\":0,";
    falling += "\"" + std::to_string(999'999 - i) + "\":0,";
  }
  for (std::string* text : {&colliding, &equal, &falling}) {
    text->back() = '}';
    JsonBudget budget;
    ASSERT_TRUE(parse_json(*text, budget).ok());
    const double sorted = kNames * std::bit_width(kNames);
    EXPECT_LT(static_cast<double>(budget.comparisons), 4 * sorted) << text->substr(0, 40);
    EXPECT_GT(budget.comparisons, kNames) << "not counted";
  }
}

}  // namespace
}  // namespace braid
