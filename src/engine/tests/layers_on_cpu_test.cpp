// layers_on_cpu_test.cpp -- a CPU with the first layers before devices with their own memory gives
// the bytes of one device, whatever runs.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/temp_folder_test.h"
#include "engine/tests/conversation_test.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/own_memory_test.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;
using testing_devices::OwnMemory;

std::unique_ptr<Device> cpu_of(const EngineOptions& options) {
  DeviceOptions device;
  device.threads = options.threads;
  device.activations = options.activations;
  device.max_tokens = options.ubatch_tokens + 256;
  return make_cpu_device(device).value();
}

// A CPU before `gpus` devices with their own memory.
std::shared_ptr<Devices> mixed(const EngineOptions& options, int gpus = 1) {
  std::vector<std::unique_ptr<Device>> list;
  list.push_back(cpu_of(options));
  for (int i = 0; i < gpus; ++i) list.push_back(std::make_unique<OwnMemory>(cpu_of(options)));
  return std::make_shared<Devices>(std::move(list));
}

// States fold at once on the first, periodically on the second.
std::shared_ptr<Devices> cpu_and_ref(const EngineOptions& options) {
  std::vector<std::unique_ptr<Device>> list;
  list.push_back(cpu_of(options));
  list.push_back(std::make_unique<OwnMemory>(make_ref_device({})));
  return std::make_shared<Devices>(std::move(list));
}

// The same arithmetic, as the best logits of a device with its own memory are found there.
std::shared_ptr<Devices> alone(const EngineOptions& options) {
  return std::make_shared<Devices>(std::make_unique<OwnMemory>(cpu_of(options)));
}

TEST(LayersOnCpu, EveryKindOfLayerIsEqual) {
  const RandomShape shapes[] = {tiny_dense(), tiny_moe(),       tiny_attention(),
                                tiny_qwen3(), tiny_qwen3next(), tiny_laguna()};
  for (const RandomShape& shape : shapes) {
    const EngineOptions options = crowded_on("cpu");
    Machine one(bytes_of(shape), options, KvFormat::f32, alone(options));
    const All expected = conversation(one, 100);
    for (int gpus = 1; gpus <= std::min(2, shape.layers - 1); ++gpus) {
      Machine m(bytes_of(shape), options, KvFormat::f32, mixed(options, gpus));
      EXPECT_TRUE(m.engine->devices().mixed());
      EXPECT_EQ(conversation(m, 100), expected) << shape.name << " before " << gpus;
    }
  }
}

TEST(LayersOnCpu, InterleavedPromptsAreEqual) {
  EngineOptions options = crowded_on("cpu");
  Machine one(bytes_of(tiny_dense()), options, KvFormat::f32, alone(options));
  const All expected = conversation(one, 200);
  options.gap_limit = 1.5;
  Machine m(bytes_of(tiny_dense()), options, KvFormat::f32, mixed(options));
  expect_equal_answers(conversation(m, 200), expected, "");
}

TEST(LayersOnCpu, DraftsOfTheHeadAreEqual) {
  for (const bool trees : {false, true}) {
    EngineOptions options = crowded_on("cpu");
    options.spec_type = SpecType::mtp;
    options.max_drafts = 4;
    options.draft_trees = trees;
    options.spec_always = true;
    const std::vector<std::byte> bytes = bytes_of(tiny_dense(), "F32", true);
    Machine one(bytes, options, KvFormat::f32, alone(options));
    const All expected = conversation(one, 100);
    Machine m(bytes, options, KvFormat::f32, mixed(options));
    const All got = conversation(m, 100);
    expect_equal_answers(got, expected, trees ? "trees" : "chains");
    int64_t drafted = 0;
    for (const Told& told : got) drafted += told.drafted;
    EXPECT_GT(drafted, 50);
  }
}

TEST(LayersOnCpu, TheDemosDrafterIsEqual) {
  EngineOptions options = crowded_on("cpu");
  options.spec_type = SpecType::dflash;
  options.draft_model = kDemoDrafter;
  options.max_drafts = 15;
  options.spec_always = true;
  const auto file = GgufFile::open(kDemoModel);
  ASSERT_TRUE(file.ok());
  All expected;
  for (const bool is_mixed : {false, true}) {
    auto engine = Engine::create(*file, options, is_mixed ? mixed(options) : alone(options));
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    Collector sink;
    std::vector<RequestId> ids;
    for (const size_t number : {5u, 8u, 4u})
      ids.push_back(*(*engine)->submit(greedy(golden_prompt(number), 40), sink));
    (*engine)->run_until_idle();
    All got;
    for (const RequestId id : ids) got.push_back(told_of(sink.answers[id]));
    if (!is_mixed) expected = got;
    EXPECT_GT(got[0].accepted, 0);
    expect_equal_answers(got, expected, is_mixed ? "mixed" : "alone");
  }
}

