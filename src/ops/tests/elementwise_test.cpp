// elementwise_test.cpp -- norms, rotations and row copies on every device.
#include <cmath>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

// [y | residual]
std::vector<float> normed(const DeviceCase& device, int64_t width, bool with_x,
                          const std::vector<int64_t>& cuts) {
  Random random(static_cast<uint64_t>(width) * 2 + with_x);
  World world(device);
  world.prepare({}, {.max_tokens = 128, .max_width = width, .model_width = width});
  const float* weight = world.array(random.normals(width));
  std::vector<float> y;
  std::vector<float> sums;
  for (int64_t rows : cuts) {
    const Tensor out = world.tensor(rows, width);
    const Tensor residual = world.tensor(rows, width, random.normals(rows * width, 3.0f));
    const std::vector<float> added = random.normals(rows * width);
    const Tensor x = with_x ? world.tensor(rows, width, added) : Tensor{};
    world.ops().add_norm(out, residual, x, weight, 1e-6f);
    world.device().synchronize();
    for (float v : values_of(out)) y.push_back(v);
    for (float v : values_of(residual)) sums.push_back(v);
  }
  y.insert(y.end(), sums.begin(), sums.end());
  return y;
}

TEST(AddNorm, AgreesWithTheReference) {
  for (int64_t width : {1, 7, 32, 100, 384, 1000, 5120}) {
    for (bool with_x : {false, true}) {
      for (const DeviceCase& device : sequence_devices()) {
        const std::vector<int64_t> cuts = {1, 5, 40};
        const std::vector<float> actual = normed(device, width, with_x, cuts);
        const std::vector<float> expected = normed(reference_for(device), width, with_x, cuts);
        // f16 has no smaller numbers
        const double smallest = device.activation_type == DType::f32 ? 1e-30 : 1e-7;
        expect_close(actual, expected, smallest, device.tolerance(1e-6),
                     device.name + " width " + std::to_string(width));
        for (const DeviceCase& other : other_thread_counts(device)) {
          expect_same(normed(other, width, with_x, cuts), actual, other.name);
        }
      }
    }
  }
}

TEST(AddNorm, DividesTheSumByItsRootMeanSquare) {
  for (const DeviceCase& device : sequence_devices()) {
    World world(device);
    world.prepare({}, {.max_width = 4, .model_width = 4});
    const Tensor y = world.tensor(1, 4);
    const Tensor residual = world.tensor(1, 4, {1.0f, 2.0f, -2.0f, 4.0f});
    const float* weight = world.array({1.0f, 2.0f, 1.0f, 0.5f});
    world.ops().add_norm(y, residual, world.tensor(1, 4, {0.0f, -1.0f, 1.0f, 1.0f}), weight, 2.0f);
    world.device().synchronize();
    expect_same(values_of(residual), {1.0f, 1.0f, -1.0f, 5.0f}, device.name);
    expect_close(values_of(y), {1.0f / 3, 2.0f / 3, -1.0f / 3, 2.5f / 3}, 0, device.tolerance(2e-7),
                 device.name);
  }
}

#if defined(BRAID_COUNT_CLAMPS)
TEST(AddNorm, CountsWhatDoesNotFit) {
  for (const DeviceCase& device : sequence_devices()) {
    if (device.activation_type != DType::f16) continue;
    World world(device);
    world.prepare({}, {.max_width = 4, .model_width = 4});
    const Tensor y = world.tensor(1, 4);
    const Tensor residual = world.tensor(1, 4, {1.0f, -1.0f, 1.0f, 1.0f});
    const float* weight = world.array({1e6f, 1e6f, 1.0f, 60000.0f});
    const uint64_t before = world.device().clamped();
    world.ops().add_norm(y, residual, world.tensor(1, 4, {0.0f, 0.0f, 0.0f, 0.0f}), weight, 0.0f);
    world.device().synchronize();
    expect_same(values_of(y), {65504.0f, -65504.0f, 1.0f, 60000.0f}, device.name);
    EXPECT_EQ(world.device().clamped() - before, 2u) << device.name;
  }
}
#endif

TEST(AddNorm, GivesARowTheSameBytesInAnyCompany) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(5);
    constexpr int64_t kWidth = 333;
    World world(device);
    world.prepare({}, {.max_tokens = 128, .max_width = kWidth, .model_width = kWidth});
    const float* weight = world.array(random.normals(kWidth));
    const std::vector<float> rows = random.normals(100 * kWidth);
    const Tensor residual = world.tensor(100, kWidth, rows);
    const Tensor whole = world.tensor(100, kWidth);
    world.ops().add_norm(whole, residual, {}, weight, 1e-5f);
    world.device().synchronize();
    const std::vector<float> expected = values_of(whole);
    for (int64_t t : {0, 1, 50, 99}) {
      const Tensor one = world.tensor(1, kWidth);
      const Tensor row =
          world.tensor(1, kWidth, {rows.begin() + t * kWidth, rows.begin() + (t + 1) * kWidth});
      world.ops().add_norm(one, row, {}, weight, 1e-5f);
      world.device().synchronize();
      expect_same(values_of(one),
                  {expected.begin() + t * kWidth, expected.begin() + (t + 1) * kWidth},
                  device.name);
    }
  }
}

