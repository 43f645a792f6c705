// linear_test.cpp -- products with weights of every type, and row look-ups, on every device.
// Some devices round activations per 32 values. Inputs that such a format holds exactly (codes
// times a power of two, the largest code in every 32) allow one tight tolerance relative to sum |w
// x|. Ordinary inputs then bound the rounding itself.
#include <cmath>
#include <cstring>

#include "gguf/block_layouts.h"
#include "gguf/half.h"
#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

constexpr GgmlType kTypes[] = {
    GgmlType::F32,   GgmlType::F16,    GgmlType::BF16,    GgmlType::Q8_0,   GgmlType::Q4_0,
    GgmlType::Q4_1,  GgmlType::Q5_0,   GgmlType::Q5_1,    GgmlType::Q4_K,   GgmlType::Q5_K,
    GgmlType::Q6_K,  GgmlType::IQ4_NL, GgmlType::IQ4_XS,  GgmlType::MXFP4,  GgmlType::NVFP4,
    GgmlType::Q2_K,  GgmlType::Q3_K,   GgmlType::IQ2_XXS, GgmlType::IQ2_XS, GgmlType::IQ3_XXS,
    GgmlType::IQ1_S, GgmlType::IQ3_S,  GgmlType::IQ2_S,   GgmlType::IQ1_M,  GgmlType::TQ1_0,
    GgmlType::TQ2_0, GgmlType::Q1_0,   GgmlType::Q2_0};

bool is_float(GgmlType type) { return block_elems(type) == 1; }

Activations kept(const DeviceCase& device, GgmlType type) {
  return is_float(type) ? Activations::f32 : device.activations;
}

std::vector<float> exact_inputs(Random& random, int64_t rows, int64_t k, Activations activations) {
  if (activations == Activations::f32) {
    // Numbers that f16 holds, for GPUs.
    std::vector<float> x = random.normals(rows * k);
    for (float& v : x) v = f16_to_f32(f32_to_f16(v));
    return x;
  }
  const int64_t most = activations == Activations::i8 ? 127 : 32512;
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t block = 0; block < x.size(); block += 32) {
    const float unit = std::ldexp(1.0f, static_cast<int>(random.between(-4, 2))) / 64.0f;
    const auto largest = static_cast<size_t>(random.between(0, 31));
    for (size_t i = 0; i < 32; ++i) {
      const int64_t code =
          i == largest ? (random.next() & 1 ? most : -most) : random.between(-most, most);
      x[block + i] = unit * static_cast<float>(code);
    }
  }
  return x;
}

std::vector<float> multiply(const DeviceCase& device, const TestWeight& w,
                            const std::vector<float>& x, const std::vector<int64_t>& cuts) {
  World world(device);
  Weight weight = w.weight;
  world.prepare({&weight}, {.max_tokens = 128, .max_width = weight.k});
  std::vector<float> y;
  size_t at = 0;
  for (int64_t rows : cuts) {
    const auto count = static_cast<size_t>(rows * weight.k);
    const Tensor input = world.tensor(rows, weight.k, {x.begin() + at, x.begin() + at + count});
    const Tensor output = world.tensor(rows, weight.n);
    const LinearPart part{&weight, nullptr, output, Tail::store};
    world.ops().linear({&part, 1}, input);
    world.device().synchronize();
    const std::vector<float> values = values_of(output);
    y.insert(y.end(), values.begin(), values.end());
    at += count;
  }
  return y;
}

struct Exact {
  double value = 0;
  double magnitude = 0;  // sum |w x|
  double square = 0;     // sum (w x)^2
};
Exact exact_product(const TestWeight& w, int64_t row, const float* x) {
  Exact sum;
  const float* values = w.values.data() + row * w.weight.k;
  const double scale = w.scales.empty() ? 1.0 : w.scales[0];
  for (int64_t i = 0; i < w.weight.k; ++i) {
    const double term = scale * values[i] * x[i];
    sum.value += term;
    sum.magnitude += std::fabs(term);
    sum.square += term * term;
  }
  return sum;
}

