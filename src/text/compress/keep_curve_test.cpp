// keep_curve_test.cpp -- ratios between breakpoints, and the sentences of errors.
#include "text/compress/keep_curve.h"

#include <gtest/gtest.h>

#include <string>

namespace braid {
namespace {

KeepRatios at(const std::string& text, uint64_t tokens) {
  const auto curve = KeepCurve::parse(text);
  EXPECT_TRUE(curve.ok()) << text;
  return curve.ok() ? curve->at(tokens) : KeepRatios{-1, -1};
}

std::string error_of(const std::string& text) {
  const auto curve = KeepCurve::parse(text);
  EXPECT_FALSE(curve.ok()) << text;
  if (curve.ok()) return "";
  EXPECT_EQ(curve.error().kind, ErrorKind::invalid_argument);
  return curve.error().message;
}

TEST(KeepCurve, AutoGivesCodeMoreThanProse) {
  EXPECT_EQ(KeepCurve().at(0), kAutoRatios);
  EXPECT_EQ(at(" auto\n", 1'000'000), kAutoRatios);
}

TEST(KeepCurve, AFlatRatioHoldsForEveryLengthAndForCode) {
  for (const uint64_t tokens : {uint64_t{0}, uint64_t{5000}, ~uint64_t{0}})
    EXPECT_EQ(at("0.05", tokens), (KeepRatios{0.05, 0.05}));
  EXPECT_EQ(at(" 1 ", 7), (KeepRatios{1, 1}));
}

TEST(KeepCurve, IsLinearBetweenBreakpointsAndConstantOutside) {
  for (const std::string text : {"10000:0.5 40000:0.2 100000:0.1", "10000:0.5,40000:0.2,100000:0.1",
                                 "  10000:0.5,  40000:0.2\t100000:0.1,"}) {
    EXPECT_EQ(at(text, 0).prose, 0.5);
    EXPECT_EQ(at(text, 10'000).prose, 0.5);
    EXPECT_DOUBLE_EQ(at(text, 25'000).prose, 0.35);
    EXPECT_DOUBLE_EQ(at(text, 20'000).prose, 0.4);
    EXPECT_EQ(at(text, 40'000).prose, 0.2);
    EXPECT_DOUBLE_EQ(at(text, 70'000).prose, 0.15);
    EXPECT_EQ(at(text, 100'000).prose, 0.1);
    EXPECT_EQ(at(text, ~uint64_t{0}).prose, 0.1);
    EXPECT_EQ(at(text, 70'000).code, at(text, 70'000).prose);
  }
  EXPECT_EQ(at("0:0.25", 9), (KeepRatios{0.25, 0.25}));
  EXPECT_DOUBLE_EQ(at("0:0.1 10:1", 5).prose, 0.55) << "a ratio may rise";
}

TEST(KeepCurve, EachErrorIsOneSentence) {
  const std::string empty = "a keep curve needs a ratio or breakpoints tokens:ratio";
  EXPECT_EQ(error_of(""), empty);
  EXPECT_EQ(error_of(" \n"), empty);
  EXPECT_EQ(error_of(" , ,"), empty);
  for (const std::string ratio : {"0", "-0.1", "1.01", "nan", "inf", "1e999", "0.1x", "+0.1", "x"})
    EXPECT_EQ(error_of(ratio),
              "'" + ratio + "' is not a keep ratio: a number above 0 and at most 1");
  EXPECT_EQ(error_of("10:2"), "'2' is not a keep ratio: a number above 0 and at most 1");
  EXPECT_EQ(error_of("10:"), "'' is not a keep ratio: a number above 0 and at most 1");
  EXPECT_EQ(error_of("10:0.1:0.2"),
            "'0.1:0.2' is not a keep ratio: a number above 0 and at most 1");
  for (const std::string tokens : {"", "-1", "1e4", "1000000001", "99999999999999999999", "ten"})
    EXPECT_EQ(error_of(tokens + ":0.5"),
              "'" + tokens + "' is not a number of tokens from 0 to 1000000000");
  EXPECT_EQ(error_of("10:0.5 0.2"), "'0.2' is not a breakpoint tokens:ratio");
  EXPECT_EQ(error_of("0.5,0.2"), "'0.5' is not a breakpoint tokens:ratio");
  for (const std::string next : {"10", "9"})
    EXPECT_EQ(error_of("10:0.5 " + next + ":0.2"),
              "breakpoint " + next + " of a keep curve must be above the one before, 10");
  std::string many;
  for (int i = 0; i < 64; ++i) many += std::to_string(i) + ":0.5 ";
  EXPECT_TRUE(KeepCurve::parse(many).ok());
  EXPECT_EQ(error_of(many + "64:0.5"), "a keep curve has at most 64 breakpoints");
}

TEST(KeepCurve, HostileTextIsShownShortAndPrintable) {
  const std::string message = error_of("\x1b[31m" + std::string(100'000, 'a'));
  EXPECT_LT(message.size(), 120u);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace braid
