// ranks_test.cpp -- a model whose layers are shared by ranks: close to one device, and equal to
// itself whatever runs beside a request.
#include <gtest/gtest.h>

#include <cmath>

#include "base/temp_folder_test.h"
#include "engine/open_devices.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;

EngineOptions options_on(const std::string& device, int ranks) {
  EngineOptions options = crowded_on(repeated(device, ranks));
  if (ranks > 1) options.split = Split::tensor;
  return options;
}

Request asked(int number) {
  std::vector<int32_t> text = prompt(number % 2 == 0 ? 130 : 9, number % 3);
  const std::vector<int32_t> own = prompt(5 + 7 * number, number + 1);
  text.insert(text.end(), own.begin(), own.end());
  Request request = greedy(std::move(text), 14);
  request.top_logprobs = 0;
  if (number % 3 == 2) {
    request.sampling.temperature = 0.8f;
    request.sampling.seed = static_cast<uint64_t>(number);
  }
  return request;
}

struct Told {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Told&) const = default;
};

Told told_of(const Answer& answer) {
  Told told{answer.tokens, {}};
  EXPECT_NE(answer.end.reason, FinishReason::error) << answer.end.error;
  for (const TokenEvent& event : answer.events) told.logprobs.push_back(event.logprob);
  return told;
}

std::vector<Told> together(Machine& m, int requests) {
  std::vector<RequestId> ids;
  for (int i = 0; i < requests; ++i) ids.push_back(m.submit(asked(i)));
  m.run();
  std::vector<Told> all;
  for (const RequestId id : ids) all.push_back(told_of(m.sink.answers[id]));
  return all;
}

std::vector<Told> alone(Machine& m, int requests) {
  std::vector<Told> all;
  for (int i = 0; i < requests; ++i) {
    Request request = asked(i);
    request.use_cache = false;
    all.push_back(told_of(m.ask(std::move(request))));
  }
  return all;
}

// Up to the first token where two are almost equally probable.
void expect_near(const Told& got, const Told& expected, float limit, const std::string& what) {
  ASSERT_FALSE(got.tokens.empty()) << what;
  for (size_t i = 0; i < std::min(got.tokens.size(), expected.tokens.size()); ++i) {
    EXPECT_NEAR(got.logprobs[i], expected.logprobs[i], limit) << what << " at " << i;
    if (got.tokens[i] != expected.tokens[i]) return;
  }
}

class RanksOf : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Devices, RanksOf, ::testing::Values("ref", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

// With experts that ranks share by columns; narrower ones are dealt whole.
RandomShape wide(RandomShape shape) {
  shape.expert_width = 128;
  if (shape.shared_width > 0) shape.shared_width = 128;
  return shape;
}

// With enough heads for four ranks, of which two have no part of the shared expert.
RandomShape four_heads(RandomShape shape) {
  shape.heads = shape.kv_heads = shape.key_heads = shape.value_heads = 4;
  return shape;
}

TEST_P(RanksOf, EveryKindOfLayerIsCloseToOneDeviceAndEqualToItself) {
  const RandomShape shapes[] = {
      tiny_dense(),        tiny_attention(),      tiny_qwen3(),     tiny_moe(),
      tiny_qwen3next(),    tiny_laguna(),         wide(tiny_moe()), wide(tiny_qwen3next()),
      wide(tiny_laguna()), four_heads(tiny_moe())};
  int split = 0;
  for (const RandomShape& shape : shapes) {
    Machine one(bytes_of(shape), options_on(GetParam(), 1));
    const std::vector<Told> expected = alone(one, 4);
    for (const int ranks : {2, 4}) {
      const std::string what = std::string(shape.name) + " on " + std::to_string(ranks);
      const std::vector<std::byte> bytes = bytes_of(shape);
      const GgufFile file = parsed(bytes);
      const auto plan = Engine::plan_memory(file, options_on(GetParam(), ranks));
      if (!plan.ok()) {
        EXPECT_EQ(plan.error().kind, ErrorKind::unsupported) << what;
        EXPECT_GT(ranks, 2) << what << ": " << plan.error().message;
        continue;
      }
      ++split;
      Machine m(bytes, options_on(GetParam(), ranks));
      EXPECT_EQ(m.engine->devices().ranks(), ranks);
      const std::vector<Told> own = alone(m, 4);
      for (size_t i = 0; i < own.size(); ++i) expect_near(own[i], expected[i], 2e-3f, what);
      EXPECT_EQ(together(m, 4), own) << what;
    }
  }
  EXPECT_GE(split, 11);
}

TEST_P(RanksOf, InterleavedPromptsPreemptionAndSwapChangeNothing) {
  const RandomShape shape = tiny_dense();
  Machine quiet(bytes_of(shape), options_on(GetParam(), 2));
  const std::vector<Told> expected = alone(quiet, 6);
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    EngineOptions options = options_on(GetParam(), 2);
    options.gap_limit = 1.5;
    options.preemption = preemption;
    options.swap_memory_bytes = 32 << 20;
    options.hooks.late_events = true;
    Machine sized(bytes_of(shape), options);
    options.kv_memory_bytes = sized.engine->memory().kv_token_bytes * 576;
    Machine m(bytes_of(shape), options);
    EXPECT_EQ(together(m, 6), expected);
  }
}

