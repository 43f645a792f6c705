// tail_scorer_test.cpp -- scores of a prompt's tokens: the same however the prompt is cut, on every
// device, and those of the softmax that the model computes.
#include "engine/tail_scorer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_machines;

Request uncached(const std::vector<int32_t>& tokens) {
  Request request;
  request.prompt = tokens;
  request.max_tokens = 0;
  request.use_cache = false;
  return request;
}

std::vector<float> tail_scores_on(const char* device, const RandomShape& shape, int32_t tokens,
                                  int32_t ubatch, const TailScoreOptions& options) {
  EngineOptions engine_options = on(device);
  engine_options.ubatch_tokens = ubatch;
  engine_options.max_sequences = 1;
  Machine m(bytes_of(shape), engine_options);
  auto scorer = TailScorer::create(*m.engine, options);
  EXPECT_TRUE(scorer.ok()) << (scorer.ok() ? "" : scorer.error().message);
  m.engine->observe(scorer->get());
  // A prompt before leaves nothing behind.
  for (const int32_t length : {40, tokens}) {
    (*scorer)->begin(length);
    EXPECT_NE(m.ask(uncached(prompt(length, 3))).end.reason, FinishReason::error);
  }
  auto scores = (*scorer)->scores();
  EXPECT_TRUE(scores.ok());
  m.engine->observe(nullptr);
  return *scores;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-4 + 1e-3 * want[i]) << what << " position " << i;
}

TEST(TailScorer, DoesNotDependOnHowAPromptIsCut) {
  for (const RandomShape& shape : {tiny_qwen3(), tiny_dense(), tiny_laguna()})
    for (const bool angles : {false, true}) {
      const TailScoreOptions options{.rows = 8, .angles = angles};
      const std::vector<float> want = tail_scores_on("ref", shape, 135, 256, options);
      for (const int32_t ubatch : {5, 33, 64})
        expect_near(tail_scores_on("ref", shape, 135, ubatch, options), want,
                    std::string(shape.name) + " in " + std::to_string(ubatch));
      expect_near(tail_scores_on("cpu", shape, 135, 64, options), want,
                  std::string(shape.name) + " on the CPU");
    }
}

TEST(TailScorer, OnAGpuTheyAreTheSame) {
  if (const std::string why = testing_devices::why_not_on("cuda"); !why.empty())
    GTEST_SKIP() << why;
  for (const RandomShape& shape : {tiny_qwen3(), tiny_dense()})
    for (const bool angles : {false, true}) {
      const TailScoreOptions options{.rows = 8, .angles = angles};
      const std::vector<float> want = tail_scores_on("ref", shape, 200, 256, options);
      const std::vector<float> got = tail_scores_on("cuda", shape, 200, 64, options);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 2e-3 + 0.05 * want[i]) << shape.name << " position " << i;
    }
}

// Probabilities of one row, and the largest of several heads: their sum is at least one.
TEST(TailScorer, ScoresAreProbabilities) {
  const std::vector<float> scores = tail_scores_on("cpu", tiny_qwen3(), 90, 64, {.rows = 1});
  double sum = 0;
  for (const float score : scores) {
    EXPECT_GE(score, 0);
    EXPECT_LE(score, 1.0001);
    sum += score;
  }
  EXPECT_GE(sum, 0.999);
  EXPECT_GT(scores.back(), 0);
}

TEST(TailScorer, ShortPromptsHaveFewerRows) {
  const std::vector<float> scores = tail_scores_on("cpu", tiny_qwen3(), 3, 64, {.rows = 8});
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_GT(scores[0], 0);
}

TEST(TailScorer, RefusesWhatItCannotScore) {
  Machine m(bytes_of(tiny_qwen3()), on("cpu"));
  EXPECT_FALSE(TailScorer::create(*m.engine, {.rows = 0}).ok());
  EXPECT_FALSE(TailScorer::create(*m.engine, {.rows = 17}).ok());
  EngineOptions windows = on("cpu");
  windows.attention_window = 32;
  Machine narrow(bytes_of(tiny_qwen3()), windows);
  const auto refused = TailScorer::create(*narrow.engine, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::unsupported);
  EngineOptions two = on("cpu");
  two.device = "cpu,cpu";
  Machine staged(bytes_of(tiny_qwen3()), two);
  EXPECT_FALSE(TailScorer::create(*staged.engine, {}).ok());
}

}  // namespace
}  // namespace braid
