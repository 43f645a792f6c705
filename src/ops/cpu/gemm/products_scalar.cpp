// products_scalar.cpp -- the kernels as plain loops: the bitwise reference of every instruction set
// (products.h), and the path of processors without kernels.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "ops/cpu/gemm/activations.h"
#include "ops/cpu/gemm/decode.h"
#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/repack.h"

namespace braid::cpu {
namespace {

int64_t job_row(const Job& job, int64_t m) {
  return job.row != nullptr ? job.row[m] : job.first + m;
}

// Code of element `i` of a block. int8 and int16 codes are both kept as words.
int code_at(const ActView& act, int64_t at, int i) {
  constexpr int kPlace[4] = {0, 2, 1, 3};
  return act.wide[at].q[i / 4 * 4 + kPlace[i % 4]];
}

float dot_w8(const W8* tiles, const Job& job, int64_t m, int r) {
  float acc = 0;
  for (int64_t b = 0; b < (job.k + 31) / 32; b++) {
    const W8& tile = tiles[b / 2];
    const int64_t at = b / 8 * job.act.rows + job_row(job, m);
    const int sub = static_cast<int>(b % 8);
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
      const int w = tile.q[b % 2 * 8 + i / 4][4 * r + i % 4] - 128;
      sum += w * code_at(job.act, at, 32 * sub + i);
    }
    acc = std::fma(static_cast<float>(sum) * job.act.head[at].d[sub], f16_to_f32(tile.d[b % 2][r]),
                   acc);
  }
  return acc;
}

template <typename Tile>
float dot_k45(const Tile* tiles, const Job& job, int64_t m, int r) {
  float acc = 0;
  for (int64_t b = 0; b < job.k / 256; b++) {
    const Tile& tile = tiles[b];
    const int64_t at = b * job.act.rows + job_row(job, m);
    const ActHead& head = job.act.head[at];
    float f = 0, mins = 0;
    for (int g = 0; g < 8; g++) {
      int32_t sum = 0;
      for (int i = 32 * g; i < 32 * g + 32; i++)
        sum += code_of(tile, i, r) * code_at(job.act, at, i);
      f = std::fma(static_cast<float>(sum) * static_cast<float>(tile.scale[g][r]), head.d[g], f);
      mins = std::fma(static_cast<float>(tile.min[g][r]), head.dsum[g], mins);
    }
    acc = std::fma(f16_to_f32(tile.d[r]), f, acc);
    acc = std::fma(-f16_to_f32(tile.dmin[r]), mins, acc);
  }
  return acc;
}

float dot_w6k(const W6K* tiles, const Job& job, int64_t m, int r) {
  float acc = 0;
  for (int64_t b = 0; b < job.k / 256; b++) {
    const W6K& tile = tiles[b];
    const int64_t at = b * job.act.rows + job_row(job, m);
    float f = 0;
    for (int sub = 0; sub < 8; sub++) {
      int32_t sum[2] = {0, 0};
      for (int i = 0; i < 32; i++) {
        sum[i / 16] += (code_of(tile, 32 * sub + i, r) - 32) * code_at(job.act, at, 32 * sub + i);
      }
      const float first = static_cast<float>(sum[0]) * static_cast<float>(tile.scale[sub][r][0]);
      const float both =
          std::fma(static_cast<float>(sum[1]), static_cast<float>(tile.scale[sub][r][1]), first);
      f = std::fma(both, job.act.head[at].d[sub], f);
    }
    acc = std::fma(f16_to_f32(tile.d[r]), f, acc);
  }
  return acc;
}

template <Layout layout>
float dot_small(const std::byte* tiles, const Job& job, int64_t m, int r) {
  float acc = 0;
  for (int64_t begin = 0; begin < job.k; begin += kBlockK) {
    const int64_t at = begin / kBlockK * job.act.rows + job_row(job, m);
    const ActHead& head = job.act.head[at];
    const int subs = static_cast<int>(std::min<int64_t>(kBlockK, job.k - begin) / 32);
    for (int sub = 0; sub < subs; sub++) {
      const int64_t first = begin + 32 * sub;
      int32_t sum[2] = {0, 0};
      for (int i = 0; i < 32; i++) {
        sum[i / 16] +=
            small_value(layout, tiles, first + i, r) * code_at(job.act, at, 32 * sub + i);
      }
      const float d = small_factor(layout, tiles, first, r);
      if (layout == Layout::nvfp4) {
        acc = std::fma(static_cast<float>(sum[0]) * head.d[sub], d, acc);
        acc = std::fma(static_cast<float>(sum[1]) * head.d[sub],
                       small_factor(layout, tiles, first + 16, r), acc);
      } else {
        acc = std::fma(static_cast<float>(sum[0] + sum[1]) * head.d[sub], d, acc);
      }
    }
    for (int sub = 0; has_min(layout) && sub < subs; sub++) {
      acc = std::fma(small_min(layout, tiles, begin + 32 * sub, r), head.dsum[sub], acc);
    }
  }
  return acc;
}

template <typename Tile, float (*dot)(const Tile*, const Job&, int64_t, int)>
void coded_rows(const Job& job) {
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t m = 0; m < job.rows; m++) {
      for (int r = 0; r < kGroupRows; r++)
        job.out[m * job.out_stride + 16 * g + r] = dot(tiles, job, m, r);
    }
  }
}

