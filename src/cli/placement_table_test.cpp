// placement_table_test.cpp -- CSV files of experts: many forms, hostile ones, and what they say.
#include "cli/placement_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace braid::cli {
namespace {

std::string refusal(std::string_view text, int32_t experts = 0) {
  const auto table = parse_placement(text, experts);
  return table.ok() ? "" : table.error().message;
}

TEST(PlacementTable, ReadsTheFormsOfOtherTools) {
  const std::vector<float> expected = {5, 0, 1.5, 0, 2, 0};
  for (
      const char* text : {
          "layer,expert,score\n0,0,5\n0,2,1.5\n1,1,2\n",  // braid's own
          "0,0,5\n0,2,1.5\n1,1,2",                        // without names
          "\r\n LAYER_ID , Expert_Id , Hits \r\n0,0,5\r\n\r\n0,2,1.5\r\n1,1,2.0\r\n",  // case, blanks
          "freq;e;l\n5;0;0\n1.5;2;0\n2;1;1\n",  // another order
          "name\tcount\tlayer\tnote\texpert\na\t5\t0\tb,c;d\t0\na\t1.5\t0\t\t2\na\t2\t1\tx\t1\n",
          "\"\",\"layer\",\"expert\",\"uses\"\n\"1\",0,0,5\n\"a,b\",0.0,2.0,\"1.5\"\n\"3\",1,1,"
          "2e0\n",
          "layer,expert,activations\n0,2,1.5\n1,1,2\n0,0,5\n0,1,0\n",  // any order, and zeros
      }) {
    const auto table = parse_placement(text, 0);
    ASSERT_TRUE(table.ok()) << text << table.error().message;
    EXPECT_EQ(table->experts, 3) << text;
    EXPECT_EQ(table->numbers, (std::vector<int32_t>{0, 1})) << text;
    EXPECT_EQ(table->scores, expected) << text;
  }
  // The first of the known names is taken.
  const auto table = parse_placement("weight,layer,expert,count\n9,0,0,5\n", 0);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->scores, std::vector<float>{5});
}

TEST(PlacementTable, LayersMayBeginAnywhere) {
  const auto table = parse_placement("layer,expert,count\n7,1,2\n3,0,1\n5,3,4\n", 8);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->numbers, (std::vector<int32_t>{3, 5, 7}));
  EXPECT_EQ(table->experts, 8);
  const std::string own = format_expert_profile(table->scores, table->layers());
  EXPECT_EQ(own, "layer,expert,score\n0,0,1\n1,3,4\n2,1,2\n");
}

TEST(PlacementTable, TheEngineReadsWhatIsExported) {
  std::string text = "e;weight;l\n";
  for (int layer = 1; layer < 5; ++layer)
    for (int expert = 0; expert < 32; ++expert)
      text +=
          fmt::format("{};{}e{};{}\n", expert, (layer * 37 + expert * 11) % 50, expert - 32, layer);
  const auto table = parse_placement(text, 0);
  ASSERT_TRUE(table.ok()) << table.error().message;
  const auto scores = parse_expert_profile(format_expert_profile(table->scores, table->layers()),
                                           ExpertCountsOfLayers(4, 32));
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  for (size_t i = 0; i < scores->size(); ++i)
    EXPECT_NEAR((*scores)[i], table->scores[i], 1e-3f * table->scores[i]) << i;
}

