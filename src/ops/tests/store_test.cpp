// store_test.cpp -- content of cells, within the rounding of their format, and copies.
#include "ops/tests/cells_world_test.h"

namespace braid {
namespace {

using namespace test;

struct Stored {
  std::vector<float> q;
  std::vector<float> k;  // every row of the pool, decoded
  std::vector<float> v;
};

Stored stored(const DeviceCase& device, const Shape& shape, const std::vector<SequencePlan>& plans,
              uint64_t seed) {
  Random random(seed);
  const TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 0, random);
  World& world = cells.world;
  const int32_t tokens = rows.tokens();
  const Tensor k =
      world.tensor(tokens, shape.kv_width(), random.normals(tokens * shape.kv_width(), 0.3f));
  const Tensor v =
      world.tensor(tokens, shape.kv_width(), random.normals(tokens * shape.kv_width()));
  const Tensor table = world.tensor(tokens, shape.rope_dims);
  world.ops().rope_table(table, {shape.rope_dims, 1e6}, rows.batch());
  const AttentionWeights w{world.array(random.normals(shape.head_dim)),
                           world.array(random.normals(shape.head_dim)), 1e-6f};
  Tensor q, qg;
  if (shape.heads > 0) {
    q = world.tensor(tokens, shape.width());
    qg = world.tensor(tokens, shape.query_width(),
                      random.normals(tokens * shape.query_width(), 2.0f));
  }
  world.ops().qk_norm_rope_store(q, qg, k, v, table, w, shape.params(), cells.kv, rows.batch());
  world.device().synchronize();
  Stored result{values_of(q), {}, {}};
  for (int32_t b = 0; b < cells.kv.blocks; ++b) {
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      for (int32_t c = 0; c < kBlockTokens; ++c) {
        for (float x : decode(shape.k, cells.kv.k_row(b, h, c), shape.head_dim))
          result.k.push_back(x);
        for (float x : decode(shape.v, cells.kv.v_row(b, h, c), shape.head_dim))
          result.v.push_back(x);
      }
    }
  }
  return result;
}

// Compares the whole decoded pools: unowned cells keep their bytes.
TEST(QkNormRopeStore, AgreesWithTheReference) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 500;
    for (const Shape& shape : kCellShapes) {
      Random random(++seed);
      const auto plans = random_plans(random, 4, 100, 40, 10);
      const Stored actual = stored(device, shape, plans, seed);
      const Stored expected = stored(reference_for(device), shape, plans, seed);
      const double ulp = shape.k == KvFormat::f32   ? 2e-6
                         : shape.k == KvFormat::f16 ? 0x1p-10
                                                    : 0x1p-7;
      expect_close(actual.q, expected.q, 2e-6, device.tolerance(2e-6), device.name + " q");
      expect_close(actual.k, expected.k, 2e-6, ulp, device.name + " k");
      expect_same(actual.v, expected.v, device.name + " v");
      size_t different = 0;
      for (size_t i = 0; i < actual.k.size(); ++i) different += actual.k[i] != expected.k[i];
      if (shape.k != KvFormat::f32) {
        EXPECT_LE(different, actual.k.size() / 50)
            << device.name << " keys are not rounded to nearest";
      }
      for (const DeviceCase& other : other_thread_counts(device)) {
        const Stored same = stored(other, shape, plans, seed);
        expect_same(same.q, actual.q, other.name);
        expect_same(same.k, actual.k, other.name);
        expect_same(same.v, actual.v, other.name);
      }
    }
  }
}

TEST(QkNormRopeStore, PositionZeroIsNotRotated) {
  for (const DeviceCase& device : exact_devices()) {
    World world(device);
    Device::WorkspaceNeeds needs;
    needs.max_heads = 1;
    needs.head_dim = 64;
    world.prepare({}, needs);
    Random random(3);
    const TestBatch rows({{0, 1}}, random);
    const Shape shape{
        .heads = 1, .kv_heads = 1, .k = KvFormat::f32, .v = KvFormat::f32, .gate = {}};
    const KvLayer kv = world.kv_layer(shape.kv(), rows.blocks());
    const Tensor table = world.tensor(1, 64);
    world.ops().rope_table(table, {64, 1e4}, rows.batch());
    const Tensor q = world.tensor(1, 64);
    const Tensor x = world.tensor(1, 64, random.normals(64));
    const float* ones = world.array(std::vector<float>(64, 1.0f));
    world.ops().qk_norm_rope_store(q, x, x, x, table, {ones, ones, 0.0f}, shape.params(), kv,
                                   rows.batch());
    world.device().synchronize();
    double square = 0;
    for (float v : values_of(x)) square += double{v} * v;
    std::vector<float> expected = values_of(x);
    for (float& v : expected) v = static_cast<float>(v / std::sqrt(square / 64));
    expect_close(values_of(q), expected, 0, 1e-6, device.name);
    expect_same(decode(KvFormat::f32, kv.k_row(rows.batch().block_table[0], 0, 0), 64),
                values_of(q), device.name);
  }
}

