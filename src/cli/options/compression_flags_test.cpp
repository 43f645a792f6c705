// compression_flags_test.cpp -- what reaches the engines of block-sparse prompts.
#include "cli/options/compression_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <vector>

#include "cli/options/model_flags.h"

namespace braid::cli {
namespace {

TEST(SparseFlags, EachReachesItsEngine) {
  ModelFlags model;
  CompressionFlags prefill;
  CLI::App app;
  add_model_options(app, model, kModelPart | kCachePart);
  add_compression_options(app, prefill);
  EXPECT_EQ(engine_options(model)->sparse_threshold, 0);
  app.parse("--prefill-drafter builtin --prefill-drafter-sparse 0.25 --prefill-sparse 0.125");
  EXPECT_EQ(engine_options(model)->sparse_threshold, 0.125f);
  const auto scoring = compression_options(prefill, "cpu", 1);
  ASSERT_TRUE(scoring.ok() && *scoring);
  EXPECT_EQ((*scoring)->sparse_threshold, 0.25f);
  EXPECT_THROW(app.parse("--prefill-sparse 1.5"), CLI::ValidationError);
  EXPECT_THROW(app.parse("--prefill-drafter-sparse -0.5"), CLI::ValidationError);
}

// The default is what engines take; what a user wants is refused if it cannot be.
TEST(SparseFlags, OnlyTheDefaultGivesWay) {
  std::vector<float> tried;
  const auto create = [&](float threshold) -> Result<int> {
    tried.push_back(threshold);
    if (threshold > 0) return Error{ErrorKind::unsupported, "heads of 64"};
    return 7;
  };
  const auto made = server::create_sparse(std::nullopt, create);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, 7);
  EXPECT_EQ(tried, (std::vector<float>{server::kScorerSparseThreshold, 0}));
  EXPECT_FALSE(server::create_sparse(0.5f, create).ok());
  EXPECT_EQ(tried.size(), 3u);
  const auto broken = [&](float threshold) -> Result<int> {
    tried.push_back(threshold);
    return Error{ErrorKind::io, "no file"};
  };
  EXPECT_FALSE(server::create_sparse(std::nullopt, broken).ok());
  EXPECT_EQ(tried.size(), 4u);
}

}  // namespace
}  // namespace braid::cli