TEST(PlacementTable, RefusesWhatIsNoProfile) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no line has an expert with a score above 0"},
      {"layer,expert,score\n", "no line has an expert with a score above 0"},
      {"0,0,0\n1,0,1e-40\n", "no line has an expert with a score above 0"},
      {"layer,expert\n0,0\n",
       "line 1 has neither numbers nor a column named score, count, hits, uses, activations, freq, "
       "frequency, weight"},
      {"\nname,expert,score\n",
       "line 2 has neither numbers nor a column named layer, layer_id, layer_idx, layer_index, l"},
      {"0,0,1\n0,1\n", "line 2 has no column 3, where the score would be"},
      {"expert,x,layer,score\n0,0\n", "line 2 has no column 3, where the layer would be"},
      {"0,0,nan\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,inf\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,-1\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,2e30\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,1e999\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,5x\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,\n", "line 1: the score is not a number from 0 to 1e+30"},
      {"0,0,1\n0,0,2\n", "line 2 repeats expert 0 of layer 0"},
      {"0,0,0\n0,0,0\n", "line 2 repeats expert 0 of layer 0"},
      {"-1,0,1\n", "line 1: the layer is not a whole number from 0 to 1023"},
      {"1024,0,1\n", "line 1: the layer is not a whole number from 0 to 1023"},
      {"1e18,0,1\n", "line 1: the layer is not a whole number from 0 to 1023"},
      {"0,0,1\n0.5,0,1\n", "line 2: the layer is not a whole number from 0 to 1023"},
      {"0,0,1\n0,1024,1\n", "line 2: the expert is not a whole number from 0 to 1023"},
      {"0,0,1\n0,nan,1\n", "line 2: the expert is not a whole number from 0 to 1023"},
      {"0,0,1\nlayer,expert,score\n", "line 2: the layer is not a whole number from 0 to 1023"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal(text), message) << text;
  EXPECT_EQ(refusal("0,8,1\n", 8), "line 1: the expert is not a whole number from 0 to 7");
}

TEST(PlacementTable, HostileTextsEndSoon) {
  std::string layers = "layer,expert,score\n";
  for (int layer = 0; layer < 1'000'000; ++layer) layers += fmt::format("{},0,1\n", layer);
  EXPECT_EQ(refusal(layers), "line 1026: the layer is not a whole number from 0 to 1023");
  EXPECT_NE(refusal(std::string(8 << 20, ',')), "");
  EXPECT_NE(refusal(std::string(8 << 20, '"')), "");
  EXPECT_NE(refusal(std::string(8 << 20, '9')), "");
  EXPECT_NE(refusal(std::string(8 << 20, '\0')), "");
  EXPECT_NE(refusal(std::string(8 << 20, '\n')), "");
  EXPECT_NE(refusal("0,0," + std::string(8 << 20, '9')), "");
  std::string full;
  for (int layer = 0; layer < kMostPlacementLayers; layer += 3)
    for (int expert = 0; expert < kMostPlacementExperts; ++expert)
      full += fmt::format("{},{},1e30\n", layer, expert);
  const auto table = parse_placement(full, 0);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->scores.size(), 342u * 1024);
  const auto uses = layer_uses(*table);
  EXPECT_NEAR(served_of_all_use(uses, 512), 0.5, 1e-6);
}

TEST(PlacementTable, SaysWhatTheMostUsedExpertsServe) {
  // Layer 0 has four times the use of layer 1; layer 2 none.
  const auto table = parse_placement("0,3,60\n0,1,20\n1,0,10\n1,1,5\n1,2,3\n1,3,2\n2,0,0\n", 0);
  ASSERT_TRUE(table.ok());
  const auto uses = layer_uses(*table);
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_EQ(uses[0].never_used, 2);
  EXPECT_EQ(uses[1].never_used, 0);
  EXPECT_EQ(uses[2].never_used, 4);
  EXPECT_DOUBLE_EQ(uses[0].use, 80);
  const auto expect_served = [](const LayerUse& layer, std::vector<double> expected) {
    ASSERT_EQ(layer.served.size(), expected.size());
    for (size_t n = 0; n < expected.size(); ++n) EXPECT_NEAR(layer.served[n], expected[n], 1e-12);
  };
  expect_served(uses[0], {0, 0.75, 1, 1, 1});
  expect_served(uses[1], {0, 0.5, 0.75, 0.9, 1});
  expect_served(uses[2], {0, 0, 0, 0, 0});
  EXPECT_NEAR(served_of_all_use(uses, 1), 0.7, 1e-12);
  EXPECT_NEAR(mean_served(uses, 1), 0.625, 1e-12);
  EXPECT_EQ(experts_of_share(0.125, 256), 32);
  EXPECT_EQ(experts_of_share(0.37, 256), 95);
  EXPECT_EQ(experts_of_share(0.125, 2), 1);
}

}  // namespace
}  // namespace braid::cli