TEST(QkNormRopeStore, RotatesHalvesOfTheFirstDims) {
  for (const DeviceCase& device : exact_devices()) {
    Random random(5);
    const Shape shape{.heads = 2,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .rope_dims = 32,
                      .k = KvFormat::f32,
                      .v = KvFormat::f32};
    const TestBatch rows({{1000, 1}}, random);
    Cells cells(device, shape, rows, 0, random);
    World& world = cells.world;
    const Tensor table = world.tensor(1, 32);
    world.ops().rope_table(table, {32, 1e4}, rows.batch());
    const Tensor q = world.tensor(1, 128);
    const Tensor qg = world.tensor(1, 256, random.normals(256));
    const Tensor k = world.tensor(1, 64, random.normals(64));
    const std::vector<float> norm = random.normals(64);
    const float* weight = world.array(norm);
    world.ops().qk_norm_rope_store(q, qg, k, k, table, {weight, weight, 1e-6f}, shape.params(),
                                   cells.kv, rows.batch());
    world.device().synchronize();
    auto expected = [&](const float* x) {
      double square = 0;
      for (int i = 0; i < 64; ++i) square += double{x[i]} * x[i];
      std::vector<double> y;
      for (int i = 0; i < 64; ++i) y.push_back(x[i] / std::sqrt(square / 64 + 1e-6) * norm[i]);
      std::vector<float> out(y.begin(), y.end());
      for (int i = 0; i < 16; ++i) {
        const double angle = 1000 * std::pow(1e4, -2.0 * i / 32);
        out[i] = static_cast<float>(y[i] * std::cos(angle) - y[i + 16] * std::sin(angle));
        out[i + 16] = static_cast<float>(y[i] * std::sin(angle) + y[i + 16] * std::cos(angle));
      }
      return out;
    };
    const std::vector<float> actual = values_of(q);
    expect_close({actual.begin(), actual.begin() + 64}, expected(qg.f32()), 1e-6, 1e-6,
                 device.name);
    expect_close({actual.begin() + 64, actual.end()}, expected(qg.f32() + 128), 1e-6, 1e-6,
                 device.name);
    const std::vector<float> key = decode(KvFormat::f32, cells.k_row(rows.batch(), 0, 1000, 0), 64);
    expect_close(key, expected(k.f32()), 1e-6, 1e-6, device.name);
  }
}

struct Attended {
  std::vector<float> o;
  std::vector<std::byte> cells;
};
Attended attended_with_store(const DeviceCase& device, const Shape& shape,
                             const std::vector<SequencePlan>& plans, uint64_t seed, bool together) {
  Random random(seed);
  TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 1 << 30, random);
  if (shape.window > 0) rows.forget_behind(shape.window);
  World& world = cells.world;
  const int32_t tokens = rows.tokens();
  const auto inputs = [&](int64_t width, float scale) {
    return world.tensor(tokens, width, random.normals(tokens * width, scale));
  };
  const Tensor o =
      world.tensor(tokens, shape.width(), std::vector<float>(size_t(tokens * shape.width()), NAN));
  const Tensor q = world.tensor(tokens, shape.width());
  const Tensor qg = inputs(shape.query_width(), 2.0f);
  const Tensor k = inputs(shape.kv_width(), 0.3f);
  const Tensor v = inputs(shape.kv_width(), 1.0f);
  Tensor gates = qg;
  if (!shape.gate.joint())
    gates = shape.gate_width() > 0 ? inputs(shape.gate_width(), 2.0f) : Tensor{};
  const Tensor table = world.tensor(tokens, shape.rope_dims);
  world.ops().rope_table(table, {shape.rope_dims, 1e6}, rows.batch());
  const AttentionWeights w{world.array(random.normals(shape.head_dim)),
                           world.array(random.normals(shape.head_dim)), 1e-6f};
  // The first step must not leave anything.
  for (int step = 0; step < 2; ++step) {
    if (together) {
      world.ops().store_attend(o, q, qg, k, v, gates, table, w, shape.params(), cells.kv,
                               rows.batch());
    } else {
      world.ops().qk_norm_rope_store(q, qg, k, v, table, w, shape.params(), cells.kv, rows.batch());
      world.ops().attention(o, q, gates, shape.params(), cells.kv, rows.batch());
    }
    world.device().synchronize();
  }
  return {values_of(o), cells.bytes()};
}

