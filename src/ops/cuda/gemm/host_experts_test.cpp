// host_experts_test.cpp -- experts from units of random bytes, so of all codes, against the words
// of packed.h in double. No GPU is needed.
#include "ops/cuda/gemm/host_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/heap_test.h"
#include "gguf/half.h"
#include "ops/cpu/unit_sets_test.h"
#include "ops/cuda/gemm/host_product.h"
#include "ops/tests/op_test.h"

namespace braid::cuda {
namespace {

using test::Random;

int below(Random& random, int count) { return static_cast<int>(random.between(0, count - 1)); }

constexpr Pack kPacks[] = {Pack::q8, Pack::q4k, Pack::q6k, Pack::q5, Pack::t4, Pack::fp4};
const char* name_of(Pack pack) {
  static constexpr const char* kNames[] = {"f16", "q8", "q4k", "q6k", "q5", "t4", "fp4"};
  return kNames[static_cast<int>(pack)];
}

// ---- the layout

// Where a weight lies: the letters of packed.h.
struct Place {
  int r16, half, g, k128, c, i, p, h, e;
  Place(int row, int k)
      : r16(row / 16),
        half(row / 8 % 2),
        g(row % 8),
        k128(k / 128),
        c(k / 32 % 4),
        i(k / 8 % 4),
        p(k / 4 % 2),
        h(k / 2 % 2),
        e(k % 2) {}
  int lane() const { return 4 * g + c; }
  int sixteenth() const { return i / 2; }
};

template <typename T>
T read(const uint8_t* from, int index = 0) {
  T value;
  std::memcpy(&value, from + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}
double read_half(const uint8_t* from, int index) { return f16_to_f32(read<uint16_t>(from, index)); }

// Bytes of f16 in a unit, for which random bytes might not be finite.
std::vector<size_t> halves_of(Pack pack) {
  std::vector<size_t> at;
  const auto add = [&](int begin, int end) {
    for (int i = begin; i < end; i += 2) at.push_back(static_cast<size_t>(i));
  };
  const int half = half_bytes(pack), all = unit_bytes(pack);
  for (int k128 = 0; k128 < 2; ++k128) {
    const int part = k128 * half;
    if (pack == Pack::q8) add(part + 4096, part + half);
    if (pack == Pack::q5) add(part + 2560, part + half);
    if (pack == Pack::t4 || pack == Pack::fp4) add(part + 2048, part + 2560);
  }
  if (pack == Pack::q4k || pack == Pack::q6k) add(2 * half, all);
  return at;
}

// Scales are stored times 2^24, minima times 2^12.
struct Affine {
  int code;
  double scale, min;
  double value() const { return code * scale * 0x1p-24 - min * 0x1p-12; }
};

Affine read_q8(const uint8_t* part, const Place& at) {
  const int j = 8 * at.i + 4 * at.p + 2 * at.h + at.e;
  const uint8_t* piece = part + ((at.r16 * 2 + at.half) * 2 + j / 16) * 512 + at.lane() * 16;
  constexpr int kByte[] = {0, 2, 1, 3};
  const int code = piece[j % 16 / 4 * 4 + kByte[2 * at.h + at.e]] - 128;
  return {code, read_half(part + 4096, at.lane() * 4 + at.r16 * 2 + at.half), 0};
}

uint32_t word_at(const uint8_t* part, const Place& at, int i) {
  return read<uint32_t>(part + (at.r16 * 2 + at.half) * 512 + at.lane() * 16, i);
}

Affine read_q4k(const uint8_t* part, const uint8_t* shared, const Place& at) {
  const auto code =
      static_cast<int>(word_at(part, at, at.i) >> 4 * (4 * at.e + 2 * at.p + at.h) & 15);
  const uint32_t own = read<uint32_t>(part + 2048, at.lane()) >> 16 * at.half & 0xffff;
  uint32_t bits = own >> 4;
  if (at.r16 == 1)
    bits = (own & 15) | static_cast<uint32_t>(part[2048 + 128 + at.lane() * 2 + at.half]) << 4;
  const int factor = (at.g * 2 + at.r16) * 4 + at.half;
  return {code, (bits & 63) * read_half(shared, factor),
          (bits >> 6) * read_half(shared, factor + 2)};
}

Affine read_q6k(const uint8_t* part, const uint8_t* shared, const Place& at) {
  const auto field = [&](uint32_t word, int bit) { return word >> (16 * at.e + bit) & 0xffff; };
  const uint32_t word = word_at(part, at, at.i);
  const uint32_t third =
      read<uint32_t>(part + 2048 + ((at.r16 * 32 + at.lane()) * 2 + at.half) * 8, at.sixteenth());
  const bool second = at.i % 2 == 1;
  uint32_t code = 0;
  if (at.p == 0 && at.h == 0) {
    code = (field(word, 0) & 15) | (field(third, second ? 2 : 0) & 3) << 4;
  } else if (at.p == 0) {
    code = field(word, 4) & 63;
  } else if (second == (at.h == 0)) {
    code = field(word, 10) & 63;
  } else {
    code = field(third, second ? 4 : 10) & 63;
  }
  const int scale =
      part[3072 + ((at.lane() * 2 + at.r16) * 2 + at.half) * 2 + at.sixteenth()] - 128;
  return {static_cast<int>(code) - 32, scale * read_half(shared, at.g * 4 + at.r16 * 2 + at.half),
          0};
}

Affine read_q5(const uint8_t* part, const Place& at) {
  const auto field = [&](uint32_t word, int bit) { return word >> (16 * at.e + bit) & 0xffff; };
  const int item = (at.r16 * 32 + at.lane()) * 2 + at.half;
  const uint32_t fifth = read<uint32_t>(part + 2048, item);
  uint32_t code = 0;
  if (at.p == 0 || at.h == 1) {
    code = field(word_at(part, at, at.i), 5 * (at.p + at.h)) & 31;
  } else if (at.i < 3) {
    code = field(fifth, 5 * at.i) & 31;
  } else {
    for (int i = 0; i < 4; ++i) code |= (field(word_at(part, at, i), 15) & 1) << i;
    code |= (field(fifth, 15) & 1) << 4;
  }
  const uint8_t* pairs = part + 2560;
  return {static_cast<int>(code), read_half(pairs, item * 2), read_half(pairs, item * 2 + 1)};
}

double scale_of_sixteen(const uint8_t* part, const Place& at) {
  const int item = (at.r16 * 32 + at.lane()) * 2 + at.half;
  return read_half(part + 2048, item * 2 + at.sixteenth());
}

Affine read_t4(const uint8_t* part, const Place& at) {
  const uint32_t level = word_at(part, at, at.i) >> 4 * (4 * at.p + 2 * at.e + at.h) & 15;
  return {part[2560 + level] - 128, scale_of_sixteen(part, at), 0};
}

Affine read_fp4(const uint8_t* part, const Place& at) {
  constexpr int kSign[] = {15, 12, 14, 13}, kMagnitude[] = {9, 6, 3, 0};
  const uint32_t bits = word_at(part, at, at.i) >> 16 * at.e & 0xffff;
  const int field = 2 * at.p + at.h;
  // as bits of an f16, which counts 2^-24
  const auto half = static_cast<uint16_t>((bits >> kSign[field] & 1) << 15 |
                                          (bits >> kMagnitude[field] & 7) << 9);
  return {static_cast<int>(f16_to_f32(half) * 0x1p24f), scale_of_sixteen(part, at), 0};
}

double weight_of(Pack pack, const uint8_t* unit, int row, int k) {
  const Place at(row, k);
  const uint8_t* part = unit + at.k128 * half_bytes(pack);
  const uint8_t* shared = unit + 2 * half_bytes(pack);
  switch (pack) {
    case Pack::q8:
      return read_q8(part, at).value();
    case Pack::q4k:
      return read_q4k(part, shared, at).value();
    case Pack::q6k:
      return read_q6k(part, shared, at).value();
    case Pack::q5:
      return read_q5(part, at).value();
    case Pack::t4:
      return read_t4(part, at).value();
    case Pack::fp4:
      return read_fp4(part, at).value();
    default:
      return 0;
  }
}

// ---- weights

struct Matrix {
  HostMatrix host;
  std::vector<uint8_t> units;
  std::vector<float> scales;
  std::vector<double> values;  // [experts][n][k]
};

// f16 around 2^`power`, of either sign; now and then subnormal, zero, or of the largest binade.
uint16_t random_half(Random& random, int power) {
  const int kind = below(random, 40);
  const auto sign = static_cast<uint16_t>(below(random, 2) << 15);
  if (kind == 0) return sign;
  if (kind == 1) return static_cast<uint16_t>(sign | (1 + below(random, 1023)));
  const int exponent = kind == 2 ? power : power - below(random, 3);
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | below(random, 1024));
}

// Rows beyond n and columns beyond k have random bytes, too: nothing may depend on them.
void fill(Matrix& m, Random& random, Pack pack, int64_t experts, int64_t n, int64_t k) {
  const int64_t blocks = (n + kUnitRows - 1) / kUnitRows;
  const int64_t count = (k + kUnitWidth - 1) / kUnitWidth;
  const auto size = static_cast<size_t>(unit_bytes(pack));
  m.units.resize(static_cast<size_t>(experts * blocks * count) * size);
  for (uint8_t& byte : m.units) byte = static_cast<uint8_t>(below(random, 256));
  for (size_t unit = 0; unit < m.units.size(); unit += size)
    for (const size_t at : halves_of(pack)) {
      // shared d and dmin of q4k alternate in pairs; other minima follow their scales
      const bool min = pack == Pack::q4k ? at / 4 % 2 == 1 : pack == Pack::q5 && at / 2 % 2 == 1;
      const uint16_t half = random_half(random, min ? (pack == Pack::q4k ? -11 : -8) : 0);
      std::memcpy(&m.units[unit + at], &half, sizeof half);
    }
  // Weights of the size 1 / sqrt(k).
  const double most = pack == Pack::fp4   ? 4000
                      : pack == Pack::q6k ? 1000
                      : pack == Pack::q4k ? 300
                      : pack == Pack::q5  ? 15
                                          : 64;
  for (int64_t i = 0; i < experts * blocks; ++i)
    m.scales.push_back(static_cast<float>(0x1p24 / most / std::sqrt(static_cast<double>(k)) *
                                          (i % 3 == 0 ? 0.5 : 1)));
  m.values.resize(static_cast<size_t>(experts * n * k));
  for (int64_t expert = 0; expert < experts; ++expert)
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) {
        const int64_t block = expert * blocks + row / kUnitRows;
        const uint8_t* unit =
            m.units.data() + static_cast<size_t>(block * count + column / kUnitWidth) * size;
        m.values[static_cast<size_t>((expert * n + row) * k + column)] =
            weight_of(pack, unit, static_cast<int>(row % kUnitRows),
                      static_cast<int>(column % kUnitWidth)) *
            static_cast<double>(m.scales[static_cast<size_t>(block)]);
      }
  m.host = {pack, n, k, m.units.data(), m.scales.data()};
}

struct Layer {
  Matrix gate, up, down;
  HostLayer host;
  int64_t experts, width, hidden;
  Layer(Random& random, Pack gate_pack, Pack up_pack, Pack down_pack, int64_t experts,
        int64_t width, int64_t hidden)
      : experts(experts), width(width), hidden(hidden) {
    fill(gate, random, gate_pack, experts, hidden, width);
    fill(up, random, up_pack, experts, hidden, width);
    fill(down, random, down_pack, experts, width, hidden);
    host = {gate.host, up.host, down.host};
  }
};

struct Step {
  int64_t rows, used, stride;
  std::vector<uint16_t> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint32_t> mine;