TEST(Ranks, SealedBlocksAndWindowsAreEqualAloneAndTogether) {
  for (const char* format : {"q8_0", "q4_0"}) {
    EngineOptions options = options_on("cpu", 2);
    options.k_codec = options.v_codec = *find_kv_codec(format);
    Machine m(bytes_of(wide(tiny_qwen3next())), options, KvFormat::f16);
    EXPECT_EQ(together(m, 5), alone(m, 5)) << format;
  }
  EngineOptions options = options_on("cpu", 2);
  options.attention_window = 64;
  Machine m(bytes_of(tiny_attention()), options);
  EXPECT_EQ(together(m, 5), alone(m, 5));
}

TEST(Ranks, DraftsOfTheHeadChangeNothing) {
  const std::vector<std::byte> bytes = bytes_of(tiny_dense(), "F32", true);
  Machine plain(bytes, options_on("cpu", 2));
  const std::vector<Told> expected = alone(plain, 4);
  for (const bool trees : {false, true}) {
    EngineOptions options = options_on("cpu", 2);
    options.spec_type = SpecType::mtp;
    options.max_drafts = 4;
    options.draft_trees = trees;
    options.spec_always = true;
    Machine m(bytes, options);
    EXPECT_EQ(together(m, 4), expected) << trees;
    EXPECT_GT(m.engine->stats().drafted, 50u);
  }
}

TEST(Ranks, TheDemosDrafterIsAsGoodAsOnOneDevice) {
  auto file = GgufFile::open(kDemoModel);
  ASSERT_TRUE(file.ok());
  std::vector<int64_t> accepted;
  for (const int ranks : {1, 2}) {
    EngineOptions options = options_on("cpu", ranks);
    options.spec_type = SpecType::dflash;
    options.draft_model = kDemoDrafter;
    options.max_drafts = 15;
    options.spec_always = true;
    auto engine = Engine::create(*file, options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    Collector sink;
    const auto id = (*engine)->submit(greedy(golden_prompt(5), 40), sink);
    ASSERT_TRUE(id.ok());
    (*engine)->run_until_idle();
    accepted.push_back(sink.answers[*id].accepted);
  }
  EXPECT_GT(accepted[0], 0);
  EXPECT_GE(accepted[1], accepted[0] / 2);
}

// Files of ranks serve the same ranks only: their images have each rank's heads together.
TEST(Ranks, FilesServeTheSameRanks) {
  const TempFolder folder;
  const std::vector<int32_t> text = prompt(300, 4);
  std::vector<int32_t> first;
  for (const int ranks : {2, 2, 1, 2}) {
    EngineOptions options = options_on("cpu", ranks);
    options.cache_dir = folder.path;
    Machine m(bytes_of(tiny_dense()), options);
    const Answer answer = m.ask(greedy(text, 12));
    const bool found = answer.end.usage.cached_tokens > 200;
    EXPECT_EQ(found, ranks == 2 && !first.empty());
    if (first.empty()) first = answer.tokens;
    if (ranks == 2) {
      EXPECT_EQ(answer.tokens, first);
    }
  }
}

TEST(Ranks, WhatCannotBeSharedIsRefusedInASentence) {
  const std::vector<std::byte> bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions options = options_on("cpu", 8);
  const auto made = Engine::create(file, options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::unsupported);
  options = options_on("cpu", 2);
  options.split_ratio = {1, 0};
  EXPECT_FALSE(Engine::create(file, options).ok());
}

}  // namespace
}  // namespace braid
