// sparse_share_test.cpp
#include "cli/sparse_share.h"

#include <gtest/gtest.h>

namespace braid::cli {
namespace {

TEST(SparseShare, IsAShareOfTheBlocksOrSaysWhyThereIsNone) {
  EXPECT_EQ(sparse_share({341, 1000}), "share of key blocks read: 34.1 %");
  EXPECT_EQ(sparse_share({7, 7}), "share of key blocks read: 100.0 %");
  EXPECT_EQ(sparse_share({}),
            "share of key blocks read: all, as no step had 512 tokens of one prompt before its "
            "last 256");
}

}  // namespace
}  // namespace braid::cli