// |y - x W^T| <= tolerance * sum |w x|. A GPU rounds weights to f16 (two or three times where a
// scale and a minimum meet): independent errors of 2^-11, so the measure is sqrt(sum (w x)^2).
// Weights that f16 pairs hold keep the tight limit.
void expect_product(const std::vector<float>& y, const TestWeight& w, const std::vector<float>& x,
                    double tolerance, const DeviceCase& device, const std::string& note = "") {
  const std::string what = device.name + note;
  const bool rounds_weights = device.gpu && !is_float(w.weight.type);
  if (rounds_weights) tolerance = 4e-3;
  const int64_t rows = std::ssize(x) / w.weight.k;
  ASSERT_EQ(std::ssize(y), rows * w.weight.n);
  double worst = 0;
  int64_t worst_at = 0;
  for (int64_t i = 0; i < rows * w.weight.n; ++i) {
    const Exact exact = exact_product(w, i % w.weight.n, x.data() + i / w.weight.n * w.weight.k);
    const double size = rounds_weights ? std::sqrt(exact.square) : exact.magnitude;
    const double error = std::fabs(y[i] - exact.value) / (size + 1e-30);
    if (!(error <= worst)) {
      worst = std::isnan(error) ? INFINITY : error;
      worst_at = i;
    }
  }
  EXPECT_LE(worst, tolerance) << what << " " << w.weight.name << " with " << rows
                              << " rows, worst at row " << worst_at / w.weight.n << " output "
                              << worst_at % w.weight.n;
}

std::string name_of(const ::testing::TestParamInfo<GgmlType>& info) {
  return std::string(type_name(info.param));
}

class LinearOfType : public ::testing::TestWithParam<GgmlType> {};
INSTANTIATE_TEST_SUITE_P(Types, LinearOfType, ::testing::ValuesIn(kTypes), name_of);

int64_t random_width(Random& random, GgmlType type, int64_t most) {
  const int64_t unit = std::max<int64_t>(block_elems(type), 32);
  return unit * random.between(1, std::max<int64_t>(most / unit, 1));
}

TEST_P(LinearOfType, AgreesWithDecodedWeightsOnRaggedShapes) {
  for (const DeviceCase& device : all_devices()) {
    Random random(7 + static_cast<uint64_t>(GetParam()));
    for (int shape = 0; shape < 4; ++shape) {
      const int64_t n = random.between(1, 100);
      const int64_t k = random_width(random, GetParam(), shape == 0 ? 2048 : 700);
      const int64_t rows = shape == 1 ? 1 : random.between(1, 40);
      const auto w = random_weight(random, GetParam(), n, k, 1, shape == 2);
      const std::vector<float> x = exact_inputs(random, rows, k, kept(device, GetParam()));
      expect_product(multiply(device, *w, x, {rows}), *w, x, device.gpu ? 2e-6 : 1e-6, device);
    }
  }
}

TEST_P(LinearOfType, RoundsActivationsNoMoreThanItsFormat) {
  for (const DeviceCase& device : all_devices()) {
    Random random(19 + static_cast<uint64_t>(GetParam()));
    const int64_t k = random_width(random, GetParam(), 1024);
    const auto w = random_weight(random, GetParam(), 64, k);
    const std::vector<float> x = random.normals(24 * k);
    const std::vector<float> y = multiply(device, *w, x, {24});
    double error = 0;
    double size = 0;
    for (int64_t i = 0; i < std::ssize(y); ++i) {
      const Exact exact = exact_product(*w, i % 64, x.data() + i / 64 * k);
      error += (y[i] - exact.value) * (y[i] - exact.value);
      size += exact.square;
    }
    const Activations activations = kept(device, GetParam());
    const double limit = device.gpu                        ? 1e-3
                         : activations == Activations::i8  ? 1.5e-2
                         : activations == Activations::i16 ? 1e-4
                                                           : 3e-6;
    EXPECT_LE(std::sqrt(error / size), limit) << device.name;
  }
}

TEST_P(LinearOfType, GivesARowTheSameBytesInAnyCompany) {
  for (const DeviceCase& device : all_devices()) {
    Random random(23 + static_cast<uint64_t>(GetParam()));
    const int64_t k = random_width(random, GetParam(), 512);
    const auto w = random_weight(random, GetParam(), 37, k);
    const std::vector<float> x = random.normals(100 * k);
    const std::vector<float> whole = multiply(device, *w, x, {100});
    const std::vector<float> pieces =
        multiply(device, *w, x, {1, 3, 16, 1, 1, 2, 4, 8, 5, 7, 33, 19});
    if (device
            // other row counts cut the sum over k elsewhere; one or two rows keep weights unrounded
            .gpu) {
      float most = 0;
      for (float v : whole) most = std::max(most, std::fabs(v));
      expect_close(pieces, whole, 1e-3 * most, 0, device.name);
      const std::vector<float> many = multiply(device, *w, x, {3, 16, 4, 8, 5, 7, 57});
      expect_close(many, whole, 3e-6 * most, 0, device.name + " three and more");
      expect_same(multiply(device, *w, x, {8, 3, 5, 4, 16, 7, 57}),
                  multiply(device, *w, x, {3, 8, 4, 5, 16, 7, 57}),
                  device.name + " three to eight");
      expect_same(multiply(device, *w, x, {1, 2, 1, 16, 80}),
                  multiply(device, *w, x, {2, 1, 1, 16, 80}), device.name + " one and two");
      expect_same(multiply(device, *w, x, {100}), whole, device.name + " again");
      continue;
    }
    expect_same(pieces, whole, device.name);
    for (const DeviceCase& other : other_thread_counts(device)) {
      expect_same(multiply(other, *w, x, {100}), whole, other.name);
      expect_same(multiply(other, *w, x, {1, 99}), whole, other.name);
    }
  }
}