TEST(StoreAttend, GivesTheBytesOfTheTwoOps) {
  const Shape shapes[] = {
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .rope_dims = 64},
      {.heads = 16,
       .kv_heads = 2,
       .head_dim = 256,
       .rope_dims = 64,
       .k = KvFormat::bf16,
       .v = KvFormat::bf16},
      {.heads = 10, .kv_heads = 1, .head_dim = 128, .rope_dims = 128, .gate = {}},
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .rope_dims = 64, .window = 300},
      {.heads = 4, .kv_heads = 2, .head_dim = 64, .k = KvFormat::f32, .v = KvFormat::f32},
      {.heads = 12, .kv_heads = 2, .head_dim = 128, .rope_dims = 64, .gate = kSoftplusHead},
      {.heads = 18,
       .kv_heads = 2,
       .head_dim = 128,
       .rope_dims = 128,
       .window = 300,
       .gate = kSoftplusElement},
      {.heads = 72,
       .kv_heads = 8,
       .head_dim = 128,
       .rope_dims = 128,
       .window = 512,
       .gate = kSoftplusHead},
  };
  Random random(699);
  const std::vector<std::vector<SequencePlan>> cases = {
      {{149, 1}},
      {{0, 1},
       {1, 1},
       {15, 1},
       {16, 1},
       {31, 1},
       {32, 1},
       {0, 0},
       {127, 1},
       {128, 1},
       {149, 1},
       {255, 1},
       {256, 1}},
      {{2100, 1}, {70, 0, {-1}}, {600, 1}, {0, 1}, {5000, 1}},
      {{3, 1}, {40, 7}, {300, 1, {-1, 0}}, {513, 1}},
      {{149, 1, chain(7)}},
      {{2043, 1, chain(7)}, {0, 1, {-1}}, {1000, 1}, {125, 2, {-1, -1, 0}}, {383, 0, chain(3)}},
      {{2040, 1, {-1, 0, 1, 2, 0, 1, 2, -1, 7, 8, 9, -1, 3, 3, 12, 5, 5, 16, 17, 18, 19}},
       {30, 1, random_tree(31, random)}},
      {{600, 1, random_tree(40, random)}, {600, 1, {-1}}},
  };
  for (const DeviceCase& device : sequence_devices()) {
    for (const Shape& shape : shapes) {
      for (size_t i = 0; i < cases.size(); ++i) {
        const Attended one = attended_with_store(device, shape, cases[i], 700 + i, true);
        const Attended two = attended_with_store(device, shape, cases[i], 700 + i, false);
        const std::string name = device.name + " heads " + std::to_string(shape.heads) +
                                 " window " + std::to_string(shape.window) + " case " +
                                 std::to_string(i);
        expect_same(one.o, two.o, name);
        EXPECT_TRUE(one.cells == two.cells) << name;
        for (float x : one.o) ASSERT_TRUE(std::isfinite(x)) << name;
      }
    }
  }
}

TEST(KvMove, CopiesTheCellsOfAcceptedRows) {
  for (const Shape& shape : kCellShapes) {
    for (const DeviceCase& device : sequence_devices()) {
      Random random(43);
      const TestBatch rows({{50, 2, random_tree(30, random)}, {3, 1, chain(5)}}, random);
      Cells cells(device, shape, rows, 1 << 30, random);
      Cells expected(reference_device(), shape, rows, 0, random);
      std::memcpy(expected.kv.k, cells.kv.k, cells.kv.blocks * cells.kv.shape.k_block_bytes());
      std::memcpy(expected.kv.v, cells.kv.v, cells.kv.blocks * cells.kv.shape.v_block_bytes());
      // Only later moves may write to a source: each source is above all targets so far.
      const CellMove moves[] = {{0, 54, 52}, {0, 60, 53}, {0, 61, 54},
                                {0, 81, 55}, {1, 6, 5},   {1, 8, 6}};
      for (const CellMove& move : moves) {
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          std::memcpy(expected.k_row(rows.batch(), move.sequence, move.to, h),
                      expected.k_row(rows.batch(), move.sequence, move.from, h),
                      kv_row_bytes(shape.k, shape.head_dim));
          std::memcpy(expected.v_row(rows.batch(), move.sequence, move.to, h),
                      expected.v_row(rows.batch(), move.sequence, move.from, h),
                      kv_row_bytes(shape.v, shape.head_dim));
        }
      }
      cells.world.ops().kv_move(cells.kv, moves, rows.batch());
      cells.world.device().synchronize();
      EXPECT_TRUE(cells.bytes() == expected.bytes()) << device.name;
    }
  }
}

TEST(BlockCopy, CopiesOneBlockOfKeysAndValues) {
  for (const Shape& shape : kCellShapes) {
    for (const DeviceCase& device : sequence_devices()) {
      Random random(47);
      const TestBatch rows({{90, 1}}, random);
      Cells cells(device, shape, rows, 1 << 30, random);
      const int32_t src = rows.batch().block_table[1];
      const int32_t dst = rows.batch().block_table[2];
      std::vector<std::byte> expected = cells.bytes();
      const int64_t k_bytes = cells.kv.shape.k_block_bytes();
      const int64_t v_bytes = cells.kv.shape.v_block_bytes();
      std::memcpy(expected.data() + dst * k_bytes, cells.kv.k + src * k_bytes, k_bytes);
      std::memcpy(expected.data() + cells.kv.blocks * k_bytes + dst * v_bytes,
                  cells.kv.v + src * v_bytes, v_bytes);
      cells.world.ops().block_copy(cells.kv, dst, src);
      cells.world.device().synchronize();
      EXPECT_TRUE(cells.bytes() == expected) << device.name;
    }
  }
}

}  // namespace
}  // namespace braid