template <Layout layout>
void float_rows(const Job& job) {
  auto* panel = reinterpret_cast<float*>(job.scratch);
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t m = 0; m < job.rows; m++) {
      std::fill_n(job.out + m * job.out_stride + 16 * g, kGroupRows, 0.0f);
    }
    for (int64_t begin = 0; begin < job.k; begin += kBlockK) {
      decode_tiles(layout, job.raw_type, tiles, job.k, begin / kBlockK, panel);
      const int64_t count = std::min<int64_t>(kBlockK, job.k - begin);
      for (int64_t m = 0; m < job.rows; m++) {
        const float* x = job.act.x + job_row(job, m) * job.act.x_stride + begin;
        float* out = job.out + m * job.out_stride + 16 * g;
        for (int64_t i = 0; i < count; i++) {
          for (int r = 0; r < kGroupRows; r++) out[r] = std::fma(panel[16 * i + r], x[i], out[r]);
        }
      }
    }
  }
}

void quantize(const QuantizeJob& job) {
  const float range = job.wide_codes ? kWideRange : kCodeRange;
  for (int64_t b = 0; b < (job.k + kBlockK - 1) / kBlockK; b++) {
    const int64_t at = b * job.rows + job.row;
    ActHead& head = job.head[at];
    for (int sub = 0; sub < kSubBlocks; sub++) {
      const int64_t k = b * kBlockK + 32 * sub;
      float peak = 0;
      for (int i = 0; i < 32; i++) {
        const float magnitude = k < job.k ? std::fabs(job.x[k + i]) : 0.0f;
        if (!(magnitude <= peak)) peak = magnitude;
        if (std::isnan(peak)) break;
      }
      const bool finite = std::isfinite(peak);
      const bool zero = peak < kSmallestPeak;
      const float inverse = zero ? 0.0f : range / peak;
      int32_t sums[2] = {0, 0};
      for (int i = 0; i < 32; i++) {
        const int code = zero || !finite ? 0 : static_cast<int>(std::lrint(job.x[k + i] * inverse));
        sums[i / 16] += code;
        const int in_block = 32 * sub + i;
        constexpr int kPlace[4] = {0, 2, 1, 3};
        if (job.needs & kNeedsWide) {
          job.wide[at].q[in_block / 4 * 4 + kPlace[in_block % 4]] = static_cast<int16_t>(code);
        }
        if (job.wide_codes) continue;
        if (job.needs & kNeedsCodes) job.codes[at].q[in_block] = static_cast<int8_t>(code);
        if (job.needs & kNeedsNibbles) {
          const int low = ((code + 8) & 15) - 8;
          job.nibbles[at].low[in_block] = static_cast<int8_t>(low);
          job.nibbles[at].high[in_block] = static_cast<int8_t>((code - low) / 16);
        }
      }
      head.d[sub] = zero ? 0.0f : peak / range;
      head.sum[sub] = sums[0] + sums[1];
      head.dsum[sub] = head.d[sub] * static_cast<float>(sums[0] + sums[1]);
      for (int i = 0; i < 2; i++) head.sum16[2 * sub + i] = static_cast<int16_t>(sums[i]);
    }
  }
}

float exp_near(float x) {
  x = std::min(kExpHigh, std::max(kExpLow, x));
  const float n = std::nearbyint(x * kLog2E);
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = kExpTerms[0];
  for (int i = 1; i < 7; i++) p = std::fma(p, r, kExpTerms[i]);
  const uint32_t bits = static_cast<uint32_t>(static_cast<int>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

void silu_mul(float* y, const float* gate, const float* up, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = gate[i] / (1.0f + exp_near(-gate[i])) * up[i];
}

constexpr Kernels coded(Kernel kernel, uint8_t needs) { return {kernel, kernel, needs, needs}; }

template <int i>
void fill_floats(ProductTable* t) {
  t->f32[i] = t->i16[i] = t->i8[i] = coded(float_rows<static_cast<Layout>(i)>, kNeedsFloat);
  if constexpr (i + 1 < kLayouts) fill_floats<i + 1>(t);
}

ProductTable make_table() {
  ProductTable t;
  t.name = "scalar";
  const auto set = [&](Layout layout, Kernel kernel) {
    t.i8[static_cast<int>(layout)] = t.i16[static_cast<int>(layout)] = coded(kernel, kNeedsWide);
  };
  fill_floats<0>(&t);
  set(Layout::w8, coded_rows<W8, dot_w8>);
  set(Layout::w4k, coded_rows<W4K, dot_k45<W4K>>);
  set(Layout::w5k, coded_rows<W5K, dot_k45<W5K>>);
  set(Layout::w6k, coded_rows<W6K, dot_w6k>);
#define BRAID_SMALL_SCALAR(l) set(Layout::l, coded_rows<std::byte, dot_small<Layout::l>>);
  BRAID_SMALL_LAYOUTS(BRAID_SMALL_SCALAR)
  t.quantize = quantize;
  t.silu_mul = silu_mul;
  return t;
}

}  // namespace

void decode_tiles(Layout layout, uint32_t raw_type, const std::byte* tiles, int64_t k,
                  int64_t block, float* panel) {
  decode_panel(layout, static_cast<GgmlType>(raw_type), tiles, k, block, panel);
}

const ProductTable& scalar_products() {
  static const ProductTable table = make_table();
  return table;
}

}  // namespace braid::cpu