TEST_P(LinearOfType, GivesTheBytesOfTheScalarPath) {
  for (const DeviceCase& device : all_devices()) {
    if (device.reference || device.gpu) continue;
    Random random(29 + static_cast<uint64_t>(GetParam()));
    const int64_t k = random_width(random, GetParam(), 512);
    const auto w = random_weight(random, GetParam(), 19, k);
    const std::vector<float> x = random.normals(21 * k);
    DeviceCase scalar = device;
    scalar.path = "scalar";
    expect_same(multiply(device, *w, x, {20, 1}), multiply(scalar, *w, x, {20, 1}), device.name);
  }
}

// Sets every byte, then the scales to 1 (their largest, for nvfp4).
void fill_codes(TestWeight& w, int code) {
  const GgmlType type = w.weight.type;
  const size_t size = block_bytes(type);
  const uint16_t one = f32_to_f16(1.0f);
  for (size_t at = 0; at < w.bytes.size(); at += size) {
    std::byte* block = w.bytes.data() + at;
    std::memset(block, code, size);
    switch (type) {
      case GgmlType::Q4_1:
      case GgmlType::Q5_1:
      case GgmlType::Q4_K:
      case GgmlType::Q5_K:
        std::memcpy(block, &one, 2);
        std::memcpy(block + 2, &one, 2);
        break;
      case GgmlType::Q6_K:
        std::memcpy(block + 208, &one, 2);
        break;
      case GgmlType::MXFP4:
        block[0] = std::byte{127};
        break;
      case GgmlType::NVFP4:
        std::memset(block, 0x7e, 4);
        break;
      default:
        std::memcpy(block, &one, 2);
    }
  }
  const int64_t row = std::ssize(w.bytes) / w.weight.n;
  for (int64_t i = 0; i < w.weight.n; ++i) {
    decode_row(type, w.bytes.data() + i * row, w.values.data() + i * w.weight.k, w.weight.k);
  }
}

TEST(Linear, ExtremeCodesDoNotSaturate) {
  for (GgmlType type : {GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0,
                        GgmlType::Q5_1, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K,
                        GgmlType::IQ4_NL, GgmlType::IQ4_XS, GgmlType::MXFP4, GgmlType::NVFP4}) {
    Random random(31);
    const auto w = random_weight(random, type, 20, 512);
    for (int code : {0xff, 0x80, 0x7f, 0x00}) {
      fill_codes(*w, code);
      for (const DeviceCase& device : all_devices()) {
        const float most = device.activations == Activations::i8 ? 127.0f : 32512.0f;
        std::vector<float> x(5 * 512, most);
        std::fill(x.begin() + 512, x.begin() + 3 * 512, -most);
        for (int64_t i = 0; i < 512; ++i) x[4 * 512 + i] = i % 2 == 0 ? most : -most;
        // Equal terms round alike, by half an ulp of the sum each; saturation would cost percents.
        const double limit = 512 * 0x1p-24;
        const std::vector<float> y = multiply(device, *w, x, {5});
        if (!device.gpu) expect_product(y, *w, x, limit, device, " codes " + std::to_string(code));
        for (int64_t i = 0; device.gpu && i < std::ssize(y); ++i) {
          const Exact exact = exact_product(*w, i % 20, x.data() + i / 20 * 512);
          ASSERT_NEAR(y[i], exact.value, 0x1p-10 * exact.magnitude)
              << w->weight.name << " codes " << code;
        }
      }
    }
  }
}

TEST(Linear, ZeroRowsGiveZero) {
  for (GgmlType type : {GgmlType::F32, GgmlType::BF16, GgmlType::Q8_0, GgmlType::Q4_K,
                        GgmlType::Q6_K, GgmlType::Q5_K, GgmlType::MXFP4}) {
    for (const DeviceCase& device : all_devices()) {
      Random random(37);
      const auto w = random_weight(random, type, 17, 256);
      std::vector<float> x = random.normals(3 * 256);
      std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
      const std::vector<float> y = multiply(device, *w, x, {3});
      for (int64_t i = 17; i < 34; ++i)
        EXPECT_EQ(y[i], 0.0f) << device.name << " " << w->weight.name;
    }
  }
}

