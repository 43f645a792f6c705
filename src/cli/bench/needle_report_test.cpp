// needle_report_test.cpp
#include "cli/bench/needle_report.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/json.h"

namespace braid::cli {
namespace {

const std::vector<NeedleResult> kResults = {
    {{1, 4096, 0.5, Filler::prose, Needle::number}, 4090, true, 409, 0.5},
    {{2, 4096, 0.5, Filler::prose, Needle::uuid}, 4090, false, 409, 1.5},
    {{3, 4096, 0.0, Filler::prose, Needle::number}, 4000, true, 400, 1},
    {{1, 65536, 0.5, Filler::code, Needle::number}, 65500, true, 6550, 10},
    {{4, 5000, 1.0, Filler::code, Needle::two_hop}, 5000, false, 5000, 2},
};

TEST(NeedleReport, TablesHaveRatesAndCounts) {
  EXPECT_EQ(needle_tables(kResults),
            "| filler | 4K | 5000 | 64K |\n"
            "|---|---:|---:|---:|\n"
            "| prose | 66 % (2/3) | – | – |\n"
            "| code | – | 0 % (0/1) | 100 % (1/1) |\n"
            "\n"
            "| needle | found | kept | mean s |\n"
            "|---|---:|---:|---:|\n"
            "| number | 100 % (3/3) | 10.0 % | 3.83 |\n"
            "| uuid | 0 % (0/1) | 10.0 % | 1.50 |\n"
            "| two-hop | 0 % (0/1) | 100.0 % | 2.00 |\n");
  EXPECT_EQ(needle_tables({}), "");
}

TEST(NeedleReport, AnswersStandBesideWhatIsKept) {
  std::vector<NeedleResult> results(kResults.begin(), kResults.begin() + 3);
  results[0].answers = {"It is 12.", "It is 12.", true, true};
  results[1].answers = {"It is 12.", "\xF0\x9F", true, false};
  results[2].answers = {"No.", "It is \"12\".", false, false};
  EXPECT_EQ(needle_tables(results),
            "| filler | tokens | fact kept | right uncompressed | right compressed |\n"
            "|---|---:|---:|---:|---:|\n"
            "| prose | 4K | 66 % (2/3) | 66 % (2/3) | 33 % (1/3) |\n"
            "\n"
            "| needle | found | kept | right uncompressed | right compressed | mean s |\n"
            "|---|---:|---:|---:|---:|---:|\n"
            "| number | 100 % (2/2) | 10.0 % | 50 % (1/2) | 50 % (1/2) | 0.75 |\n"
            "| uuid | 0 % (0/1) | 10.0 % | 100 % (1/1) | 0 % (0/1) | 1.50 |\n");
  const std::string lines = needle_json_lines(results);
  const auto first = parse_json(lines.substr(0, lines.find('\n')));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)["right_uncompressed"], true);
  EXPECT_EQ((*first)["right_compressed"], true);
  EXPECT_EQ((*first)["answer_compressed"], "It is 12.");
  EXPECT_NE(lines.find("\"answer_compressed\":\"\xEF\xBF\xBD"), lines.npos);
  EXPECT_EQ(lines.find("windows"), lines.npos);
  results[0].windows = 3;
  results[0].answers->whole = std::nullopt;
  const std::string longer = needle_json_lines(std::span(results).first(1));
  EXPECT_NE(longer.find("\"windows\":3"), longer.npos);
  EXPECT_NE(longer.find("\"answer_uncompressed\":null"), longer.npos);
}

TEST(NeedleReport, HeatMapPrintsItsNumbers) {
  const std::string map = needle_heat_map("kept <10 %> & more", std::span(kResults).first(3));
  const size_t end_of_style = map.find("</style>\n") + 9;
  EXPECT_EQ(
      map.substr(end_of_style),
      "<text class=\"title\" x=\"16\" y=\"28\">kept &lt;10 %> &amp; more</text>\n"
      "<text class=\"soft\" x=\"68\" y=\"76\" text-anchor=\"end\">0.00</text>\n"
      "<rect class=\"c1\" style=\"fill-opacity:0.55\" x=\"76\" y=\"56\" width=\"84\" "
      "height=\"30\"/>\n"
      "<text x=\"118\" y=\"76\" text-anchor=\"middle\">100 %<title>1 of 1</title></text>\n"
      "<text class=\"soft\" x=\"68\" y=\"106\" text-anchor=\"end\">0.50</text>\n"
      "<rect class=\"c1\" style=\"fill-opacity:0.28\" x=\"76\" y=\"86\" width=\"84\" "
      "height=\"30\"/>\n"
      "<text x=\"118\" y=\"106\" text-anchor=\"middle\">50 %<title>1 of 2</title></text>\n"
      "<text class=\"soft\" x=\"118\" y=\"134\" text-anchor=\"middle\">4K</text>\n"
      "<text class=\"soft\" x=\"76\" y=\"156\">prompt tokens; rows: share of the text before the "
      "fact</text>\n"
      "</svg>\n");
  EXPECT_EQ(needle_heat_map("nothing", {}), "");
}

TEST(NeedleReport, CellsWithoutCasesHaveNoNumber) {
  const std::string map = needle_heat_map("all", kResults);
  size_t cells = 0, numbers = 0;
  for (size_t at = map.find("<rect"); at != map.npos; at = map.find("<rect", at + 1)) ++cells;
  for (size_t at = map.find(" %<title>"); at != map.npos; at = map.find(" %<title>", at + 1))
    ++numbers;
  EXPECT_EQ(cells, 9u);
  EXPECT_EQ(numbers, 4u);
}

TEST(NeedleReport, LinesAreObjects) {
  const std::string lines = needle_json_lines(std::span(kResults).first(1));
  EXPECT_EQ(lines,
            "{\"id\":\"prose-number-t4096-d0.500-s1\",\"filler\":\"prose\",\"needle\":\"number\","
            "\"seed\":1,\"tokens\":4096,\"depth\":0.5,\"prompt_tokens\":4090,\"passed\":true,"
            "\"kept_tokens\":409,\"seconds\":0.5}\n");
  EXPECT_TRUE(parse_json(lines).ok());
}

}  // namespace
}  // namespace braid::cli
