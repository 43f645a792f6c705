// kv_unit_test.cpp -- vector code against ops/kv, bit for bit.
#include "ops/cpu/kv_unit.h"

#include <cstring>

#include "base/threads.h"
#include "ops/cpu/unit_sets_test.h"
#include "ops/kv/formats.h"
#include "ops/kv/kv_rows_test.h"

namespace braid {
namespace {

using kv_test::Noise;
using kv_test::unit_rows;

std::vector<uint16_t> rows_of_kind(int kind, int32_t head_dim, uint64_t seed) {
  Noise noise(seed);
  return unit_rows(head_dim, [&](int32_t t, int32_t d) -> double {
    switch (kind) {
      case 0:
        return noise.normal();
      case 1:
        return noise.normal() * (d % 16 == 3 ? 30 : 0.2) + (d % 7 == 2 ? 5 : 0);
      case 2:
        return noise.normal() * (t == 4 ? 5 : t == 9 ? 0.1 : 1);
      case 3:
        return d % 32 == 0 ? 127 : std::floor(noise.uniform() * 254 - 127) + 0.5;  // ties of q8_0
      case 4:
        return std::floor(noise.uniform() * 16) * 0.5;  // on and between codes
      case 5:
        return 0;
      case 6:
        return -0.0;
      case 7:
        return noise.uniform() < 0.5 ? 0.0 : -0.0;
      case 8:
        return (t + d) % 2 == 0 ? 0x1p-24 : -0x1p-24;
      case 9:
        return noise.normal() * 1e-5;
      case 10:
        return noise.normal() * 2e4;
      case 11:  // ties of q4_0, and the first of its largest values at every place
        return d % 32 == t                ? (d % 64 < 32 ? 8 : -8)
               : d % 32 > t && d % 5 == 0 ? 8
                                          : std::floor(noise.uniform() * 16) - 7.5;
      case 12:
        return t == 3 && d == head_dim - 1 ? 60000 : 0;
      default:
        return t % 2 == 0 ? 65504 : -65504;
    }
  });
}
constexpr int kKinds = 14;

template <typename Visit>
void for_each_kernel(Visit visit) {
  cpu::for_each_set([&] {
    int visited = 0;
    for (const KvCodec* codec : kv_codecs()) {
      for (const int32_t head_dim : {64, 128, 192, 256, 512}) {
        if (!cpu::has_unit_kernels(*codec, head_dim)) continue;
        for (const KvSide side : kKvSides) {
          SCOPED_TRACE(testing::Message()
                       << codec->name << " " << head_dim << (side == KvSide::k ? " k" : " v"));
          visit(*codec, head_dim, side);
          ++visited;
        }
      }
    }
    EXPECT_EQ(visited, 3 * 5 * 2);
  });
}

TEST(KvUnitKernels, AreForTheirFormatsAlone) {
  EXPECT_TRUE(cpu::has_unit_kernels(kv::kQ8_0, 256));
  EXPECT_TRUE(cpu::has_unit_kernels(kv::kQ4_0, 128));
  EXPECT_TRUE(cpu::has_unit_kernels(kv::kC4, 64));
  EXPECT_FALSE(cpu::has_unit_kernels(kv::kQ8_0, 32));
  EXPECT_FALSE(cpu::has_unit_kernels(kv::kTbq4_0, 256));
  EXPECT_FALSE(cpu::has_unit_kernels(kv::kQ4_1, 256));
  EXPECT_FALSE(cpu::has_unit_kernels(kv::kC5, 256));
}

TEST(KvUnitKernels, EncodeTheSameBytes) {
  for_each_kernel([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    std::vector<float> scratch(static_cast<size_t>(cpu::unit_scratch_floats(head_dim)));
    for (int kind = 0; kind < kKinds; ++kind) {
      for (uint64_t seed = 0; seed < 2; ++seed) {
        const auto rows = rows_of_kind(kind, head_dim, seed);
        const auto want = kv_test::encoded(codec, head_dim, side, rows);
        const int64_t stride = head_dim + 40;  // rows with a gap, over other bytes
        std::vector<uint16_t> apart(static_cast<size_t>(kBlockTokens * stride), 0x7e00);
        for (int32_t t = 0; t < kBlockTokens; ++t)
          std::copy_n(rows.begin() + int64_t{t} * head_dim, head_dim, apart.begin() + t * stride);
        std::vector<uint8_t> got(want.size() + 16, 0xff);
        const FlushDenormals flush;  // as on the threads of a pool; no byte depends on it
        ASSERT_TRUE(cpu::encode_unit(codec, head_dim, side, apart.data(), stride, scratch.data(),
                                     got.data()));
        EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()))
            << "kind " << kind << " seed " << seed;
        for (size_t i = want.size(); i < got.size(); ++i) EXPECT_EQ(got[i], 0xff);
      }
    }
  });
}

TEST(KvUnitKernels, ExpandTheSameNumbers) {
  for_each_kernel([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    Noise noise(17);
    std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(head_dim, side)));
    std::vector<float> want(static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim));
    const int64_t stride = head_dim + 16;
    std::vector<float> got(static_cast<size_t>(kBlockTokens * stride));
    for (int kind = 0; kind < kKinds; ++kind) {
      unit = kv_test::encoded(codec, head_dim, side, rows_of_kind(kind, head_dim, 3));
      codec.decode(unit.data(), head_dim, side, want.data());
      std::fill(got.begin(), got.end(), 7.0f);
      cpu::expand_unit(codec, head_dim, side, unit.data(), got.data(), stride);
      for (int32_t t = 0; t < kBlockTokens; ++t) {
        ASSERT_EQ(std::memcmp(got.data() + t * stride, want.data() + int64_t{t} * head_dim,
                              static_cast<size_t>(head_dim) * sizeof(float)),
                  0)
            << "kind " << kind << " row " << t;
        for (int64_t d = head_dim; d < stride; ++d)
          ASSERT_EQ(got[static_cast<size_t>(t * stride + d)], 7.0f);
      }
    }
  });
}

TEST(KvUnitKernels, InfinitiesAndNotANumber) {
  for_each_kernel([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    std::vector<float> scratch(static_cast<size_t>(cpu::unit_scratch_floats(head_dim)));
    auto rows = rows_of_kind(0, head_dim, 1);
    rows[5] = 0x7c00;
    rows[rows.size() - 1] = 0xfc00;
    const auto want = kv_test::encoded(codec, head_dim, side, rows);
    std::vector<uint8_t> got(want.size(), 0x5a);
    ASSERT_TRUE(
        cpu::encode_unit(codec, head_dim, side, rows.data(), head_dim, scratch.data(), got.data()));
    EXPECT_EQ(got, want);
    for (const size_t at : {size_t{0}, rows.size() / 2 + 7, rows.size() - 1}) {
      auto bad = rows;
      bad[at] = 0x7e00;
      auto untouched = got;
      EXPECT_FALSE(cpu::encode_unit(codec, head_dim, side, bad.data(), head_dim, scratch.data(),
                                    got.data()));
      EXPECT_EQ(got, untouched);
    }
  });
}

}  // namespace
}  // namespace braid
