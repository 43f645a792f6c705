// stages_test.cpp -- a model cut into stages gives the bytes of one device, whatever runs.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder_test.h"
#include "engine/tests/conversation_test.h"
#include "engine/tests/demo_test.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;

int32_t layers_of(const RandomShape& shape) { return shape.layers; }

class StagesOf : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Devices, StagesOf, ::testing::Values("ref", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StagesOf, EveryKindOfLayerIsEqual) {
  const RandomShape shapes[] = {tiny_dense(), tiny_moe(),       tiny_attention(),
                                tiny_qwen3(), tiny_qwen3next(), tiny_laguna()};
  for (const RandomShape& shape : shapes) {
    Machine one(bytes_of(shape), crowded_on(GetParam()));
    const All expected = conversation(one, 100);
    for (int stages = 2; stages <= std::min(4, layers_of(shape)); ++stages) {
      Machine m(bytes_of(shape), crowded_on(repeated(GetParam(), stages)));
      EXPECT_EQ(m.engine->devices().count(), stages);
      EXPECT_EQ(conversation(m, 100), expected) << shape.name << " in " << stages;
    }
  }
}

TEST_P(StagesOf, InterleavedPromptsAndLateEventsAreEqual) {
  EngineOptions options = crowded_on(GetParam());
  Machine one(bytes_of(tiny_dense()), options);
  const All expected = conversation(one, 200);
  options.device = repeated(GetParam(), 3);
  options.gap_limit = 1.5;
  options.hooks.late_events = true;
  Machine m(bytes_of(tiny_dense()), options);
  const All got = conversation(m, 200);
  expect_equal_answers(got, expected, "");
}

TEST_P(StagesOf, DraftsOfTheHeadAreEqual) {
  for (const bool trees : {false, true}) {
    EngineOptions options = crowded_on(GetParam());
    options.spec_type = SpecType::mtp;
    options.max_drafts = 4;
    options.draft_trees = trees;
    options.spec_always = true;
    const std::vector<std::byte> bytes = bytes_of(tiny_dense(), "F32", true);
    Machine one(bytes, options);
    const All expected = conversation(one, 100);
    int64_t drafted = 0;
    for (const Told& told : expected) drafted += told.drafted;
    EXPECT_GT(drafted, 50);
    for (const int stages : {2, 3}) {
      options.device = repeated(GetParam(), stages);
      Machine m(bytes, options);
      const All got = conversation(m, 100);
      expect_equal_answers(got, expected, std::to_string(stages) + (trees ? " trees" : " chains"));
      drafted = 0;
      for (const Told& told : got) drafted += told.drafted;
      EXPECT_GT(drafted, 50);
    }
  }
}

TEST(Stages, SealedBlocksAndSwapsAreEqual) {
  for (const char* format : {"q8_0", "q4_0"}) {
    EngineOptions options = crowded_on("cpu");
    options.k_codec = options.v_codec = *find_kv_codec(format);
    options.preemption = Preemption::swap;
    options.swap_memory_bytes = 32 << 20;
    const auto run = [&](const std::string& device) {
      EngineOptions own = options;
      own.device = device;
      Machine m(bytes_of(tiny_qwen3next()), own, KvFormat::f16);
      return conversation(m, 150);
    };
    const All expected = run("cpu");
    EXPECT_EQ(run("cpu,cpu"), expected) << format;
    EXPECT_EQ(run("cpu,cpu,cpu"), expected) << format;
  }
}

TEST(Stages, PreemptedSequencesAreEqual) {
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    All expected;
    for (const int stages : {1, 2, 4}) {
      Machine m(bytes_of(tiny_dense()),
                with_few_blocks(crowded_on(repeated("cpu", stages)), preemption));
      const All got = preempted_answers(m);
      if (stages == 1) expected = got;
      EXPECT_EQ(got, expected) << stages;
    }
  }
}

// A cache directory is the same for any number of stages.
TEST(Stages, FilesOfOneDeviceServeSeveral) {
  const TempFolder folder;
  const std::vector<int32_t> text = prompt(300, 4);
  std::vector<int32_t> first;
  for (const int stages : {1, 3, 2, 1}) {
    EngineOptions options = crowded_on(repeated("cpu", stages));
    options.cache_dir = folder.path;
    Machine m(bytes_of(tiny_dense()), options);
    const Answer answer = m.ask(greedy(text, 20));
    if (first.empty()) {
      first = answer.tokens;
      EXPECT_EQ(answer.end.usage.cached_tokens, 0);
    } else {
      EXPECT_GT(answer.end.usage.cached_tokens, 200) << stages;
    }
    EXPECT_EQ(answer.tokens, first) << stages;
  }
}