TEST(LayersOnCpu, SealedBlocksAndSwapsAreEqual) {
  EngineOptions options = crowded_on("cpu");
  options.k_codec = options.v_codec = *find_kv_codec("q8_0");
  options.preemption = Preemption::swap;
  options.swap_memory_bytes = 32 << 20;
  Machine one(bytes_of(tiny_qwen3next()), options, KvFormat::f16, alone(options));
  const All expected = conversation(one, 150);
  Machine m(bytes_of(tiny_qwen3next()), options, KvFormat::f16, mixed(options));
  EXPECT_EQ(conversation(m, 150), expected);
}

TEST(LayersOnCpu, PreemptedSequencesAreEqual) {
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    All expected;
    for (const bool is_mixed : {false, true}) {
      const EngineOptions options = with_few_blocks(crowded_on("cpu"), preemption);
      Machine m(bytes_of(tiny_dense()), options, KvFormat::f32,
                is_mixed ? mixed(options) : alone(options));
      const All got = preempted_answers(m);
      if (!is_mixed) expected = got;
      EXPECT_EQ(got, expected);
    }
  }
}

// Found again by an engine with the same layers on the CPU; by no other.
TEST(LayersOnCpu, FilesServeTheSameCut) {
  const TempFolder folder;
  const std::vector<int32_t> text = prompt(300, 4);
  EngineOptions options = crowded_on("cpu");
  options.cache_dir = folder.path;
  std::vector<int32_t> first;
  for (const auto& [on_gpus, found] : {std::pair(2, false), {2, true}, {1, false}}) {
    options.gpu_layers = on_gpus;
    Machine m(bytes_of(tiny_dense()), options, KvFormat::f32, mixed(options));
    EXPECT_EQ(m.engine->config().first_layer(1), tiny_dense().layers - on_gpus);
    const Answer answer = m.ask(greedy(text, 20));
    EXPECT_EQ(answer.end.usage.cached_tokens > 200, found) << on_gpus;
    if (first.empty()) first = answer.tokens;
    EXPECT_EQ(answer.tokens, first);
  }
}

// After an answer, entries of the reference's layers wait for a fold, and none of the CPU's.
TEST(LayersOnCpu, FilesHoldWhatWaitsForAFold) {
  const TempFolder folder;
  EngineOptions options = crowded_on("cpu");
  options.cache_dir = folder.path;
  options.split_ratio = {1, 1};
  const std::vector<int32_t> text = prompt(300, 4);
  std::vector<int32_t> second;
  for (const bool restarts : {false, true}) {
    TempFolder own;
    if (!restarts) options.cache_dir = own.path;
    auto m = std::make_unique<Machine>(bytes_of(tiny_dense()), options, KvFormat::f32,
                                       cpu_and_ref(options));
    const Answer first = m->ask(greedy(text, 43));
    std::vector<int32_t> longer = text;
    longer.insert(longer.end(), first.tokens.begin(), first.tokens.end());
    longer.push_back(7);
    if (restarts) {
      m.reset();
      m = std::make_unique<Machine>(bytes_of(tiny_dense()), options, KvFormat::f32,
                                    cpu_and_ref(options));
    }
    const Answer answer = m->ask(greedy(longer, 20));
    EXPECT_GE(answer.end.usage.cached_tokens, 342) << "the whole answer";
    if (!restarts) second = answer.tokens;
    EXPECT_EQ(answer.tokens, second);
    options.cache_dir = folder.path;
  }
}

// Stages may fold states at other positions; what else runs must not change answers either.
TEST(LayersOnCpu, StatesFoldAsTheirDeviceWants) {
  EngineOptions options = crowded_on("cpu");
  options.split_ratio = {1, 1};
  options.spec_type = SpecType::mtp;
  options.max_drafts = 3;
  options.spec_always = true;
  options.prefix_cache = false;
  All expected;
  for (const int32_t sequences : {1, 4}) {
    options.max_sequences = sequences;
    Machine m(bytes_of(tiny_dense(), "F32", true), options, KvFormat::f32, cpu_and_ref(options));
    const All got = conversation(m, 100);
    if (sequences == 1) expected = got;
    expect_equal_answers(got, expected, "others");
  }
}

