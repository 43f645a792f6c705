// fill_test.cpp -- prompts whose cells are copied, for benches (Engine::fill_prompts_from).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/prefix/sequence_cache.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;

using Bytes = std::vector<std::byte>;

constexpr int32_t kFilledFrom = 64;

struct Pools : Observer {
  void attention(int32_t layer, Tensor, const KvLayer& kv, const Batch&) override {
    of_layer[layer] = kv;
  }
  std::map<int32_t, KvLayer> of_layer;
};

Bytes on_host(Engine& engine, const std::byte* from, int64_t bytes) {
  Bytes out(static_cast<size_t>(bytes));
  engine.devices().first().to_host(out.data(), from, out.size());
  engine.devices().first().synchronize();
  return out;
}

// K, then V of a full block: units if sealed, else rows.
Bytes full_block(Engine& engine, const KvLayer& kv, const Sequence& s, size_t index) {
  const bool sealed = static_cast<bool>(kv.cold);
  const int32_t block = s.blocks[sealed ? 0 : kv.group][index];
  const int64_t heads = kv.shape.kv_heads;
  Bytes k = on_host(engine, sealed ? kv.k_unit(block, 0) : kv.k_row(block, 0, 0),
                    sealed ? heads * kv.cold.k_unit_bytes : kv.shape.k_block_bytes());
  const Bytes v = on_host(engine, sealed ? kv.v_unit(block, 0) : kv.v_row(block, 0, 0),
                          sealed ? heads * kv.cold.v_unit_bytes : kv.shape.v_block_bytes());
  k.insert(k.end(), v.begin(), v.end());
  return k;
}

// Poisoned rows (SequenceCache::poison_block) of computed cells that a sequence still holds.
int count_unwritten(Engine& engine, const KvLayer& kv, const Sequence& s) {
  int unwritten = 0;
  const int64_t bytes = kv_row_bytes(kv.shape.k_format, kv.shape.head_dim);
  for (int32_t cell = 0; cell < s.computed_tokens; ++cell) {
    const int32_t block = s.blocks[kv.group][static_cast<size_t>(cell / kBlockTokens)];
    if (block == kGone) continue;
    const Bytes row = on_host(engine, kv.k_row(block, 0, cell % kBlockTokens), bytes);
    unwritten +=
        std::all_of(row.begin(), row.end(), [](std::byte b) { return b == std::byte{0x5b}; });
  }
  return unwritten;
}

EngineOptions options_on(const char* device, const std::string& format) {
  EngineOptions options = on(device);
  options.context_tokens = 1024;
  options.ubatch_tokens = 64;
  options.gap_limit = 0;
  options.hooks.poison_unused = true;
  if (format != "f16") options.k_codec = options.v_codec = *find_kv_codec(format);
  options.kv_tail = {1, 0};
  return options;
}

std::unique_ptr<Engine> engine_of(const GgufFile& file, const EngineOptions& options) {
  auto engine = Engine::create(file, options);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return std::move(engine).value();
}

Request uncached(int32_t tokens, int32_t answer) {
  Request r = greedy(prompt(tokens), answer);
  r.use_cache = false;
  r.top_logprobs = 0;
  return r;
}

class FilledPrompts : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, FilledPrompts, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FilledPrompts, HoldCopiesOfTheirFirstBlocks) {
  const GgufFile file = parsed(demo_bytes());
  for (const char* format : {"f16", "q8_0", "c4"}) {
    SCOPED_TRACE(format);
    const auto engine = engine_of(file, options_on(GetParam(), format));
    Pools pools;
    engine->observe(&pools);
    engine->fill_prompts_from(kFilledFrom);
    Collector sink;
    ASSERT_TRUE(engine->submit(uncached(600, 8), sink).ok());
    while (engine->stats().generated == 0 && engine->step()) engine->check();
    EXPECT_EQ(engine->stats().prompt_rows, 64u + 24u);
    const Sequence& s = *engine->scheduler().running()[0];
    ASSERT_FALSE(pools.of_layer.empty());
    for (const auto& [layer, kv] : pools.of_layer) {
      SCOPED_TRACE(layer);
      const Bytes first[] = {full_block(*engine, kv, s, 0), full_block(*engine, kv, s, 1)};
      EXPECT_NE(first[0], first[1]);
      for (size_t i = 2; i < 576 / kBlockTokens; ++i)
        EXPECT_EQ(full_block(*engine, kv, s, i), first[i % 2]) << "block " << i;
    }
    engine->run_until_idle();
  }
}

struct Way {
  const char* name;
  const char* format;
  int32_t chunk;
  int32_t tail;
  SpecType drafts;
};