void expect_tails(const std::vector<GgmlType>& types) {
  constexpr int64_t kWidth = 256;
  for (const DeviceCase& device : all_devices()) {
    for (int64_t rows : {1, 2, 7, 16, 24, 33}) {
      Random random(41);
      const std::vector<float> x = exact_inputs(random, rows, kWidth, device.activations);
      std::vector<std::unique_ptr<TestWeight>> gates;
      std::vector<std::unique_ptr<TestWeight>> ups;
      World world(device);
      std::vector<Weight*> load;
      for (size_t i = 0; i < types.size(); ++i) {
        const int64_t n = random.between(1, 90);
        gates.push_back(random_weight(random, types[i], n, kWidth, 1, i % 2 == 0));
        ups.push_back(random_weight(random, types[(i + 1) % types.size()], n, kWidth, 1, i == 2));
        load.push_back(&gates.back()->weight);
        load.push_back(&ups.back()->weight);
      }
      world.prepare(load, {.max_tokens = 64, .max_width = kWidth});
      std::vector<LinearPart> parts;
      std::vector<std::vector<float>> before;
      for (size_t i = 0; i < types.size(); ++i) {
        const Tail tail = static_cast<Tail>(i % 3);
        before.push_back(random.normals(rows * gates[i]->weight.n));
        const Tensor y = world.tensor(rows, gates[i]->weight.n, before.back());
        parts.push_back(
            {&gates[i]->weight, tail == Tail::silu_mul ? &ups[i]->weight : nullptr, y, tail});
      }
      world.ops().linear(parts, world.tensor(rows, kWidth, x));
      world.device().synchronize();
      for (size_t i = 0; i < parts.size(); ++i) {
        const std::vector<float> y = values_of(parts[i].y);
        const int64_t n = gates[i]->weight.n;
        for (int64_t j = 0; j < std::ssize(y); ++j) {
          const Exact gate = exact_product(*gates[i], j % n, x.data() + j / n * kWidth);
          const Exact up = exact_product(*ups[i], j % n, x.data() + j / n * kWidth);
          double expected = gate.value;
          double size = gate.magnitude;
          if (parts[i].tail == Tail::add) {
            expected += before[i][j];
            size += std::fabs(before[i][j]);
          }
          if (parts[i].tail == Tail::silu_mul) {
            const double silu = gate.value / (1 + std::exp(-gate.value));
            expected = silu * up.value;
            size = 1.1 * gate.magnitude * std::fabs(up.value) + std::fabs(silu) * up.magnitude;
          }
          ASSERT_NEAR(y[j], expected, (device.gpu ? 1e-3 : 1.5e-6) * size)
              << device.name << " part " << i << " rows " << rows << " at " << j;
        }
      }
    }
  }
}

TEST(Linear, PartsOfOneInputKeepTheirTails) {
  expect_tails({GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::BF16, GgmlType::Q6_K, GgmlType::F32});
  expect_tails({GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q5_K, GgmlType::Q5_1, GgmlType::Q4_1});
  expect_tails({GgmlType::Q6_K, GgmlType::Q5_K, GgmlType::Q4_K, GgmlType::Q4_K});
  expect_tails(
      {GgmlType::IQ4_XS, GgmlType::MXFP4, GgmlType::NVFP4, GgmlType::Q4_0, GgmlType::IQ4_NL});
}

// ssm_alpha and ssm_beta are views into one wide activation; rows may have gaps.
TEST(Linear, HonoursStrides) {
  for (const DeviceCase& device : all_devices()) {
    Random random(43);
    const auto w = random_weight(random, GgmlType::Q8_0, 21, 96);
    const std::vector<float> x = exact_inputs(random, 6, 96, device.activations);
    World world(device);
    world.prepare({&w->weight}, {.max_tokens = 16, .max_width = 96});
    Tensor wide_x = world.tensor(6, 160);
    Tensor wide_y = world.tensor(6, 64, std::vector<float>(6 * 64, 3.0f));
    for (int64_t t = 0; t < 6; ++t) std::copy_n(x.data() + t * 96, 96, wide_x.f32(t));
    Tensor narrow_x = wide_x;
    narrow_x.cols = 96;
    Tensor narrow_y = wide_y;
    narrow_y.cols = 21;
    const LinearPart part{&w->weight, nullptr, narrow_y, Tail::store};
    world.ops().linear({&part, 1}, narrow_x);
    world.device().synchronize();
    expect_product(values_of(narrow_y), *w, x, 1e-6, device);
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t i = 21; i < 64; ++i)
        ASSERT_EQ(wide_y.f32(t)[i], 3.0f) << device.name << " wrote beside its output";
    }
  }
}

