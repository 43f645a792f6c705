// sizes_test.cpp -- valid and invalid sizes.
#include "cli/options/sizes.h"

#include <gtest/gtest.h>

namespace braid::cli {
namespace {

TEST(ParseSize, NumbersWithAndWithoutSuffix) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"65536", 65536},
      {"12B", 12},
      {"8G", uint64_t{8} << 30},
      {"8g", uint64_t{8} << 30},
      {"8GiB", uint64_t{8} << 30},
      {"8GB", uint64_t{8} << 30},
      {"512M", uint64_t{512} << 20},
      {"64k", 64 << 10},
      {"2T", uint64_t{2} << 40},
      {"1.5G", uint64_t{3} << 29},
      {"0.25K", 256},
      {"18446744073709551615", UINT64_MAX},
  };
  for (const auto& [text, bytes] : cases) {
    const auto size = parse_size(text);
    ASSERT_TRUE(size.ok()) << text;
    EXPECT_EQ(*size, bytes) << text;
  }
}

TEST(ParseSize, EverythingElseIsRefusedWithItsText) {
  for (const char* text : {"",
                           "G",
                           "-1",
                           "+1",
                           " 1",
                           "1 ",
                           "1 G",
                           "0x10",
                           "1e3",
                           "nan",
                           "1.",
                           ".5G",
                           "1.5",
                           "1.5B",
                           "8Q",
                           "8GG",
                           "8iB",
                           "1.2.3G",
                           "18446744073709551616",
                           "16777216T",
                           "99999999999999999999999G"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(ReadSizes, AListHasOneSizeForEachComma) {
  std::vector<uint64_t> sizes;
  ASSERT_TRUE(read_sizes("--memory", "24G,512M", &sizes).ok());
  EXPECT_EQ(sizes, (std::vector<uint64_t>{uint64_t{24} << 30, uint64_t{512} << 20}));
  sizes.clear();
  ASSERT_TRUE(read_sizes("--memory", "", &sizes).ok());
  EXPECT_TRUE(sizes.empty());
  for (const char* wrong : {",", "8G,", ",8G", "8G,,8G", "8X"}) {
    const Status status = read_sizes("--memory", wrong, &sizes);
    ASSERT_FALSE(status.ok()) << wrong;
    EXPECT_EQ(status.error().message.rfind("--memory: ", 0), 0u) << status.error().message;
  }
}

}  // namespace
}  // namespace braid::cli