TEST_P(FilledPrompts, HoldNumbersWhereverTheyAreReadAndEndAsAlways) {
  const GgufFile file = parsed(demo_bytes());
  for (const Way& way :
       {Way{"f16", "f16", 64, 1, SpecType::none}, Way{"c4", "c4", 64, 1, SpecType::none},
        Way{"pieces of blocks", "f16", 50, 1, SpecType::none},
        Way{"pieces, nothing exact", "c4", 50, 0, SpecType::none},
        Way{"pieces, sealed", "q8_0", 50, 3, SpecType::none},
        Way{"head", "f16", 50, 1, SpecType::mtp}, Way{"head, sealed", "c4", 64, 1, SpecType::mtp},
        Way{"drafter", "c4", 50, 1, SpecType::dflash}}) {
    SCOPED_TRACE(way.name);
    EngineOptions options = options_on(GetParam(), way.format);
    options.max_sequences = 2;
    options.ubatch_tokens = way.chunk;
    options.kv_tail = {way.tail, 0};
    options.spec_type = way.drafts;
    options.spec_always = true;
    if (way.drafts != SpecType::none) options.max_drafts = 12;
    if (way.drafts == SpecType::dflash) options.draft_model = kDemoDrafter;
    const auto engine = engine_of(file, options);
    Pools pools;
    engine->observe(&pools);
    engine->fill_prompts_from(kFilledFrom);
    Collector sink;
    std::vector<RequestId> ids;
    for (int i = 0; i < 2; ++i) ids.push_back(*engine->submit(uncached(601 + 20 * i, 12), sink));
    while (engine->step()) {
      engine->check();
      for (const auto& s : engine->scheduler().running()) {
        EXPECT_NE(s->prompt_tokens() - s->computed_tokens, 1) << "a prompt's last token alone";
        for (const auto& [layer, kv] : pools.of_layer)
          ASSERT_EQ(count_unwritten(*engine, kv, *s), 0)
              << "layer " << layer << ", " << s->computed_tokens;
      }
    }
    EXPECT_LT(engine->stats().prompt_rows, 2u * 4 * 64);
    for (const RequestId id : ids) {
      EXPECT_EQ(sink.answers[id].end.reason, FinishReason::length) << sink.answers[id].end.error;
      EXPECT_EQ(sink.answers[id].tokens.size(), 12u);
      for (const TokenEvent& e : sink.answers[id].events) EXPECT_TRUE(std::isfinite(e.logprob));
    }
  }
}

TEST_P(FilledPrompts, MayHaveWindows) {
  EngineOptions options = on(GetParam());
  options.context_tokens = 1024;
  options.ubatch_tokens = 50;
  options.gap_limit = 0;
  options.hooks.poison_unused = true;
  Machine m(bytes_of(tiny_laguna()), options);
  Pools pools;
  m.engine->observe(&pools);
  m.engine->fill_prompts_from(32);
  const RequestId id = m.submit(uncached(601, 12));
  while (m.engine->step()) {
    m.engine->check();
    for (const auto& s : m.engine->scheduler().running())
      for (const auto& [layer, kv] : pools.of_layer)
        ASSERT_EQ(count_unwritten(*m.engine, kv, *s), 0);
  }
  EXPECT_LE(m.engine->stats().prompt_rows, 2u * 50);
  EXPECT_EQ(m.sink.answers[id].tokens.size(), 12u);
  for (const TokenEvent& e : m.sink.answers[id].events) EXPECT_TRUE(std::isfinite(e.logprob));
}

TEST(SequenceCache, MovesAStateToAnotherPosition) {
  const std::vector<std::byte> bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  const auto model = Model::open(file);
  ASSERT_TRUE(model.ok());
  Devices devices(make_ref_device({}));
  CacheSizes sizes;
  sizes.blocks[0] = 1;
  sizes.slots = 2;
  sizes.stages[0].ring.uncertain = 3;
  sizes.hidden_cells = 4;
  SequenceCache cache;
  ASSERT_TRUE(cache.allocate(devices, (*model)->config(), sizes).ok());
  const SequenceMemory memory = cache.memory();
  ASSERT_FALSE(memory.delta.empty());
  for (const DeltaLayer& layer : memory.delta) {
    layer.state(1, 0)[0] = 5;
    for (int32_t taps = 1; taps < layer.shape.conv_width; ++taps)
      layer.conv_row(1, kFilledFrom - taps)[0] = static_cast<float>(taps);
  }
  memory.hidden.row(1, kFilledFrom - 1)[0] = 7;
  cache.move_state(1, kFilledFrom, 150);
  for (const DeltaLayer& layer : memory.delta) {
    EXPECT_EQ(layer.state(1, 0)[0], 5);
    for (int32_t head = 0; head < layer.shape.value_heads; ++head) {
      EXPECT_EQ(layer.folded(1)[head], 150);
      EXPECT_EQ(layer.folded(0)[head], 0);
    }
    for (int32_t taps = 1; taps < layer.shape.conv_width; ++taps)
      EXPECT_EQ(layer.conv_row(1, 150 - taps)[0], static_cast<float>(taps));
  }
  EXPECT_EQ(memory.hidden.row(1, 149)[0], 7);
}

// Prompts that others may find or that are scored.
TEST(FilledPromptsAreBenches, OthersAreComputed) {
  const GgufFile file = parsed(demo_bytes());
  const auto engine = engine_of(file, options_on("cpu", "f16"));
  engine->fill_prompts_from(kFilledFrom);
  Collector sink;
  int scores = 0;
  Request scored = uncached(400, 0);
  scored.score = [&](int32_t, std::span<const float>) { ++scores; };
  ASSERT_TRUE(engine->submit(greedy(prompt(300), 1), sink).ok());
  engine->run_until_idle();
  EXPECT_EQ(engine->stats().prompt_rows, 300u);
  ASSERT_TRUE(engine->submit(std::move(scored), sink).ok());
  engine->run_until_idle();
  EXPECT_EQ(engine->stats().prompt_rows, 700u);
  EXPECT_EQ(scores, 400);
}

}  // namespace
}  // namespace braid