TEST(Logits, AgreeWithDecodedWeights) {
  for (GgmlType type : {GgmlType::Q8_0, GgmlType::BF16, GgmlType::Q6_K}) {
    for (const DeviceCase& device : all_devices()) {
      Random random(47);
      const auto w = random_weight(random, type, 1000, 256);
      const std::vector<float> x = exact_inputs(random, 3, 256, kept(device, type));
      World world(device);
      w->weight.is_table = true;  // a tied table is both
      world.prepare({&w->weight}, {.max_tokens = 16, .max_width = 256});
      const Tensor y = world.tensor(3, 1000);
      world.ops().logits(y, w->weight, world.tensor(3, 256, x));
      world.device().synchronize();
      expect_product(values_of(y), *w, x, 1e-6, device);
    }
  }
}

// A GPU keeps one power of two for 32 rows. Rows that are a thousand times smaller (32 times with a
// minimum beside the scale) keep their digits.
TEST(Linear, SmallRowsBesideLargeOnes) {
  for (GgmlType type :
       {GgmlType::Q8_0, GgmlType::Q5_K, GgmlType::Q5_1, GgmlType::IQ4_NL, GgmlType::MXFP4}) {
    const int64_t sizes = type == GgmlType::Q5_K || type == GgmlType::Q5_1 ? 6 : 11;
    Random random(67);
    const auto w = random_weight(random, type, 40, 512);
    const int64_t bytes = std::ssize(w->bytes) / 40;
    for (int64_t row = 0; row < 40; ++row) {
      const float size = std::ldexp(1.0f, static_cast<int>(-(row % sizes)));
      encode_row(type, random.normals(512, size).data(), w->bytes.data() + row * bytes, 512);
      decode_row(type, w->bytes.data() + row * bytes, w->values.data() + row * 512, 512);
    }
    for (const DeviceCase& device : all_devices()) {
      for (int64_t rows : {1, 5, 40}) {
        const std::vector<float> x = exact_inputs(random, rows, 512, kept(device, type));
        expect_product(multiply(device, *w, x, {rows}), *w, x, 1e-6, device);
      }
    }
  }
}

TEST(Linear, AgreesOnLargeShapes) {
  struct Case {
    GgmlType type;
    int64_t n, k, rows;
  };
  const Case cases[] = {{GgmlType::Q4_K, 1000, 2048, 1},   {GgmlType::Q4_K, 300, 5120, 9},
                        {GgmlType::Q4_K, 520, 1024, 130},  {GgmlType::Q6_K, 1030, 1024, 5},
                        {GgmlType::Q6_K, 257, 2304, 70},   {GgmlType::Q8_0, 999, 1056, 17},
                        {GgmlType::BF16, 513, 1000, 33},   {GgmlType::F32, 256, 2048, 200},
                        {GgmlType::Q8_0, 70000, 64, 3},    {GgmlType::Q8_0, 36000, 96, 2},
                        {GgmlType::F16, 70000, 64, 12},    {GgmlType::Q5_K, 1000, 2048, 2},
                        {GgmlType::Q5_K, 300, 5120, 6},    {GgmlType::Q5_K, 800, 1024, 24},
                        {GgmlType::Q5_K, 520, 1024, 130},  {GgmlType::Q5_0, 999, 1056, 50},
                        {GgmlType::IQ4_XS, 1000, 2048, 2}, {GgmlType::MXFP4, 300, 5120, 6},
                        {GgmlType::NVFP4, 800, 1024, 24},  {GgmlType::MXFP4, 520, 1024, 130},
                        {GgmlType::IQ4_NL, 999, 1056, 50}, {GgmlType::F32, 256, 2048, 1},
                        {GgmlType::F32, 256, 2048, 7},     {GgmlType::F32, 130, 3080, 3},
                        {GgmlType::F16, 500, 4088, 4},     {GgmlType::F32, 16, 72, 2}};
  for (const Case& c : cases) {
    for (const DeviceCase& device : all_devices()) {
      if (device.reference || device.activations == Activations::i16) continue;
      Random random(59);
      const auto w = random_weight(random, c.type, c.n, c.k);
      const std::vector<float> x = exact_inputs(random, c.rows, c.k, kept(device, c.type));
      World world(device);
      world.prepare({&w->weight}, {.max_tokens = 256, .max_width = c.k});
      const Tensor y = world.tensor(c.rows, c.n);
      const LinearPart part{&w->weight, nullptr, y, Tail::store};
      for (int again = 0; again < 3; ++again) {
        world.ops().linear({&part, 1}, world.tensor(c.rows, c.k, x));
        world.device().synchronize();
        expect_product(values_of(y), *w, x, device.gpu ? 2e-6 : 1e-6, device);
      }
    }
  }
}

