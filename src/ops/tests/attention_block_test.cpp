// attention_block_test.cpp -- attention of drafters: mutually visible rows, keys without queries.
#include <algorithm>
#include <cmath>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

constexpr int32_t kHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 128;
constexpr int64_t kWidth = kHeads * kHeadDim;

void prepare(World& world) {
  Device::WorkspaceNeeds needs;
  needs.max_sequences = 8;
  needs.max_context = 2048;
  needs.max_heads = kHeads;
  needs.head_dim = kHeadDim;
  needs.max_width = kWidth;
  world.prepare({}, needs);
}

std::vector<float> attended(World& world, const KvLayer& kv, const Batch& batch,
                            const std::vector<float>& q, int32_t window) {
  AttentionParams params;
  params.heads = kHeads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  params.window = window;
  const Tensor o = world.tensor(batch.tokens, kWidth);
  world.ops().attention(o, world.tensor(batch.tokens, kWidth, q), {}, params, kv, batch);
  world.device().synchronize();
  return values_of(o);
}

std::vector<float> row_of(const std::vector<float>& all, int32_t row) {
  return {all.begin() + row * kWidth, all.begin() + (row + 1) * kWidth};
}

TEST(AttentionBlock, RowsSeeWhatTheLastOneSees) {
  const std::vector<std::vector<SequencePlan>> cases = {
      {{0, 16}}, {{20, 16}, {3, 8}}, {{500, 16}, {0, 5}, {130, 16}, {1023, 2}}};
  for (const DeviceCase& device : sequence_devices()) {
    const double limit = device.activation_type == DType::f32 ? 1e-5 : device.tolerance(1e-5, 5);
    for (const std::vector<SequencePlan>& plans : cases) {
      Random random(61);
      const TestBatch rows(plans, random);
      World world(device);
      prepare(world);
      KvLayer kv =
          world.kv_layer({kKvHeads, kHeadDim, KvFormat::f32, KvFormat::f32}, rows.blocks());
      const int64_t elements = kv.blocks * kv.shape.k_block_bytes() / 4;
      for (std::byte* pool : {kv.k, kv.v}) {
        const std::vector<float> values = random.normals(elements);
        std::copy(values.begin(), values.end(), reinterpret_cast<float*>(pool));
      }
      Batch block = rows.batch();
      std::vector<int32_t> position;
      const auto last_of = [&](int32_t t) {
        const int32_t s = rows.batch().sequence[t];
        return rows.batch().first_row[s] + rows.batch().rows[s] - 1;
      };
      for (int32_t t = 0; t < block.tokens; ++t)
        position.push_back(rows.batch().position[last_of(t)]);
      block.position = position.data();
      const std::vector<float> q = random.normals(rows.tokens() * kWidth);
      for (const int32_t window : {0, 40}) {
        const std::vector<float> together = attended(world, kv, block, q, window);
        for (int32_t t = 0; t < block.tokens; ++t) {
          std::vector<float> moved = q;
          std::copy_n(q.begin() + t * kWidth, kWidth, moved.begin() + last_of(t) * kWidth);
          const std::vector<float> alone = attended(world, kv, rows.batch(), moved, window);
          expect_close(
              row_of(together, t), row_of(alone, last_of(t)), limit, limit,
              device.name + " window " + std::to_string(window) + " row " + std::to_string(t));
        }
      }
    }
  }
}

TEST(AttentionBlock, KeysAreStoredWithoutQueries) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(62);
    const TestBatch rows({{3, 5}, {40, 1, {-1, 0}}, {0, 1}}, random);
    World world(device);
    prepare(world);
    const Tensor k = world.tensor(rows.tokens(), kKvHeads * kHeadDim,
                                  random.normals(rows.tokens() * kKvHeads * kHeadDim));
    const Tensor v = world.tensor(rows.tokens(), kKvHeads * kHeadDim,
                                  random.normals(rows.tokens() * kKvHeads * kHeadDim));
    const Tensor q = world.tensor(rows.tokens(), kWidth);
    const Tensor qg = world.tensor(rows.tokens(), kWidth, random.normals(rows.tokens() * kWidth));
    const Tensor table = world.tensor(rows.tokens(), kHeadDim);
    world.ops().rope_table(table, {kHeadDim, 1e6}, rows.batch());
    const AttentionWeights w{world.array(random.normals(kHeadDim)),
                             world.array(random.normals(kHeadDim)), 1e-6f};
    AttentionParams params;
    const KvShape shape{kKvHeads, kHeadDim, KvFormat::f16, KvFormat::f16};
    std::vector<std::byte> stored[2];
    for (const bool queries : {false, true}) {
      const KvLayer kv = world.kv_layer(shape, rows.blocks());
      params.heads = queries ? kHeads : 0;
      world.ops().qk_norm_rope_store(queries ? q : Tensor{}, queries ? qg : Tensor{}, k, v, table,
                                     w, params, kv, rows.batch());
      world.device().synchronize();
      stored[queries].assign(kv.k, kv.k + kv.blocks * shape.k_block_bytes());
      stored[queries].insert(stored[queries].end(), kv.v, kv.v + kv.blocks * shape.v_block_bytes());
    }
    EXPECT_TRUE(stored[0] == stored[1]) << device.name;
    EXPECT_TRUE(std::any_of(stored[0].begin(), stored[0].end(),
                            [](std::byte b) { return b != std::byte{0}; }));
  }
}

}  // namespace
}  // namespace braid
