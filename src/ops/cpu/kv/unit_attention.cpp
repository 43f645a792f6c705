// unit_attention.cpp -- see unit_attention.h.
//
// K: lanes are cells. A channel's codes become f32 once and meet all heads; what belongs to the channel is
// multiplied into q before (c4), what belongs to a cell and 32 channels after those channels (q8_0). Zeros of
// c4 leave the loop: they multiply sums of q.
//
// V: 16 channels are turned so that lanes are channels; weights take what belongs to cells, sums what belongs
// to channels.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kv/unit_attention.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "ops/cpu/kv/unit_attention.h"
#include "base/check.h"
#include "ops/cpu/kv/unit_tiles-inl.h"
#include "ops/cpu/simd-inl.h"
#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCellVectors = kCells / kLanes;
constexpr int64_t kTileVectors = kTile / kLanes;
constexpr int64_t kGroup = 32;  // channels of a q8_0 scale
constexpr int kMostCode = 15;
// Heads whose sums fit the registers: over 32 cells, and over 16 channels.
constexpr int kMostScored = kLanes >= 16 ? 8 : kLanes > 1 ? 2 : 1;
constexpr int kMostAdded = kLanes >= 16 ? 8 : kLanes > 1 ? 6 : 1;

// kLanes codes of q8_0 as what they stand for.
HWY_INLINE Floats load_signed(const uint8_t* codes) {
  const hn::Rebind<int8_t, FloatTag> ds;
  const auto bytes = hn::Xor(hn::LoadU(Codes(), codes), hn::Set(Codes(), 0x80));
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(Ints(), hn::BitCast(ds, bytes)));
}
// kLanes codes of a turned tile.
template <int kBits>
HWY_INLINE Floats load_tile(const uint8_t* codes) {
  if constexpr (kBits == 8) return load_signed(codes);
  return load_codes(codes);
}

// 32 codes of a channel.
template <int kBits>
HWY_INLINE void load_channel(const uint8_t* planes, int64_t channel, Floats (&codes)[kCellVectors]) {
  const uint8_t* at = planes + channel * 4 * kBits;
  if constexpr (kBits == 8) {
    for (int64_t j = 0; j < kCellVectors; ++j) codes[j] = load_signed(at + j * kLanes);
  } else {
    const FloatTag d;
    const Ints di;
    for (int64_t j = 0; j < kCellVectors / 2; ++j) {
      const auto both = hn::PromoteTo(di, hn::LoadU(Codes(), at + j * kLanes));
      codes[j] = hn::ConvertTo(d, hn::And(both, hn::Set(di, 15)));
      codes[j + kCellVectors / 2] = hn::ConvertTo(d, hn::ShiftRight<4>(both));
    }
  }
}

// f32 scales and zeros of kLanes channels of c4.
struct ChannelLanes {
  Floats s, z;
};
HWY_INLINE ChannelLanes channel_lanes(const kv::ChannelPlanes<const uint8_t>& planes, int64_t channel, int e0,
                                      float zstep) {
  const FloatTag d;
  const Ints di;
  const hn::Rebind<int8_t, FloatTag> dm;
  const auto byte = hn::PromoteTo(di, hn::LoadU(Codes(), planes.s + channel));
  const Floats s = hn::BitCast(d, hn::ShiftLeft<19>(hn::Add(byte, hn::Set(di, (e0 + 127) << 4))));
  const auto m = hn::PromoteTo(di, hn::LoadU(dm, reinterpret_cast<const int8_t*>(planes.m + channel)));
  const Floats middle = hn::Mul(hn::ConvertTo(d, m), set(zstep));
  return {s, hn::Sub(middle, hn::Mul(s, set(0.5f * kMostCode)))};
}

// ---- K ----