// For GPUs with many processors. Rows repeat after kBlock, so the exact answer is cheap.
TEST(Linear, AgreesOnMatricesOfManyMegabytes) {
  constexpr int64_t kBlock = 160;
  struct Case {
    std::vector<GgmlType> types;  // of matrices with the same input
    int64_t n, k;
    std::vector<int64_t> rows;
    Tail tail;
  };
  const Case cases[] = {
      {{GgmlType::Q4_K}, 10550, 5120, {9, 16, 17, 32, 64, 96, 128}, Tail::store},
      {{GgmlType::Q4_K}, 3200, 17408, {13, 26, 90, 128}, Tail::add},
      {{GgmlType::Q4_K}, 2048, 4096, {16, 24}, Tail::add},
      {{GgmlType::Q6_K}, 5120, 6144, {16, 31, 64, 96, 120}, Tail::add},
      {{GgmlType::Q6_K, GgmlType::Q4_K}, 4130, 5120, {12, 22, 50, 96}, Tail::store},
      {{GgmlType::Q4_K, GgmlType::Q6_K}, 2080, 2048, {16, 25}, Tail::store},
      {{GgmlType::Q4_K}, 5300, 5120, {10, 16, 32}, Tail::silu_mul},
      // A few tiles more than an H100 has processors.
      {{GgmlType::Q4_K}, 17380, 2048, {17, 64, 90, 128}, Tail::silu_mul},
      {{GgmlType::Q6_K}, 34100, 1024, {20, 50, 96, 128}, Tail::add},
      // The last tile has rows for some warps of a warpgroup, and 132 processors cut it into four
      // and six parts.
      {{GgmlType::Q4_K}, 8256, 5120, {96, 128}, Tail::store},
      {{GgmlType::Q4_K}, 5450, 8192, {96, 128}, Tail::add},
      {{GgmlType::Q6_K, GgmlType::Q4_K}, 2650, 6144, {96, 128}, Tail::store},
      {{GgmlType::Q4_K}, 4130, 512, {520, 700}, Tail::silu_mul},
      {{GgmlType::Q6_K}, 2600, 768, {650}, Tail::store},
      {{GgmlType::Q8_0}, 2600, 512, {650}, Tail::add}};
  for (const Case& c : cases) {
    Random random(71);
    std::vector<std::unique_ptr<TestWeight>> blocks;
    std::vector<std::vector<std::byte>> bytes;
    for (GgmlType type : c.types) {
      const auto& block = *blocks.emplace_back(random_weight(random, type, kBlock, c.k));
      const int64_t row_bytes = std::ssize(block.bytes) / kBlock;
      auto& all = bytes.emplace_back(static_cast<size_t>(c.n * row_bytes));
      for (int64_t row = 0; row < c.n; ++row)
        std::copy_n(block.bytes.data() + row % kBlock * row_bytes, row_bytes,
                    all.data() + row * row_bytes);
    }
    for (const DeviceCase& device : all_devices()) {
      if (device.reference || device.activations == Activations::i16) continue;
      std::vector<Weight> weights;  // and their up weights
      for (size_t i = 0; i < 2 * c.types.size(); ++i) {
        weights.push_back(blocks[i / 2]->weight);
        weights.back().n = c.n;
        weights.back().file = bytes[i / 2];
      }
      std::vector<Weight*> load;
      for (Weight& w : weights) load.push_back(&w);
      World world(device);
      world.prepare(
          load, {.max_tokens = static_cast<int32_t>(std::ranges::max(c.rows)), .max_width = c.k});
      for (const int64_t rows : c.rows) {
        if (rows > 32 && !device.gpu) continue;  // forms of GPUs
        const std::vector<float> x = exact_inputs(random, rows, c.k, kept(device, c.types[0]));
        std::vector<LinearPart> parts;
        for (size_t i = 0; i < c.types.size(); ++i)
          parts.push_back({&weights[2 * i],
                           c.tail == Tail::silu_mul ? &weights[2 * i + 1] : nullptr,
                           world.tensor(rows, c.n, std::vector<float>(rows * c.n, 1.0f)), c.tail});
        world.ops().linear(parts, world.tensor(rows, c.k, x));
        world.device().synchronize();
        for (size_t p = 0; p < parts.size(); ++p) {
          const std::vector<float> values = values_of(parts[p].y);
          for (int64_t i = 0; i < rows * kBlock; ++i) {
            const int64_t token = i / kBlock;
            const Exact exact = exact_product(*blocks[p], i % kBlock, x.data() + token * c.k);
            double expected = exact.value;
            double size = device.gpu ? std::sqrt(exact.square) : exact.magnitude;
            if (c.tail == Tail::add) expected += 1.0;
            if (c.tail == Tail::silu_mul) {
              expected = exact.value / (1 + std::exp(-exact.value)) * exact.value;
              size *= 2.2 * std::fabs(exact.value) + size * 4e-3;
            }
            for (int64_t n = i % kBlock; n < c.n; n += kBlock)
              ASSERT_NEAR(values[token * c.n + n], expected, (device.gpu ? 4e-3 : 1.5e-6) * size)
                  << device.name << " " << type_name(c.types[p]) << " " << rows << " rows, token "
                  << token << " output " << n;
          }
        }
      }
    }
  }
}

