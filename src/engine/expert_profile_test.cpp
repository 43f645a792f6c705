// expert_profile_test.cpp -- files of scores, also broken ones.
#include "engine/expert_profile.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_folder_test.h"

namespace braid {
namespace {

TEST(ExpertProfile, ComesBackAsItWas) {
  const ExpertCountsOfLayers layers = {3, 2};
  const std::vector<float> scores = {0.5f, 0, 12, 0.25f, 3};
  const std::string text = format_expert_profile(scores, layers);
  EXPECT_EQ(text, "layer,expert,score\n0,0,0.5\n0,2,12\n1,0,0.25\n1,1,3\n");
  const auto read = parse_expert_profile(text, layers);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, scores);
}

TEST(ExpertProfile, OfOtherProgramsAndPartsIsRead) {
  const auto read = parse_expert_profile("Layer,Expert,Count\r\n1,1,70\r\n\n0,2,1e3", {3, 2});
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, (std::vector<float>{0, 0, 1000, 0, 70}));
  EXPECT_TRUE(parse_expert_profile("", {3, 2}).ok());
}

TEST(ExpertProfile, WrongLinesAreNamed) {
  for (const char* text :
       {"0,0", "0,0,1,2", "0,0,-1", "0,0,inf", "0,0,nan", "0,0,x", "0,,1", "-1,0,1", "0,0,1e99",
        "99999999999,0,1", "2,0,1", "0,3,1", "0,0,1\nnothing"}) {
    const auto read = parse_expert_profile(text, {3, 2});
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().kind, ErrorKind::invalid_argument);
    EXPECT_NE(read.error().message.find("line "), std::string::npos) << read.error().message;
  }
}

TEST(ExpertProfile, PathsThatCannotBeWrittenAreRefusedAtOnce) {
  const TempFolder folder;
  const std::string path = folder.path + "/p.csv";
  EXPECT_EQ(*expert_profile_path(path, "/models/a.gguf"), path);
  EXPECT_EQ(*expert_profile_path(folder.path, "/models/a.gguf"),
            folder.path + "/a.gguf.experts.csv");
  std::ofstream(path) << "x";
  EXPECT_EQ(*expert_profile_path(path, "a"), path);
  for (const std::string& wrong :
       {std::string("/dev/null"), path + "/p.csv", folder.path + "/none/p.csv"}) {
    const auto refused = expert_profile_path(wrong, "a");
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().kind, ErrorKind::invalid_argument);
  }
}

}  // namespace
}  // namespace braid