TEST(Stages, TheDemosDrafterIsEqual) {
  EngineOptions options = crowded_on("cpu");
  options.spec_type = SpecType::dflash;
  options.draft_model = kDemoDrafter;
  options.max_drafts = 15;
  options.spec_always = true;
  auto file = GgufFile::open(kDemoModel);
  ASSERT_TRUE(file.ok());
  All expected;
  for (const int stages : {1, 2, 3}) {
    options.device = repeated("cpu", stages);
    auto engine = Engine::create(*file, options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    Collector sink;
    std::vector<RequestId> ids;
    for (const size_t number : {5u, 8u, 4u})
      ids.push_back(*(*engine)->submit(greedy(golden_prompt(number), 40), sink));
    (*engine)->run_until_idle();
    All got;
    for (const RequestId id : ids) got.push_back(told_of(sink.answers[id]));
    if (stages == 1) expected = got;
    EXPECT_GT(got[0].accepted, 0);
    expect_equal_answers(got, expected, std::to_string(stages));
  }
}

// Groups of sequences take turns, and chunks of one prompt follow each other.
TEST_P(StagesOf, AStepIsQueuedWhileOthersRun) {
  for (const bool one_prompt : {false, true}) {
    EngineOptions options;
    options.context_tokens = 700;
    options.ubatch_tokens = 32;
    options.max_sequences = 12;
    All expected;
    for (const int stages : {1, 2, 3}) {
      options.device = repeated(GetParam(), stages);
      Machine m(bytes_of(tiny_dense()), options);
      std::vector<RequestId> ids;
      for (int i = 0; i < (one_prompt ? 1 : 12); ++i)
        ids.push_back(m.submit(greedy(prompt(one_prompt ? 600 : 10 + i, i), 20)));
      m.run();
      All got;
      for (const RequestId id : ids) got.push_back(told_of(m.sink.answers[id]));
      if (stages == 1) expected = got;
      EXPECT_EQ(got, expected) << stages;
      const EngineStats& stats = m.engine->stats();
      if (m.engine->devices().stages() == 1) {
        EXPECT_EQ(stats.ahead, 0u);
      } else {
        EXPECT_GE(stats.ahead, one_prompt ? 14u : 15u) << stats.steps;
      }
    }
  }
}

// A request that ends while its next chunk runs leaves nothing behind.
TEST_P(StagesOf, ARequestIsCancelledBetweenItsChunks) {
  EngineOptions options = crowded_on(repeated(GetParam(), 3));
  options.ubatch_tokens = 32;
  Machine m(bytes_of(tiny_dense()), options);
  Machine one(bytes_of(tiny_dense()), crowded_on(GetParam()));
  const RequestId alone = one.submit(greedy(prompt(300, 1), 10));
  one.run();
  for (int steps = 1; steps < 12; ++steps) {
    const RequestId gone = m.submit(greedy(prompt(300, 1), 10));
    const RequestId beside = m.submit(greedy(prompt(40, steps), 10));
    for (int i = 0; i < steps; ++i) m.engine->step();
    m.engine->cancel(gone);
    m.run();
    EXPECT_EQ(m.sink.answers[gone].end.reason, FinishReason::cancelled) << steps;
    EXPECT_EQ(m.sink.answers[beside].end.reason, FinishReason::length) << steps;
    const RequestId again = m.submit(greedy(prompt(300, 1), 10));
    m.run();
    EXPECT_EQ(m.sink.answers[again].tokens, one.sink.answers[alone].tokens) << steps;
    EXPECT_EQ(m.engine->scheduler().blocks().free(), m.engine->scheduler().blocks().total());
  }
}

TEST(Stages, APlanHasAColumnForEachCard) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions options = crowded_on("cuda:0,cuda:1");
  options.planned_gpus = true;
  options.gpu_memory_bytes = {uint64_t{4} << 30, uint64_t{2} << 30};
  const auto plan = Engine::plan_memory(file, options);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_EQ(plan->pools.size(), 2u);
  EXPECT_EQ(plan->pools[0].layers.substr(0, 2), "0-");
  EXPECT_EQ(plan->pools[1].available_bytes, uint64_t{2} << 30);
  EXPECT_NE(plan->table().find(plan->pools[1].layers), std::string::npos) << plan->table();
  EXPECT_GT(plan->predicted_bytes(0), 0u);
  EXPECT_GT(plan->predicted_bytes(1), 0u);
  options.split_ratio = {3, 1};
  const auto asked = Engine::plan_memory(file, options);
  ASSERT_TRUE(asked.ok());
  EXPECT_NE(asked->pools[0].layers, asked->pools[1].layers);
  options.split_ratio = {1, 1, 1};
  EXPECT_FALSE(Engine::plan_memory(file, options).ok());
  options.split_ratio = {};
  options.gpu_memory_bytes = {uint64_t{4} << 30, 1 << 10};
  const auto small = Engine::plan_memory(file, options);
  ASSERT_TRUE(small.ok());
  EXPECT_NE(small->check_fits().error().message.find("cuda:1"), std::string::npos)
      << small->check_fits().error().message;
}

TEST(Stages, NamesOfDevicesAreChecked) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cpu:1", "cuda:0,cpu", "cpu,auto",
                            "cpu,cuda,cpu", "auto,auto", "cpu,", "cuda:-1", "cuda:99999999999"}) {
    EngineOptions options = on("cpu");
    options.device = wrong;
    const auto made = Engine::create(file, options);
    ASSERT_FALSE(made.ok()) << wrong;
    EXPECT_EQ(made.error().kind, ErrorKind::invalid_argument) << wrong;
  }
  EngineOptions options = on("cpu");
  options.device = repeated("cpu", tiny_dense().layers + 1);
  EXPECT_FALSE(Engine::create(file, options).ok());
}

}  // namespace
}  // namespace braid