// Several processors share a tile on a GPU.
TEST(Linear, DeterministicRowsHaveTheSameBytesInAnyCompany) {
  struct Case {
    GgmlType type;
    int64_t n, k;
  };
  for (const Case& c : {Case{GgmlType::Q4_K, 5120, 6144},
                        {GgmlType::Q6_K, 5120, 6144},
                        {GgmlType::Q4_K, 5120, 17408},
                        {GgmlType::Q4_K, 14336, 5120},
                        {GgmlType::Q8_0, 4096, 2048},
                        {GgmlType::BF16, 2048, 5120}}) {
    for (DeviceCase device : all_devices()) {
      if (!device.gpu) continue;
      device.deterministic = true;
      Random random(73);
      constexpr int64_t kRows = 128;
      const auto w = random_weight(random, c.type, c.n, c.k);
      const std::vector<float> x = random.normals(kRows * c.k);
      const std::vector<float> whole = multiply(device, *w, x, {kRows});
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{1, 8, 16, 32, 64, 7},
                                               {64, 64},
                                               {65, 63},
                                               {96, 32},
                                               {33, 95},
                                               {100, 28}}) {
        expect_same(multiply(device, *w, x, cuts), whole,
                    device.name + " " + std::string(type_name(c.type)) + " " + std::to_string(c.k) +
                        " rows " + std::to_string(cuts[0]) + " first");
      }
    }
  }
}

TEST(TopK, AgreesWithTheReference) {
  for (auto sizes :
       {std::pair{5, 5}, {100, 64}, {4097, 20}, {30000, 128}, {70000, 1}, {70000, 128}}) {
    // names that a lambda may capture in clang 14, too
    const auto width = sizes.first, k = sizes.second;
    for (const DeviceCase& device : plain_devices()) {
      Random random(61);
      std::vector<float> logits = random.normals(3 * width, 8.0f);
      for (int i = 0; i < width; i += 7) logits[width + i] = 30.0f;  // many ties in the second row
      auto run = [&](const DeviceCase& d) {
        World world(d);
        world.prepare({}, {});
        const Tensor values = world.tensor(3, k);
        const Tensor ids = world.tensor(3, k, DType::i32);
        const Tensor log_sum = world.tensor(3, 1);
        world.ops().top_k(values, ids, log_sum, world.tensor(3, width, logits));
        world.device().synchronize();
        const auto* id = static_cast<const int32_t*>(ids.data);
        const std::vector<int32_t> columns(id, id + 3 * k);
        const Tensor token_of = world.tensor(1, width, DType::i32);
        auto* name = static_cast<int32_t*>(token_of.data);
        for (int i = 0; i < width; ++i) name[i] = 3 * (width - i);
        world.ops().top_k(values, ids, log_sum, world.tensor(3, width, logits), name);
        world.device().synchronize();
        for (size_t i = 0; i < columns.size(); ++i)
          EXPECT_EQ(id[i], 3 * (width - columns[i])) << d.name;
        return std::tuple{values_of(values), columns, values_of(log_sum)};
      };
      const auto [values, ids, log_sum] = run(device);
      const auto [expected_values, expected_ids, expected_sum] = run(reference_device());
      expect_same(values, expected_values, device.name);
      EXPECT_EQ(ids, expected_ids) << device.name << " width " << width;
      expect_close(log_sum, expected_sum, 1e-5, 1e-6, device.name);
    }
  }
}

