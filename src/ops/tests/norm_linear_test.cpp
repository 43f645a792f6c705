// norm_linear_test.cpp -- norm and products as one op give the bytes of the two ops.
#include <algorithm>
#include <cmath>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

struct Product {
  GgmlType type;
  int64_t n;
  Tail tail = Tail::store;
  GgmlType up = GgmlType::F32;
};

struct Case {
  int64_t width;
  std::vector<Product> products;
  int64_t apart = 0;  // unused columns between rows
};

Tensor placed(World& world, int64_t rows, int64_t cols, int64_t apart,
              const std::vector<float>& values) {
  Tensor t = world.tensor(rows, cols + apart, std::vector<float>(rows * (cols + apart), -77.0f));
  t.cols = cols;
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(values.data() + row * cols, cols, t.f32(row));
  return t;
}

// [h | y of every product | residual], with the gaps between their rows.
std::vector<float> results(const DeviceCase& device, const Case& c,
                           const std::vector<int64_t>& rows_of_calls, bool together) {
  Random random(static_cast<uint64_t>(c.width * 31 + c.apart));
  World world(device);
  std::vector<std::unique_ptr<TestWeight>> weights;
  std::vector<Weight*> load;
  const auto make = [&](GgmlType type, int64_t n) {
    weights.push_back(random_weight(random, type, n, c.width));
    load.push_back(&weights.back()->weight);
    return load.back();
  };
  std::vector<LinearPart> parts;
  for (const Product& p : c.products) {
    const Weight* w = make(p.type, p.n);
    parts.push_back({w, p.tail == Tail::silu_mul ? make(p.up, p.n) : nullptr, {}, p.tail});
  }
  world.prepare(load, {.max_tokens = 64, .max_width = c.width, .model_width = c.width});
  const float* weight = world.array(random.normals(c.width));
  std::vector<float> out;
  const auto keep = [&](Tensor t) {
    t.cols = t.stride;
    for (float v : values_of(t)) out.push_back(v);
  };
  for (int64_t rows : rows_of_calls) {
    const Tensor residual =
        placed(world, rows, c.width, c.apart, random.normals(rows * c.width, 40.0f));
    const Tensor h =
        placed(world, rows, c.width, c.apart, std::vector<float>(rows * c.width, 1e3f));
    for (LinearPart& p : parts)
      p.y = placed(world, rows, p.w->n, c.apart, random.normals(rows * p.w->n, 0.5f));
    if (together) {
      world.ops().norm_linear(parts, h, residual, weight, 1e-6f);
    } else {
      world.ops().add_norm(h, residual, {}, weight, 1e-6f);
      world.ops().linear(parts, h);
    }
    world.device().synchronize();
    keep(h);
    for (const LinearPart& p : parts) keep(p.y);
    keep(residual);
  }
  return out;
}

void expect_equal(const Case& c, const std::vector<int64_t>& rows) {
  for (const DeviceCase& device : all_devices()) {
    const std::vector<float> together = results(device, c, rows, true);
    ASSERT_TRUE(
        std::all_of(together.begin(), together.end(), [](float v) { return std::isfinite(v); }));
    expect_same(together, results(device, c, rows, false),
                device.name + " width " + std::to_string(c.width));
  }
}

const std::vector<int64_t> kRows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20};

class NormLinearOfType : public ::testing::TestWithParam<GgmlType> {};
TEST_P(NormLinearOfType, GivesTheBytesOfNormThenProducts) {
  const GgmlType type = GetParam();
  expect_equal({256, {{type, 70}}}, kRows);
  expect_equal({768, {{type, 33}, {type, 64, Tail::add}}}, kRows);
  expect_equal({1024, {{type, 90, Tail::silu_mul, type}}}, kRows);
}
INSTANTIATE_TEST_SUITE_P(Types, NormLinearOfType,
                         ::testing::Values(GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q5_K,
                                           GgmlType::IQ4_XS, GgmlType::Q8_0, GgmlType::BF16,
                                           GgmlType::F32),
                         [](const auto& info) { return std::string(type_name(info.param)); });

// In-projections of a layer: several launches may share one input.
TEST(NormLinear, ServesProductsOfSeveralFormats) {
  const std::vector<Product> mixed = {{GgmlType::Q6_K, 100},
                                      {GgmlType::Q4_K, 64, Tail::silu_mul, GgmlType::Q4_K},
                                      {GgmlType::F32, 24},
                                      {GgmlType::Q8_0, 40, Tail::add},
                                      {GgmlType::Q4_K, 31, Tail::silu_mul, GgmlType::Q6_K},
                                      {GgmlType::F32, 24}};
  expect_equal({512, mixed}, kRows);
  expect_equal({512, mixed, 4}, kRows);
  expect_equal(
      {512, {{GgmlType::Q5_K, 100}, {GgmlType::Q6_K, 70}, {GgmlType::Q5_K, 33, Tail::add}}}, kRows);
  expect_equal({512, {{GgmlType::Q5_K, 90, Tail::silu_mul, GgmlType::Q6_K}, {GgmlType::Q4_K, 40}}},
               kRows);
  expect_equal({512, {{GgmlType::Q6_K, 64}, {GgmlType::Q4_K, 70}, {GgmlType::Q5_K, 33}}}, kRows);
  expect_equal({512,
                {{GgmlType::MXFP4, 40},
                 {GgmlType::IQ4_XS, 90, Tail::silu_mul, GgmlType::Q4_0},
                 {GgmlType::Q5_K, 64},
                 {GgmlType::NVFP4, 33, Tail::add}}},
               kRows);
}

TEST(NormLinear, TakesAnyWidthAndStride) {
  for (int64_t apart : {0, 3, 8, 12}) {
    expect_equal({32, {{GgmlType::Q8_0, 17}}, apart}, {1, 3, 8, 9});
    expect_equal({100, {{GgmlType::BF16, 40}, {GgmlType::F32, 5}}, apart}, {1, 2, 4, 8, 11});
    expect_equal({2080, {{GgmlType::Q8_0, 40}}, apart}, {1, 4});
  }
}

// k is split over the blocks of a cluster; a router with few outputs is split more.
TEST(NormLinear, ServesWideModels) {
  expect_equal({5120, {{GgmlType::Q4_K, 320, Tail::silu_mul, GgmlType::Q4_K}}}, {1, 2, 8});
  expect_equal({5120, {{GgmlType::Q6_K, 200}, {GgmlType::Q4_K, 120}, {GgmlType::F32, 48}}}, {1, 3});
  expect_equal({2048, {{GgmlType::F32, 256}}}, {1, 2, 3, 4, 5, 8});
  expect_equal({3080, {{GgmlType::F32, 130}, {GgmlType::F32, 20, Tail::add}}}, {1, 2, 4, 5});
  expect_equal({8704, {{GgmlType::Q4_K, 64}}}, {1, 2});
}

}  // namespace
}  // namespace braid