  Step(Random& random, const Layer& layer, int64_t rows, int64_t used)
      : rows(rows), used(used), stride(layer.width + 3) {
    for (int64_t i = 0; i < rows * stride; ++i) {
      const double outlier = i % 97 == 5 ? 20 : 1;
      x.push_back(f32_to_f16(static_cast<float>(outlier * (random.uniform(-1, 1)))));
    }
    // Rows share most experts; some ids name none, and the second row has none.
    for (int64_t row = 0; row < rows; ++row) {
      std::set<int32_t> taken;
      for (int64_t j = 0; j < used; ++j) {
        int32_t id = below(random, static_cast<int>(layer.experts));
        if (!taken.insert(id).second || below(random, 12) == 0) id = -1 - below(random, 3);
        if (below(random, 30) == 0) id = static_cast<int32_t>(layer.experts) + below(random, 100);
        ids.push_back(row == 1 ? -1 : id);
        weights.push_back(static_cast<float>(random.uniform(0, 1)));
      }
    }
    mine.resize(static_cast<size_t>(layer.experts + 31) / 32 + 1, ~0u);
    mine[0] &= ~(1u << 2);  // expert 2 is computed elsewhere
  }
  bool is_mine(int32_t id, const Layer& layer) const {
    return id >= 0 && id < layer.experts &&
           (mine[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  }
  HostExperts::Job job(const Layer& layer, float* y) const {
    return {&layer.host, rows, used, x.data(), stride, ids.data(), weights.data(), mine.data(), y};
  }
};

HostExperts::Limits limits_of(const Layer& layer, const Step& step) {
  return {step.rows, step.used, layer.width, layer.hidden, layer.experts};
}

// ---- the reference

struct Sum {
  double value = 0;
  double size = 0;  // of absolute products
};

Sum product(const Matrix& m, int64_t expert, int64_t row, const std::vector<Sum>& x) {
  Sum sum;
  const double* w = &m.values[static_cast<size_t>((expert * m.host.n + row) * m.host.k)];
  for (size_t i = 0; i < x.size(); ++i) {
    sum.value += w[i] * x[i].value;
    sum.size += std::abs(w[i]) * x[i].size;
  }
  return sum;
}

// `size` is what an error of x's or a sum's relative size 1 makes of y.
std::vector<Sum> reference(const Layer& layer, const Step& step) {
  std::vector<Sum> y(static_cast<size_t>(step.rows * layer.width));
  for (int64_t row = 0; row < step.rows; ++row) {
    std::vector<Sum> x(static_cast<size_t>(layer.width));
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = f16_to_f32(step.x[static_cast<size_t>(row * step.stride) + i]);
      x[i] = {value, std::abs(value)};
    }
    for (int64_t j = 0; j < step.used; ++j) {
      const int32_t e = step.ids[static_cast<size_t>(row * step.used + j)];
      if (!step.is_mine(e, layer)) continue;
      std::vector<Sum> hidden(static_cast<size_t>(layer.hidden));
      for (int64_t i = 0; i < layer.hidden; ++i) {
        const Sum gate = product(layer.gate, e, i, x), up = product(layer.up, e, i, x);
        const double silu = gate.value / (1 + std::exp(-gate.value));
        hidden[static_cast<size_t>(i)] = {
            silu * up.value,
            1.1 * gate.size * std::abs(up.value) + std::abs(silu) * (up.size + std::abs(up.value))};
      }
      const double weight =
          static_cast<double>(step.weights[static_cast<size_t>(row * step.used + j)]);
      for (int64_t i = 0; i < layer.width; ++i) {
        const Sum part = product(layer.down, e, i, hidden);
        Sum& to = y[static_cast<size_t>(row * layer.width + i)];
        to.value += weight * part.value;
        to.size += weight * part.size;
      }
    }
  }
  return y;
}

int64_t distinct(const Layer& layer, const Step& step) {
  std::set<int32_t> seen;
  for (const int32_t id : step.ids)
    if (step.is_mine(id, layer)) seen.insert(id);
  return static_cast<int64_t>(seen.size());
}

constexpr double kTolerance = 2e-5;

void check(const Layer& layer, const Step& step, ThreadPool& pool) {
  HostExperts experts(pool, limits_of(layer, step));
  const std::vector<Sum> want = reference(layer, step);
  const auto values = static_cast<size_t>(step.rows * layer.width);
  cpu::for_each_set([&] {
    if (!has_host_products()) return;
    std::vector<float> y(values, std::nanf(""));
    EXPECT_EQ(experts.run(step.job(layer, y.data())), distinct(layer, step));
    double worst = 0;
    size_t worst_at = 0;
    for (size_t i = 0; i < values; ++i) {
      const double error = std::abs(static_cast<double>(y[i]) - want[i].value);
      if (want[i].size == 0) {
        ASSERT_EQ(y[i], 0.0f) << i;
      } else if (!(error / want[i].size <= worst)) {
        worst = error / want[i].size;
        worst_at = i;
      }
    }
    EXPECT_LE(worst, kTolerance) << "at " << worst_at << ": " << y[worst_at] << ", not "
                                 << want[worst_at].value;
  });
}

class HostExpertsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_host_products()) GTEST_SKIP() << "no vector instructions";
  }
};