// The blocks of the two weights have different ranges.
TEST_P(LinearOfType, RowsThatChangeAreThoseOfTheOther) {
  for (const DeviceCase& device : plain_devices()) {
    Random random(57);
    constexpr int64_t kRows = 100, kFew = 40;
    const int64_t k = random_width(random, GetParam(), 512);
    const auto all = random_weight(random, GetParam(), kRows, k);
    Weight few = all->weight;
    few.n = kFew;
    for (int64_t i = 0; i < kFew; ++i) few.runs.push_back({i, 1});
    World world(device);
    world.prepare({&all->weight, &few}, {.max_tokens = 64, .max_width = k});
    const std::vector<int32_t> rounds[] = {
        {}, {0, 31, 32, 39}, {7, 8, 9, 15, 16, 17, 23, 24, 31, 33}};
    for (const std::vector<int32_t>& changed : rounds) {
      for (const int32_t row : changed)
        few.runs[static_cast<size_t>(row)].first =
            static_cast<int64_t>(random.uniform(0, kRows - 0.5f));
      world.device().copy_rows(few, all->weight, changed);
      for (const int64_t rows : {1, 5, 12, 40}) {
        const Tensor x = world.tensor(rows, k, random.normals(rows * k));
        const Tensor whole = world.tensor(rows, kRows), part = world.tensor(rows, kFew);
        world.ops().logits(whole, all->weight, x);
        world.ops().logits(part, few, x);
        world.device().synchronize();
        const auto expected = values_of(whole), got = values_of(part);
        std::vector<float> same_rows;
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t i = 0; i < kFew; ++i)
            same_rows.push_back(
                expected[static_cast<size_t>(t * kRows + few.runs[static_cast<size_t>(i)].first)]);
        expect_close(got, same_rows, device.gpu ? 2e-5 : 0, device.gpu ? 1e-5 : 0, device.name);
      }
    }
  }
}

TEST_P(LinearOfType, EmbedsTheRowsOfTheFile) {
  for (const DeviceCase& device : plain_devices()) {
    Random random(53);
    const int64_t k = random_width(random, GetParam(), 512);
    const auto w = random_weight(random, GetParam(), 40, k);
    w->weight.is_table = true;
    w->weight.is_product = false;
    World world(device);
    world.prepare({&w->weight}, {.max_tokens = 64});
    TestBatch rows({{0, 9}, {5, 1}, {31, 20, chain(3)}}, random);
    const Tensor y = world.tensor(rows.tokens(), k);
    world.ops().embed(y, w->weight, rows.batch());
    world.device().synchronize();
    std::vector<float> expected;
    for (int32_t t = 0; t < rows.tokens(); ++t) {
      const float* row = w->values.data() + rows.batch().token[t] * k;
      expected.insert(expected.end(), row, row + k);
    }
    expect_same(values_of(y), expected, device.name);
  }
}

// A CPU that rounds activations keeps them as Q8_0, with zeros for rows with NaN or infinity.
TEST(MayRound, FloatsAreKeptAsQ8_0WhereActivationsAreRounded) {
  for (const DeviceCase& device : all_devices()) {
    const bool rounds = !device.reference && !device.gpu && device.activations != Activations::f32;
    for (const GgmlType type : {GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q5_0}) {
      Random random(67);
      constexpr int64_t kRows = 37, kWidth = 160;
      const auto w = random_weight(random, type, kRows, kWidth);
      TestWeight rounded = *w;
      if (rounds && is_float(type)) {
        rounded.weight.type = GgmlType::Q8_0;
        rounded.bytes.resize(kRows * rounded.weight.file_row_bytes());
        for (int64_t i = 0; i < kRows; ++i)
          encode_row(
              GgmlType::Q8_0, w->values.data() + i * kWidth,
              rounded.bytes.data() + static_cast<size_t>(i) * rounded.weight.file_row_bytes(),
              kWidth);
      }
      rounded.weight.file = rounded.bytes;
      w->weight.may_round = true;
      const std::vector<float> x = random.normals(25 * kWidth);
      const std::string what = device.name + " " + type_name(type).data();
      expect_same(multiply(device, *w, x, {1, 3, 21}), multiply(device, rounded, x, {1, 3, 21}),
                  what);
      World world(device);
      EXPECT_EQ(world.device().weight_bytes(w->weight), world.device().weight_bytes(rounded.weight))
          << what;
    }
    if (!rounds) continue;
    Random random(69);
    const auto w = random_weight(random, GgmlType::F32, 20, 64);
    const float bad[] = {NAN, INFINITY, 3e38f};  // the last has a factor that no f16 holds
    for (int i = 0; i < 3; ++i)
      std::memcpy(w->bytes.data() + i * 5 * 64 * sizeof(float), &bad[i], sizeof(float));
    w->weight.may_round = true;
    const std::vector<float> y = multiply(device, *w, random.normals(64), {1});
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(y[static_cast<size_t>(i)] == 0, i % 5 == 0 && i < 15) << i;
  }
}

}  // namespace
}  // namespace braid