template <int kHeads>
void score_c4(int64_t head_dim, const float* q, const uint8_t* unit, float* scores) {
  const FloatTag d;
  const auto width = static_cast<int32_t>(head_dim);
  const auto planes = kv::channel_planes(unit + kv::code_bytes(4, width), width);
  const int e0 = kv::load_base(planes.head);
  const float zstep = kv::load_half(planes.head);
  float scaled[kHeads][kTile];  // q s
  Floats zeros[kHeads];         // lanes of sums of q z
  Floats sum[kHeads][kCellVectors];
  for (int h = 0; h < kHeads; ++h) {
    zeros[h] = hn::Zero(d);
    for (int64_t j = 0; j < kCellVectors; ++j) sum[h][j] = hn::Zero(d);
  }
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    for (int64_t j = 0; j < kTile; j += kLanes) {
      const ChannelLanes c = channel_lanes(planes, channel + j, e0, zstep);
      for (int h = 0; h < kHeads; ++h) {
        const Floats qi = load(q + h * head_dim + channel + j);
        store(hn::Mul(qi, c.s), scaled[h] + j);
        zeros[h] = hn::MulAdd(qi, c.z, zeros[h]);
      }
    }
    for (int64_t i = 0; i < kTile; ++i) {
      Floats codes[kCellVectors];
      load_channel<4>(unit, channel + i, codes);
      for (int h = 0; h < kHeads; ++h) {
        const Floats qi = set(scaled[h][i]);
        for (int64_t j = 0; j < kCellVectors; ++j) sum[h][j] = hn::MulAdd(qi, codes[j], sum[h][j]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const Floats zero = set(fold(zeros[h]));
    for (int64_t j = 0; j < kCellVectors; ++j)
      store(hn::Add(sum[h][j], zero), scores + h * kCells + j * kLanes);
  }
}

template <int kHeads>
void score_q8(int64_t head_dim, const float* q, const uint8_t* unit, float* scores) {
  const FloatTag d;
  const uint8_t* factors = unit + kv::code_bytes(8, static_cast<int32_t>(head_dim));
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < kCells; j += kLanes) store(hn::Zero(d), scores + h * kCells + j);
  }
  for (int64_t group = 0; group < head_dim / kGroup; ++group) {
    Floats sum[kHeads][kCellVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kCellVectors; ++j) sum[h][j] = hn::Zero(d);
    }
    for (int64_t i = 0; i < kGroup; ++i) {
      Floats codes[kCellVectors];
      load_channel<8>(unit, group * kGroup + i, codes);
      for (int h = 0; h < kHeads; ++h) {
        const Floats qi = set(q[h * head_dim + group * kGroup + i]);
        for (int64_t j = 0; j < kCellVectors; ++j) sum[h][j] = hn::MulAdd(qi, codes[j], sum[h][j]);
      }
    }
    for (int64_t j = 0; j < kCellVectors; ++j) {
      const auto* steps = reinterpret_cast<const std::byte*>(factors + group * kv::kFactorBytes);
      const Floats step = load_kv<KvFormat::f16>(steps, j * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        float* at = scores + h * kCells + j * kLanes;
        store(hn::MulAdd(sum[h][j], step, load(at)), at);
      }
    }
  }
}

// ---- V ----

// lanes [kHeads] of 16 channels: sums of weight * code over the cells. weights [kHeads][32].
template <int kBits, int kHeads>
HWY_INLINE void sum_tile(const uint8_t* codes, const float* weights, Floats (&sum)[kHeads][kTileVectors]) {
  for (int64_t t = 0; t < kCells; ++t) {
    Floats x[kTileVectors];
    for (int64_t j = 0; j < kTileVectors; ++j) x[j] = load_tile<kBits>(codes + t * kTile + j * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const Floats w = set(weights[h * kCells + t]);
      for (int64_t j = 0; j < kTileVectors; ++j) sum[h][j] = hn::MulAdd(w, x[j], sum[h][j]);
    }
  }
}

// weights [32] times f16 factors of cells; returns their sum.
HWY_INLINE float weigh(const float* weights, const uint8_t* factors, float* out) {
  Floats all = hn::Zero(FloatTag());
  for (int64_t j = 0; j < kCells; j += kLanes) {
    const Floats factor = load_kv<KvFormat::f16>(reinterpret_cast<const std::byte*>(factors), j);
    const Floats w = hn::Mul(load(weights + j), factor);
    store(w, out + j);
    all = hn::Add(all, w);
  }
  return fold(all);
}