TEST_F(HostExpertsTest, TakeAllPacksButF16) {
  EXPECT_FALSE(HostExperts::takes(Pack::f16));
  for (const Pack pack : kPacks) EXPECT_TRUE(HostExperts::takes(pack)) << name_of(pack);
}

TEST_F(HostExpertsTest, ComputeWhatTheUnitsSay) {
  ThreadPool pool(2, ThreadPool::Waiting::sleep);
  for (const Pack pack : kPacks) {
    Random random(static_cast<uint64_t>(pack) + 7);
    const Layer odd(random, pack, pack, pack, 9, 300, 40);
    for (const int64_t rows : {1, 3, 17, 64}) {
      SCOPED_TRACE(testing::Message() << name_of(pack) << ", " << rows << " rows");
      check(odd, Step(random, odd, rows, 4), pool);
    }
    SCOPED_TRACE(name_of(pack));
    const Layer whole(random, pack, pack, pack, 3, 512, 288);
    check(whole, Step(random, whole, 5, 2), pool);
  }
}

TEST_F(HostExpertsTest, MixPacks) {
  ThreadPool pool(2, ThreadPool::Waiting::sleep);
  Random random(3);
  for (size_t i = 0; i < std::size(kPacks); ++i) {
    const Pack gate = kPacks[i], up = kPacks[(i + 1) % 6], down = kPacks[(i + 2) % 6];
    SCOPED_TRACE(testing::Message() << name_of(gate) << name_of(up) << name_of(down));
    const Layer layer(random, gate, up, down, 5, 260, 264);
    check(layer, Step(random, layer, 6, 3), pool);
  }
}

