// compression_flags_test.cpp -- what reaches the engines of block-sparse prompts.
#include "cli/options/compression_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

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

}  // namespace
}  // namespace braid::cli