template <int kHeads>
void add_c4(int64_t head_dim, const float* weights, const uint8_t* unit, float* acc, int64_t acc_stride) {
  const auto width = static_cast<int32_t>(head_dim);
  const uint8_t* at = unit + kv::code_bytes(4, width);
  const auto planes = kv::channel_planes(at, width);
  const int e0 = kv::load_base(planes.head);
  const float zstep = kv::load_half(planes.head);
  float weighed[kHeads * kCells];
  float totals[kHeads] = {};
  for (int h = 0; h < kHeads; ++h)
    totals[h] = weigh(weights + h * kCells, at + kv::channel_plane_bytes(width), weighed + h * kCells);
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    uint8_t codes[kCells * kTile];
    get_planes<4>(unit, channel, codes);
    Floats sum[kHeads][kTileVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kTileVectors; ++j) sum[h][j] = hn::Zero(FloatTag());
    }
    sum_tile<4, kHeads>(codes, weighed, sum);
    for (int64_t j = 0; j < kTileVectors; ++j) {
      const ChannelLanes c = channel_lanes(planes, channel + j * kLanes, e0, zstep);
      for (int h = 0; h < kHeads; ++h) {
        float* to = acc + h * acc_stride + channel + j * kLanes;
        store(hn::Add(load(to), hn::MulAdd(sum[h][j], c.s, hn::Mul(c.z, set(totals[h])))), to);
      }
    }
  }
}

template <int kHeads>
void add_q8(int64_t head_dim, const float* weights, const uint8_t* unit, float* acc, int64_t acc_stride) {
  const uint8_t* factors = unit + kv::code_bytes(8, static_cast<int32_t>(head_dim));
  float weighed[kHeads * kCells];
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    if (channel % kGroup == 0) {
      for (int h = 0; h < kHeads; ++h)
        weigh(weights + h * kCells, factors + channel / kGroup * kv::kFactorBytes, weighed + h * kCells);
    }
    uint8_t codes[kCells * kTile];
    get_planes<8>(unit, channel, codes);
    Floats sum[kHeads][kTileVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kTileVectors; ++j) sum[h][j] = hn::Zero(FloatTag());
    }
    sum_tile<8, kHeads>(codes, weighed, sum);
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kTileVectors; ++j) {
        float* to = acc + h * acc_stride + channel + j * kLanes;
        store(hn::Add(load(to), sum[h][j]), to);
      }
    }
  }
}

// Calls act<count>(first) for all heads, as many at once as fit. A head's numbers do not depend on those
// beside it: lanes and order are the same in every form.
template <int kMost, typename Act>
HWY_INLINE void for_heads(int32_t heads, int32_t first, const Act& act) {
  for (; heads - first >= kMost; first += kMost) act.template operator()<kMost>(first);
  if constexpr (kMost > 1) for_heads<kMost == 2 ? 1 : kMost - 2>(heads, first, act);
}

void score_here(bool eight_bits, int64_t head_dim, int32_t heads, const float* q, const uint8_t* unit,
                float* scores) {
  for_heads<kMostScored>(heads, 0, [&]<int kHeads>(int32_t h) {
    const auto score = eight_bits ? score_q8<kHeads> : score_c4<kHeads>;
    score(head_dim, q + h * head_dim, unit, scores + h * kCells);
  });
}

void add_here(bool eight_bits, int64_t head_dim, int32_t heads, const float* weights, const uint8_t* unit,
              float* acc, int64_t acc_stride) {
  for_heads<kMostAdded>(heads, 0, [&]<int kHeads>(int32_t h) {
    const auto add = eight_bits ? add_q8<kHeads> : add_c4<kHeads>;
    add(head_dim, weights + h * kCells, unit, acc + h * acc_stride, acc_stride);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(score_here);
HWY_EXPORT(add_here);
}  // namespace

namespace cpu {

void score_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* q, const uint8_t* unit,
                float* scores) {
  BRAID_CHECK(has_unit_kernels(codec, head_dim));
  HWY_DYNAMIC_DISPATCH(score_here)(&codec == &kv::kQ8_0, head_dim, heads, q, unit, scores);
}

void add_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* weights,
              const uint8_t* unit, float* acc, int64_t acc_stride) {
  BRAID_CHECK(has_unit_kernels(codec, head_dim));
  HWY_DYNAMIC_DISPATCH(add_here)(&codec == &kv::kQ8_0, head_dim, heads, weights, unit, acc, acc_stride);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