std::vector<float> result(const Layer& layer, const Step& step, ThreadPool& pool) {
  HostExperts experts(pool, limits_of(layer, step));
  std::vector<float> y(static_cast<size_t>(step.rows * layer.width), -1.0f);
  experts.run(step.job(layer, y.data()));
  return y;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// More threads take more blocks in halves: all of the blocks of 3 experts, few of 40.
TEST_F(HostExpertsTest, DoNotDependOnThreads) {
  ThreadPool one(1, ThreadPool::Waiting::sleep), two(2, ThreadPool::Waiting::sleep),
      five(5, ThreadPool::Waiting::sleep);
  for (const Pack pack : kPacks)
    for (const int64_t experts : {3, 40}) {
      SCOPED_TRACE(testing::Message() << name_of(pack) << ", " << experts << " experts");
      Random random(static_cast<uint64_t>(experts));
      const Layer layer(random, pack, pack, pack, experts, 300, 72);
      for (const int64_t rows : {1, 17}) {
        const Step step(random, layer, rows, 3);
        const auto want = result(layer, step, one);
        EXPECT_TRUE(same_bytes(result(layer, step, two), want));
        EXPECT_TRUE(same_bytes(result(layer, step, five), want));
      }
    }
}

TEST_F(HostExpertsTest, RowsDoNotDependOnOtherRows) {
  ThreadPool pool(2, ThreadPool::Waiting::sleep);
  for (const Pack pack : kPacks) {
    SCOPED_TRACE(name_of(pack));
    Random random(11);
    const Layer layer(random, pack, pack, pack, 4, 300, 72);
    const Step all(random, layer, 23, 3);
    const auto want = result(layer, all, pool);
    for (int64_t row = 0; row < all.rows; ++row) {
      Step one = all;
      const auto offset = static_cast<ptrdiff_t>(row * all.used);
      one.rows = 1;
      one.x.erase(one.x.begin(), one.x.begin() + static_cast<ptrdiff_t>(row * all.stride));
      one.ids.erase(one.ids.begin(), one.ids.begin() + offset);
      one.weights.erase(one.weights.begin(), one.weights.begin() + offset);
      const auto from = want.begin() + static_cast<ptrdiff_t>(row * layer.width);
      EXPECT_TRUE(same_bytes(result(layer, one, pool), {from, from + layer.width})) << row;
    }
  }
}

TEST_F(HostExpertsTest, WithoutOwnExpertsRowsAreZeros) {
  ThreadPool pool(2, ThreadPool::Waiting::sleep);
  Random random(5);
  const Layer layer(random, Pack::q4k, Pack::q4k, Pack::q6k, 4, 300, 40);
  Step step(random, layer, 3, 2);
  std::fill(step.mine.begin(), step.mine.end(), 0u);
  HostExperts experts(pool, limits_of(layer, step));
  std::vector<float> y(static_cast<size_t>(step.rows * layer.width), 1.0f);
  EXPECT_EQ(experts.run(step.job(layer, y.data())), 0);
  for (const float v : y) EXPECT_EQ(v, 0.0f);
}

// A row's NaN or infinity is seen in its own y, in no other row's.
TEST_F(HostExpertsTest, DoNotHideWhatIsNotFinite) {
  ThreadPool pool(1, ThreadPool::Waiting::sleep);
  for (const uint16_t bad : {uint16_t{0x7e00}, uint16_t{0xfe00}, uint16_t{0x7c00}}) {
    Random random(6);
    const Layer layer(random, Pack::q6k, Pack::q6k, Pack::q6k, 2, 256, 64);
    Step step(random, layer, 3, 1);
    step.ids = {0, 0, 0};
    step.x[static_cast<size_t>(step.stride) + 40] = bad;
    const auto y = result(layer, step, pool);
    int not_finite = 0;
    for (size_t i = 0; i < 256; ++i) {
      EXPECT_TRUE(std::isfinite(y[i]) && std::isfinite(y[512 + i]));
      not_finite += std::isfinite(y[256 + i]) ? 0 : 1;
    }
    EXPECT_EQ(not_finite, 256) << std::hex << bad;
  }
}

TEST_F(HostExpertsTest, DoNotAllocateInRuns) {
  ThreadPool pool(2, ThreadPool::Waiting::sleep);
  Random random(8);
  const Layer layer(random, Pack::q4k, Pack::q5, Pack::q6k, 6, 300, 72);
  const Step step(random, layer, 17, 4);
  HostExperts experts(pool, limits_of(layer, step));
  std::vector<float> y(static_cast<size_t>(step.rows * layer.width));
  experts.run(step.job(layer, y.data()));
  const uint64_t before = heap_bytes();
  experts.run(step.job(layer, y.data()));
  EXPECT_EQ(heap_bytes(), before);
}

}  // namespace
}  // namespace braid::cuda
