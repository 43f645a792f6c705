// needle_filler_test.cpp
#include "cli/bench/needle_filler.h"

#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "cli/bench/needle_encoders_test.h"
#include "cli/bench/needle_random.h"
#include "text/unicode.h"

namespace braid::cli {
namespace {

std::vector<FillerUnit> units_of(FillerSource& source, size_t count) {
  std::vector<FillerUnit> out;
  while (out.size() < count) source.append(out);
  return out;
}

TEST(NeedleRandom, IsThePublishedGenerator) {
  uint64_t state = 1234567;
  EXPECT_EQ(split_mix(state), 6457827717110365317u);
  EXPECT_EQ(split_mix(state), 3203168211198807973u);
  NeedleRandom a(5), same(5), other(5, 1);
  const uint64_t first = a.next();
  EXPECT_EQ(same.next(), first);
  EXPECT_NE(other.next(), first);
  std::vector<int> counts(6);
  for (int i = 0; i < 6000; ++i) ++counts[a.below(6)];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  for (int i = 0; i < 1000; ++i) EXPECT_NE(a.digits(2)[0], '0');
}

TEST(NeedleFiller, UnitsAndPadsAreValidText) {
  for (const Filler filler : kGeneratedFillers)
    for (const uint64_t seed : {1, 2}) {
      auto source = make_filler(filler, seed).value();
      for (const FillerUnit& unit : units_of(*source, 3000)) {
        EXPECT_FALSE(unit.text.empty());
        EXPECT_FALSE(first_invalid_utf8(unit.text)) << unit.text;
      }
      const std::vector<FillerUnit> pads = source->pads({});
      EXPECT_GE(pads.size(), 8u);
      for (const FillerUnit& pad : pads) EXPECT_FALSE(first_invalid_utf8(pad.text));
    }
}

TEST(NeedleFiller, ProseSeldomRepeatsASentence) {
  auto source = make_filler(Filler::prose, 3).value();
  std::set<std::string> distinct;
  for (const FillerUnit& unit : units_of(*source, 10000))
    distinct.insert(unit.text.substr(unit.text.find_first_not_of(" \n")));
  EXPECT_GT(distinct.size(), 8000u);
}

TEST(NeedleFiller, MultilingualTextHasItsScripts) {
  auto source = make_filler(Filler::multilingual, 3).value();
  std::string text;
  for (const FillerUnit& unit : units_of(*source, 400)) text += unit.text;
  for (const std::string_view sign : {"é", "ß", "ñ", "ł", "ğ", "я", "在", "は", "🚲"})
    EXPECT_NE(text.find(sign), text.npos) << sign;
}

TEST(NeedleFiller, LinesOfLogsAreObjectsInOrderOfTime) {
  auto source = make_log_filler(4);
  std::string before;
  for (const FillerUnit& unit : units_of(*source, 500)) {
    ASSERT_EQ(unit.text.back(), '\n');
    const auto line = parse_json(unit.text);
    ASSERT_TRUE(line.ok()) << unit.text;
    const auto time = (*line)["ts"].get<std::string>();
    EXPECT_LT(before, time);
    EXPECT_EQ(time, log_time(unit.clock_ms));
    before = time;
  }
  for (const FillerUnit& pad : source->pads({})) EXPECT_TRUE(parse_json(pad.text).ok());
  EXPECT_EQ(log_time(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(log_time(951'827'696'789), "2000-02-29T12:34:56.789Z");
}

TEST(NeedleFiller, CodeUnitsAreLinesWithTheirIndent) {
  for (const CodeFiles files : {CodeFiles::python, CodeFiles::c, CodeFiles::mixed}) {
    auto source = make_code_filler(5, files);
    std::set<FactStyle> styles;
    for (const FillerUnit& unit : units_of(*source, 2000)) {
      styles.insert(unit.style);
      EXPECT_EQ(unit.text.back(), '\n');
      const size_t line = unit.text.find_first_not_of('\n');
      EXPECT_EQ(unit.text.find_first_not_of(' ', line) - line, static_cast<size_t>(unit.indent));
      EXPECT_NE(unit.text.compare(line + static_cast<size_t>(unit.indent), 4, "else"), 0);
    }
    EXPECT_EQ(styles.size(), files == CodeFiles::mixed ? 2u : 1u);
  }
}

TEST(NeedleFiller, FileIsCutWithoutLoss) {
  std::string file = "First. Second one! A third?\n\nA line\n  another,  with blanks \n";
  file += std::string(2000, 'x') + " ";
  for (int i = 0; i < 500; ++i) file += "语";
  file += "\nend.";
  auto source = make_filler(Filler::file, 0, file).value();
  std::string joined;
  std::vector<FillerUnit> units;
  while (joined.size() < file.size()) {
    source->append(units);
    joined += units.back().text;
    EXPECT_LT(units.back().text.size(), 500u);
    EXPECT_FALSE(first_invalid_utf8(units.back().text));
  }
  EXPECT_EQ(joined, file);
  EXPECT_EQ(units[1].text, " Second one!");
  source->append(units);
  EXPECT_EQ(units.back().text, "\n\nFirst.");
}

TEST(NeedleStock, CutsKeepToTheirRoom) {
  for (const Filler filler : kGeneratedFillers) {
    FillerStock stock(make_filler(filler, 6).value(), demo_encode);
    for (const int64_t room : {-3, 0, 1, 40, 777, 5000, 300}) {
      const FillerStock::Cut cut = stock.cut(room, 4).value();
      EXPECT_LE(cut.tokens, std::max<int64_t>(0, room));
      if (room >= 40) {
        EXPECT_GE(cut.tokens, room - 8);
      }
    }
  }
}

TEST(NeedleStock, FindsTheNearestUnit) {
  FillerStock stock(make_filler(Filler::uniform, 6).value(), piece_encode);
  const FillerStock::Cut cut = stock.cut(400, 400).value();
  const auto each = static_cast<double>(stock.tokens_before(1));
  EXPECT_EQ(stock.unit_at(0, cut), 0u);
  EXPECT_EQ(stock.unit_at(each * 0.4, cut), 0u);
  EXPECT_EQ(stock.unit_at(each * 0.6, cut), 1u);
  EXPECT_EQ(stock.unit_at(each * 3, cut), 3u);
  EXPECT_EQ(stock.unit_at(1e9, cut), cut.units);
}

TEST(NeedleStock, FilledTextsHaveTheirTokens) {
  for (const Filler filler : kGeneratedFillers)
    for (const int64_t room : {200, 1000, 5000}) {
      FillerStock stock(make_filler(filler, 8).value(), demo_encode);
      std::string text;
      const std::vector<FillerUnit> units = fill_units(stock, room, 16).value();
      for (const FillerUnit& unit : units) text += unit.text;
      const auto tokens = static_cast<int64_t>(demo_encode(text)->size());
      EXPECT_LE(tokens, room);
      EXPECT_GE(tokens, room - 16);
    }
}

}  // namespace
}  // namespace braid::cli
