// sparse_prefill_engine_test.cpp -- block-sparse prompts (ops/sparse_prefill.h) through an engine.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/temp_folder_test.h"
#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_machines;

constexpr int32_t kPrompt = 1700;

EngineOptions sparse_on(const char* device, float threshold) {
  EngineOptions options = on(device);
  options.deterministic = false;
  options.context_tokens = 2048;
  options.sparse_threshold = threshold;
  return options;
}

struct Said {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> rows;  // logits of every prompt token
  SparseCounts blocks;
};

Said say(const std::vector<std::byte>& bytes, const EngineOptions& options) {
  Machine m(bytes, options, KvFormat::f16);
  Said said;
  Request request = greedy(prompt(kPrompt), 8);
  request.score_from = 0;
  request.score = [&](int32_t, std::span<const float> logits) {
    said.rows.emplace_back(logits.begin(), logits.end());
  };
  said.tokens = m.ask(std::move(request)).tokens;
  said.blocks = m.engine->sparse_counts();
  return said;
}

class SparsePrefillOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, SparsePrefillOn, ::testing::Values("ref", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SparsePrefillOn, ATinyThresholdGivesTheBytesOfFullAttention) {
  for (const RandomShape& shape : {tiny_dense(), tiny_qwen3()}) {
    const auto bytes = bytes_of(shape);
    const Said full = say(bytes, sparse_on(GetParam(), 0));
    const Said sparse = say(bytes, sparse_on(GetParam(), 1e-30f));
    ASSERT_EQ(full.rows.size(), static_cast<size_t>(kPrompt));
    EXPECT_EQ(full.tokens, sparse.tokens) << shape.architecture;
    EXPECT_TRUE(full.rows == sparse.rows) << shape.architecture;
    EXPECT_EQ(full.blocks.all, 0u);
  }
}

TEST_P(SparsePrefillOn, AThresholdReadsLessAndSaysHowMuch) {
  const auto bytes = bytes_of(tiny_qwen3());
  const Said full = say(bytes, sparse_on(GetParam(), 0));
  const Said all = say(bytes, sparse_on(GetParam(), 1e-30f));
  EXPECT_GT(all.blocks.all, 0u);
  EXPECT_EQ(all.blocks.read, all.blocks.all);
  const Said sparse = say(bytes, sparse_on(GetParam(), 1));
  EXPECT_EQ(sparse.blocks.all, all.blocks.all);
  EXPECT_LT(sparse.blocks.read, sparse.blocks.all);
  ASSERT_EQ(sparse.rows.size(), full.rows.size());
  // The first blocks and the nearest ones are all there is to read.
  const auto first = static_cast<std::ptrdiff_t>(kSparseSinks + kSparseNear + 1) * kSparseBlock;
  EXPECT_TRUE(std::equal(full.rows.begin(), full.rows.begin() + first, sparse.rows.begin()));
  EXPECT_FALSE(full.rows == sparse.rows);
}

TEST_P(SparsePrefillOn, ShortPromptsReadEverything) {
  Machine m(bytes_of(tiny_qwen3()), sparse_on(GetParam(), 1), KvFormat::f16);
  EngineOptions options = sparse_on(GetParam(), 0);
  const Answer full =
      Machine(bytes_of(tiny_qwen3()), options, KvFormat::f16).ask(greedy(prompt(511), 8));
  EXPECT_EQ(m.ask(greedy(prompt(511), 8)).tokens, full.tokens);
  EXPECT_EQ(m.engine->sparse_counts().all, 0u);
}

std::string refusal(const EngineOptions& options) {
  const auto bytes = bytes_of(tiny_qwen3());
  const GgufFile file = parsed(bytes);
  const auto plan = Engine::plan_memory(file, options);
  if (plan.ok()) return "";
  EXPECT_EQ(plan.error().kind, ErrorKind::invalid_argument);
  return plan.error().message;
}

TEST(SparsePrefill, WhatItCannotDoIsRefusedBeforeLoading) {
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(refusal(sparse_on("ref", 0)), "");
  EXPECT_EQ(refusal(sparse_on("ref", 1)), "");
  EXPECT_EQ(refusal(sparse_on("cpu", 1e-30f)), "");
  for (const float threshold : {-0.1f, 1.01f, std::numeric_limits<float>::infinity(), NAN})
    EXPECT_TRUE(has(refusal(sparse_on("cpu", threshold)), "is not between 0 and 1")) << threshold;
  EngineOptions options = sparse_on("cpu", 0.1f);
  options.deterministic = true;
  EXPECT_TRUE(has(refusal(options), "not deterministic"));
  options.deterministic = false;
  options.ubatch_tokens = kSparseRows - 1;
  EXPECT_TRUE(has(refusal(options), "at least 512 tokens"));
  options.max_batch_tokens = kSparseRows;
  EXPECT_EQ(refusal(options), "");
  options.max_batch_tokens = 0;
  options.ubatch_tokens = 0;  // automatic
  EXPECT_EQ(refusal(options), "");
  options.attention_window = 1024;
  EXPECT_TRUE(has(refusal(options), "--fa-window leaves none"));
  options.attention_window = 0;
  options.k_format = KvFormat::bf16;
  EXPECT_TRUE(has(refusal(options), "need keys and values of f16"));
  options.v_format = KvFormat::bf16;
  EXPECT_EQ(refusal(options), "");
  options.k_format = options.v_format = KvFormat::f32;
  EXPECT_TRUE(has(refusal(options), "need keys and values of f16"));
}

// Rows of another threshold are other rows.
TEST(SparsePrefill, FilesOfOtherThresholdsAreNotFound) {
  const TempFolder folder;
  for (int round = 0; round < 2; ++round) {
    for (const float threshold : {0.f, 0.05f, 0.1f}) {
      EngineOptions options = sparse_on("cpu", threshold);
      options.cache_dir = folder.path;
      Machine m(bytes_of(tiny_qwen3()), options, KvFormat::f16);
      const Answer answer = m.ask(greedy(prompt(900), 2));
      if (round == 0) {
        EXPECT_EQ(answer.end.usage.cached_tokens, 0) << threshold;
      } else {
        EXPECT_GT(answer.end.usage.cached_tokens, 800) << threshold;
      }
    }
  }
}

}  // namespace
}  // namespace braid