EngineOptions on_planned_card(uint64_t bytes) {
  EngineOptions options = crowded_on("auto");
  options.planned_gpus = true;
  options.gpu_memory_bytes = {bytes};
  return options;
}

// The model's weights take more than the card has: the CPU has the first layers, and as few as
// possible.
TEST(LayersOnCpu, ASmallCardTakesWhatFits) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions options = on_planned_card(uint64_t{1} << 30);
  const auto whole = Engine::plan_memory(file, options);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_EQ(whole->pools.size(), 1u);
  int32_t least = tiny_dense().layers;
  for (const uint64_t percent : {90u, 75u, 60u}) {
    options.gpu_memory_bytes = {whole->predicted_bytes() * percent / 100};
    const auto plan = Engine::plan_memory(file, options);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    ASSERT_EQ(plan->pools.size(), 2u) << plan->table();
    EXPECT_TRUE(plan->check_fits().ok()) << percent << plan->check_fits().error().message;
    EXPECT_FALSE(plan->pools[0].own_memory);
    EXPECT_NE(plan->table().find("unknown"), std::string::npos) << plan->table();
    const int32_t on_gpu = tiny_dense().layers - std::stoi(plan->pools[1].layers);
    EXPECT_LE(on_gpu, least) << plan->table();
    least = on_gpu;
  }
  options.gpu_memory_bytes = {64 << 10};
  const auto tiny = Engine::plan_memory(file, options);
  ASSERT_TRUE(tiny.ok()) << tiny.error().message;
  EXPECT_EQ(tiny->pools.size(), 1u) << tiny->table();
  EXPECT_FALSE(tiny->pools[0].own_memory) << "the card holds nothing";
  options.gpu_memory_bytes = {whole->predicted_bytes() / 2};
  options.gpu_layers = 99;
  const auto refused = Engine::plan_memory(file, options);
  ASSERT_TRUE(refused.ok());
  EXPECT_FALSE(refused->check_fits().ok()) << "all layers were asked for";
  options.gpu_layers = tiny_dense().layers - 1;
  options.gpu_memory_bytes = {whole->predicted_bytes() / 2};
  const auto too_many = Engine::plan_memory(file, options);
  ASSERT_TRUE(too_many.ok());
  EXPECT_FALSE(too_many->check_fits().ok()) << "as many as asked or an error" << too_many->table();
  options.gpu_layers = 1;
  const auto one = Engine::plan_memory(file, options);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(std::stoi(one->pools[1].layers), tiny_dense().layers - 1);
  options.gpu_memory_bytes.push_back(uint64_t{1} << 30);
  options.device = "cuda:1";
  options.gpu_layers = -1;
  const auto second = Engine::plan_memory(file, options);
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_EQ(second->pools[0].available_bytes, uint64_t{1} << 30);
  options.device = "auto";
  options.gpu_layers = 0;
  const auto none = Engine::plan_memory(file, options);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->pools.size(), 1u);
  EXPECT_FALSE(none->pools[0].own_memory);
}

// A short context is the user's wish, and one side without layers a contradiction.
TEST(LayersOnCpu, LayersStayOnACardThatHoldsThem) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions options = on_planned_card(uint64_t{1} << 30);
  options.context_tokens = 0;
  options.kv_memory_bytes = 256 << 10;
  const auto small_cache = Engine::plan_memory(file, options);
  ASSERT_TRUE(small_cache.ok());
  EXPECT_LT(small_cache->context_tokens, 4096);
  EXPECT_EQ(small_cache->pools.size(), 1u) << small_cache->table();
  options.device = "cpu,cuda:0";
  for (const int32_t layers : {0, tiny_dense().layers, INT32_MAX}) {
    options.gpu_layers = layers;
    const auto plan = Engine::plan_memory(file, options);
    ASSERT_FALSE(plan.ok()) << layers;
    EXPECT_EQ(plan.error().kind, ErrorKind::invalid_argument);
  }
  options.gpu_layers = 2;
  options.split_ratio = {1, 1};
  EXPECT_FALSE(Engine::plan_memory(file, options).ok());
}

}  // namespace
}  // namespace braid