TEST(RopeTable, HoldsCosAndSinOfEveryPair) {
  for (const DeviceCase& device : sequence_devices()) {
    for (int32_t dims : {2, 32, 64, 128}) {
      Random random(11);
      World world(device);
      world.prepare({}, {.max_tokens = 64, .head_dim = 128});
      TestBatch rows({{0, 3}, {100000, 2}, {260000, 1, {-1, 0, 0, -1}}}, random);
      const RopeParams rope{dims, 1e7};
      const Tensor table = world.tensor(rows.tokens(), dims);
      world.ops().rope_table(table, rope, rows.batch());
      world.device().synchronize();
      for (int32_t t = 0; t < rows.tokens(); ++t) {
        for (int32_t i = 0; i < dims / 2; ++i) {
          const double angle = rows.batch().position[t] * std::pow(1e7, -2.0 * i / dims);
          ASSERT_NEAR(table.f32(t)[2 * i], std::cos(angle), 1e-7) << device.name << " pair " << i;
          ASSERT_NEAR(table.f32(t)[2 * i + 1], std::sin(angle), 1e-7)
              << device.name << " pair " << i;
        }
      }
    }
  }
}

// Laguna's full layers: pair 5 is the last with its own frequency, pair 16 the first divided one.
TEST(RopeTable, StretchesSlowPairsAsYarnSays) {
  RopeParams rope{64, 5e5};
  EXPECT_NEAR(rope_frequency(rope, 1), 0.66360124, 1e-8);
  rope.factor = 32;
  rope.original_context = 4096;
  rope.beta_fast = 64;
  rope.magnitude = 1.34657359;
  EXPECT_NEAR(rope_frequency(rope, 10), 0.00926820, 1e-8);
  EXPECT_EQ(rope_frequency(rope, 5), std::pow(5e5, -10.0 / 64));
  EXPECT_NE(rope_frequency(rope, 6), std::pow(5e5, -12.0 / 64));
  EXPECT_NEAR(rope_frequency(rope, 16), std::pow(5e5, -32.0 / 64) / 32, 1e-18);
  const RopeParams linear{64, 1e4, 4.0};
  for (const DeviceCase& device : sequence_devices()) {
    Random random(11);
    World world(device);
    world.prepare({}, {.max_tokens = 64, .head_dim = 128});
    TestBatch rows({{0, 3}, {100000, 2}, {260000, 1}}, random);
    for (const RopeParams& params : {rope, linear, rope}) {
      const Tensor table = world.tensor(rows.tokens(), 64);
      world.ops().rope_table(table, params, rows.batch());
      world.device().synchronize();
      for (int32_t t = 0; t < rows.tokens(); ++t) {
        for (int32_t i = 0; i < 32; ++i) {
          const double angle = rows.batch().position[t] * rope_frequency(params, i);
          ASSERT_NEAR(table.f32(t)[2 * i], params.magnitude * std::cos(angle), 2e-7)
              << device.name << " pair " << i;
          ASSERT_NEAR(table.f32(t)[2 * i + 1], params.magnitude * std::sin(angle), 2e-7)
              << device.name;
        }
      }
    }
  }
}

TEST(RopeTable, HasThePublishedFrequencies) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(11);
    World world(device);
    world.prepare({}, {.max_tokens = 64, .head_dim = 128});
    TestBatch rows({{1, 1}}, random);
    const Tensor table = world.tensor(1, 64);
    world.ops().rope_table(table, {64, 1e7}, rows.batch());
    world.device().synchronize();
    EXPECT_NEAR(std::atan2(table.f32()[3], table.f32()[2]), 0.60429639, 1e-7);
    EXPECT_NEAR(std::asin(table.f32()[33]), 3.1622777e-4, 1e-10);
    EXPECT_NEAR(std::asin(table.f32()[63]), 1.65481710e-7, 1e-13);
  }
}

TEST(GatherRows, CopiesBytes) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(13);
    World world(device);
    world.prepare({}, {.max_tokens = 64});
    const std::vector<float> x = random.normals(20 * 77);
    const Tensor source = world.tensor(20, 77, x);
    const Tensor y = world.tensor(4, 77);
    const int32_t rows[] = {0, 7, 7, 19};
    world.ops().gather_rows(y, source, rows, 4);
    world.device().synchronize();
    std::vector<float> expected;
    for (int32_t row : rows)
      expected.insert(expected.end(), x.begin() + row * 77, x.begin() + (row + 1) * 77);
    expect_same(values_of(y), expected, device.name);
  }
}

TEST(GatherRows, CopiesAllRowsBesideOthers) {
  for (const DeviceCase& device : sequence_devices()) {
    World world(device);
    world.prepare({}, {.max_tokens = 64});
    std::vector<float> x(9 * 77);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 8;  // exact in 16 bits
    const Tensor source = world.tensor(9, 77, x);
    const Tensor wide = world.tensor(9, 200, std::vector<float>(9 * 200, -1.0f));
    const Tensor y{wide.f32() + 100, DType::f32, 9, 77, 200};
    world.ops().gather_rows(y, source, nullptr, 9);
    world.device().synchronize();
    expect_same(values_of(y), x, device.name);
    for (int64_t row = 0; row < 9; ++row) {
      EXPECT_EQ(wide.f32(row)[99], -1.0f) << device.name;
      EXPECT_EQ(wide.f32(row)[177], -1.0f) << device.name;
    }
  }
}

}  // namespace
}  // namespace braid
