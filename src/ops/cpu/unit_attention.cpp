// unit_attention.cpp -- see unit_attention.h.
//
// K: lanes are cells. A channel's codes become f32 once for all heads. c4: factors of channels are
// multiplied into q, zeros into sums of q. q8_0, q4_0: factors apply to sums of 32 channels.
//
// V: lanes are channels. Codes of four cells are moved together as 32-bit numbers and split in the
// lanes. Factors of cells are multiplied into the weights, factors of channels into the sums.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/unit_attention.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "ops/cpu/unit_attention.h"
#include "base/check.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/unit_tiles-inl.h"
#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCellVectors = kCells / kLanes;
constexpr int64_t kHalfVectors = kCellVectors / 2;  // of 4 bits: the cells in the low nibbles
constexpr int kMostCode = 15;

// Heads, and vectors of cells (K) or channels (V), per pass: as many as fit the registers.
constexpr int kMostHeads = kLanes >= 16 ? 8 : kLanes > 1 ? 6 : 1;
template <int kHeads>
constexpr int kScoredVectors = kLanes >= 16 || kHeads <= 2 ? kCellVectors : kCellVectors / 2;
template <int kHeads>
constexpr int kAddedVectors = kLanes >= 16  ? 2
                              : kHeads <= 2 ? 4
                                            : 2;

// The same address, hidden from the compiler, which would load a number with two uses separately.
// AVX-512 multiplies by a memory operand for free.
HWY_INLINE const float* other_name(const float* at) {
  if constexpr (kLanes >= 16) asm("" : "+r"(at));
  return at;
}

// XOR masks for four bytes that turn codes of q8_0 and q4_0 into the signed numbers they stand for.
template <UnitFormat kFormat>
constexpr uint32_t kSigns = kFormat == UnitFormat::q8_0   ? 0x80808080
                            : kFormat == UnitFormat::q4_0 ? 0x88888888
                                                          : 0;

template <UnitFormat kFormat>
HWY_INLINE hn::Vec<Ints> load_bytes(const uint8_t* codes) {
  const auto bytes = hn::LoadU(Codes(), codes);
  if constexpr (kSigns<kFormat> == 0) return hn::PromoteTo(Ints(), bytes);
  const hn::Rebind<int8_t, FloatTag> ds;
  const auto signs = hn::Set(Codes(), static_cast<uint8_t>(kSigns<kFormat> & 0xff));
  return hn::PromoteTo(Ints(), hn::BitCast(ds, hn::Xor(bytes, signs)));
}

// load_channel() gives q4_0 codes of low nibbles times 2^28, to save an operation.
constexpr float kLowScale = 1.0f / (1 << 28);

template <UnitFormat kFormat, int kFirst, int kVectors>
HWY_INLINE void load_channel(const uint8_t* planes, int64_t channel, Floats (&codes)[kVectors]) {
  const uint8_t* at = planes + channel * 4 * kCodeBits<kFormat>;
  const FloatTag d;
  if constexpr (kFormat == UnitFormat::q8_0) {
    for (int64_t j = 0; j < kVectors; ++j)
      codes[j] = hn::ConvertTo(d, load_bytes<kFormat>(at + (kFirst + j) * kLanes));
  } else {
    const Ints di;
    for (int64_t j = 0; j < kHalfVectors; ++j) {
      const auto both = load_bytes<kFormat>(at + j * kLanes);
      if constexpr (kFirst == 0) {
        const auto low =
            kFormat == UnitFormat::q4_0 ? hn::ShiftLeft<28>(both) : hn::And(both, hn::Set(di, 15));
        codes[j] = hn::ConvertTo(d, low);
      }
      if constexpr (kFirst + kVectors == kCellVectors)
        codes[kHalfVectors - kFirst + j] = hn::ConvertTo(d, hn::ShiftRight<4>(both));
    }
  }
}

struct ChannelLanes {
  Floats s, z;
};
HWY_INLINE ChannelLanes channel_lanes(const kv::ChannelPlanes<const uint8_t>& planes,
                                      int64_t channel, int e0, float zstep) {
  const FloatTag d;
  const Ints di;
  const hn::Rebind<int8_t, FloatTag> dm;
  const auto byte = hn::PromoteTo(di, hn::LoadU(Codes(), planes.s + channel));
  const Floats s = hn::BitCast(d, hn::ShiftLeft<19>(hn::Add(byte, hn::Set(di, (e0 + 127) << 4))));
  const auto m =
      hn::PromoteTo(di, hn::LoadU(dm, reinterpret_cast<const int8_t*>(planes.m + channel)));
  const Floats middle = hn::Mul(hn::ConvertTo(d, m), set(zstep));
  return {s, hn::Sub(middle, hn::Mul(s, set(0.5f * kMostCode)))};
}

// Prefetches the next unit into L2, each line once: L1 has no room for two blocks of K and V.
// Without a next unit it prefetches this one, which is cheaper than a branch.
class Ahead {
 public:
  Ahead(const uint8_t* next, const uint8_t* unit) : at_(next != nullptr ? next : unit) {}
  static constexpr int64_t kLine = 64;
  HWY_INLINE void ask(int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += kLine) __builtin_prefetch(at_ + i, 0, 2);
    at_ += size_bytes;
  }

 private:
  const uint8_t* at_;
};
// Channels whose codes fill a line.
template <UnitFormat kFormat>
constexpr int64_t kLineChannels = 16 / kCodeBits<kFormat>;

template <UnitFormat kFormat, int kFirst, int kHeads, int kVectors>
HWY_INLINE void meet_channel(const uint8_t* planes, int64_t channel, const float* q,
                             int64_t q_stride, Floats (&sum)[kHeads][kVectors]) {
  Floats codes[kVectors];
  load_channel<kFormat, kFirst>(planes, channel, codes);
  const float* again = other_name(q);
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < kVectors; ++j)
      sum[h][j] = hn::MulAdd(set((j % 2 == 0 ? q : again)[h * q_stride]), codes[j], sum[h][j]);
  }
}

template <int kHeads, int kFirst, int kVectors>
HWY_INLINE void score_c4_part(int64_t head_dim, const float* q, const uint8_t* unit, Ahead ahead,
                              float* scores) {
  const FloatTag d;
  const auto width = static_cast<int32_t>(head_dim);
  const auto planes = kv::channel_planes(unit + kv::code_bytes(4, width), width);
  const int e0 = kv::load_base(planes.head);
  const float zstep = kv::load_half(planes.head);
  float scaled[kHeads][kTile];  // q s
  Floats zeros[kHeads];         // lanes of sums of q z
  Floats sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    zeros[h] = hn::Zero(d);
    for (int64_t j = 0; j < kVectors; ++j) sum[h][j] = hn::Zero(d);
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
      if (i % kLineChannels<UnitFormat::c4> == 0) ahead.ask(Ahead::kLine);
      meet_channel<UnitFormat::c4, kFirst>(unit, channel + i, &scaled[0][i], kTile, sum);
    }
  }
  ahead.ask(kv::channel_plane_bytes(width));
  for (int h = 0; h < kHeads; ++h) {
    const Floats zero = set(fold(zeros[h]));
    for (int64_t j = 0; j < kVectors; ++j)
      store(hn::Add(sum[h][j], zero), scores + h * kCells + (kFirst + j) * kLanes);
  }
}

template <UnitFormat kFormat, int kHeads, int kFirst, int kVectors>
HWY_INLINE void score_rows_part(int64_t head_dim, const float* q, const uint8_t* unit, Ahead ahead,
                                float* scores) {
  const FloatTag d;
  const uint8_t* factors =
      unit + kv::code_bytes(kCodeBits<kFormat>, static_cast<int32_t>(head_dim));
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t j = kFirst; j < kFirst + kVectors; ++j)
      store(hn::Zero(d), scores + h * kCells + j * kLanes);
  }
  for (int64_t group = 0; group < head_dim / kGroup; ++group) {
    Floats sum[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kVectors; ++j) sum[h][j] = hn::Zero(d);
    }
    for (int64_t i = 0; i < kGroup; ++i) {
      if (i % kLineChannels<kFormat> == 0) ahead.ask(Ahead::kLine);
      const int64_t channel = group * kGroup + i;
      meet_channel<kFormat, kFirst>(unit, channel, q + channel, head_dim, sum);
    }
    const auto* steps = reinterpret_cast<const std::byte*>(factors + group * kv::kFactorBytes);
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t cell = (kFirst + j) * kLanes;
      Floats step = load_kv<KvFormat::f16>(steps, cell);
      if (kFormat == UnitFormat::q4_0 && kFirst + j < kHalfVectors)
        step = hn::Mul(step, set(kLowScale));
      for (int h = 0; h < kHeads; ++h) {
        float* at = scores + h * kCells + cell;
        store(hn::MulAdd(sum[h][j], step, load(at)), at);
      }
    }
    ahead.ask(kv::kFactorBytes);
  }
}

template <UnitFormat kFormat, int kHeads, int kFirst = 0>
void score(int64_t head_dim, const float* q, const uint8_t* unit, const uint8_t* next,
           float* scores) {
  constexpr int kVectors = kScoredVectors<kHeads>;
  const Ahead ahead(next, unit);
  if constexpr (kFormat == UnitFormat::c4) {
    score_c4_part<kHeads, kFirst, kVectors>(head_dim, q, unit, ahead, scores);
  } else {
    score_rows_part<kFormat, kHeads, kFirst, kVectors>(head_dim, q, unit, ahead, scores);
  }
  if constexpr (kFirst + kVectors < kCellVectors)
    score<kFormat, kHeads, kFirst + kVectors>(head_dim, q, unit, nullptr, scores);
}

// Codes of four cells by kLanes channels: lane i has those of channel i, one byte per cell.
using Quads = hn::Vec<Ints>;

// quad_cell() gives numbers divided by it.
constexpr float kQuadScale = 1.0f / (1 << 24);

// Byte b of each lane as a signed number, times 2^24.
template <int b>
HWY_INLINE Floats quad_cell(Quads quads) {
  const Ints di;
  if constexpr (b == 0) {
    quads = hn::ShiftLeft<24>(quads);
  } else if constexpr (b == 3) {
    quads = hn::And(quads, hn::Set(di, static_cast<int32_t>(0xff000000)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    quads =
        hn::And(hn::ShiftLeft<24 - 8 * b>(quads), hn::Set(di, static_cast<int32_t>(0xff000000)));
#else
    // One operation instead of a shift and a mask.
    alignas(16) static constexpr uint8_t kTop[16] = {0x80, 0x80,  0x80, b,     0x80, 0x80,
                                                     0x80, 4 + b, 0x80, 0x80,  0x80, 8 + b,
                                                     0x80, 0x80,  0x80, 12 + b};
    const hn::Repartition<uint8_t, Ints> bytes;
    quads = hn::BitCast(
        di, hn::TableLookupBytesOr0(hn::BitCast(bytes, quads), hn::LoadDup128(bytes, kTop)));
#endif
  }
  return hn::ConvertTo(FloatTag(), quads);
}

#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE hn::VFromD<D> load_blocks(D d, const uint8_t* at, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const int32_t*>(at));
  } else {
    constexpr int64_t kBlocks = hn::MaxLanes(D()) / 4;
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, at + kBlocks / 2 * stride, stride),
                       load_blocks(half, at, stride));
  }
}
#endif

// quads[k]: bytes 4 k .. 4 k + 3 of each of kLanes runs of 16 bytes, `stride` bytes apart.
HWY_INLINE void load_quads(const uint8_t* runs, int64_t stride, Quads (&quads)[4]) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t k = 0; k < 4; ++k)
    quads[k] = hn::LoadU(Ints(), reinterpret_cast<const int32_t*>(runs) + k);
#else
  const Ints di;
  const hn::Repartition<int64_t, Ints> dl;
  // Block i of row r is run 4 i + r; then blocks of 4 by 4 lanes are transposed.
  Quads row[4];
  for (int64_t r = 0; r < 4; ++r) row[r] = load_blocks(di, runs + r * stride, 4 * stride);
  const auto low = hn::BitCast(dl, hn::InterleaveLower(di, row[0], row[1]));
  const auto high = hn::BitCast(dl, hn::InterleaveUpper(di, row[0], row[1]));
  const auto low2 = hn::BitCast(dl, hn::InterleaveLower(di, row[2], row[3]));
  const auto high2 = hn::BitCast(dl, hn::InterleaveUpper(di, row[2], row[3]));
  quads[0] = hn::BitCast(di, hn::InterleaveLower(dl, low, low2));
  quads[1] = hn::BitCast(di, hn::InterleaveUpper(dl, low, low2));
  quads[2] = hn::BitCast(di, hn::InterleaveLower(dl, high, high2));
  quads[3] = hn::BitCast(di, hn::InterleaveUpper(dl, high, high2));
#endif
}

// sum[h][j] += weight * code * 2^24 for the four cells of quads[j].
template <int kHeads, int kVectors, int b = 0>
HWY_INLINE void sum_quads(const Quads (&quads)[kVectors], const float* weights,
                          Floats (&sum)[kHeads][kVectors]) {
  Floats x[kVectors];
  for (int64_t j = 0; j < kVectors; ++j) x[j] = quad_cell<b>(quads[j]);
  const float* again = other_name(weights);
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < kVectors; ++j) {
      const Floats w = set((j % 2 == 0 ? weights : again)[h * kCells + b]);
      sum[h][j] = hn::MulAdd(w, x[j], sum[h][j]);
    }
  }
  if constexpr (b < 3) sum_quads<kHeads, kVectors, b + 1>(quads, weights, sum);
}

// Low or high nibbles as bytes; q4_0 codes stay in the high nibble, times 16, to keep the sign.
template <UnitFormat kFormat, bool kHigh>
HWY_INLINE Quads half_bytes(Quads quads) {
  const Ints di;
  if constexpr (kFormat == UnitFormat::q4_0) {
    if constexpr (!kHigh) quads = hn::ShiftLeft<4>(quads);
    return hn::And(quads, hn::Set(di, static_cast<int32_t>(0xf0f0f0f0)));
  }
  if constexpr (kHigh) quads = hn::ShiftRight<4>(quads);
  return hn::And(quads, hn::Set(di, 0x0f0f0f0f));
}

// sum_channels() gives sums divided by it; products with it are exact.
template <UnitFormat kFormat>
constexpr float kSumScale = kFormat == UnitFormat::q4_0 ? kQuadScale / 16 : kQuadScale;

// Sums of weight * code over all cells, divided by kSumScale. weights [kHeads][32].
template <UnitFormat kFormat, int kHeads, int kVectors>
HWY_INLINE void sum_channels(const uint8_t* codes, const float* weights,
                             Floats (&sum)[kHeads][kVectors]) {
  constexpr int kBits = kCodeBits<kFormat>;
  constexpr int64_t kStride = 4 * kBits;
  const Ints di;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < kVectors; ++j) sum[h][j] = hn::Zero(FloatTag());
  }
  for (int64_t part = 0; part < kStride; part += 16) {
    Quads quads[4][kVectors];
    for (int64_t j = 0; j < kVectors; ++j) {
      Quads four[4];
      load_quads(codes + part + j * kLanes * kStride, kStride, four);
      for (int64_t k = 0; k < 4; ++k) {
        constexpr uint32_t signs = kSigns<kFormat>;
        quads[k][j] =
            signs != 0 ? hn::Xor(four[k], hn::Set(di, static_cast<int32_t>(signs))) : four[k];
      }
    }
    for (int64_t k = 0; k < 4; ++k) {
      if constexpr (kBits == 8) {
        sum_quads<kHeads, kVectors>(quads[k], weights + part + 4 * k, sum);
      } else {
        Quads low[kVectors];
        for (int64_t j = 0; j < kVectors; ++j) low[j] = half_bytes<kFormat, false>(quads[k][j]);
        sum_quads<kHeads, kVectors>(low, weights + 4 * k, sum);
      }
    }
    for (int64_t k = 0; kBits == 4 && k < 4; ++k) {  // cells in ascending order, as above
      Quads high[kVectors];
      for (int64_t j = 0; j < kVectors; ++j) high[j] = half_bytes<kFormat, true>(quads[k][j]);
      sum_quads<kHeads, kVectors>(high, weights + kCells / 2 + 4 * k, sum);
    }
  }
}

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
void add_c4(int64_t head_dim, const float* weights, const uint8_t* unit, const uint8_t* next,
            float* acc, int64_t acc_stride) {
  constexpr int kVectors = kAddedVectors<kHeads>;
  const auto width = static_cast<int32_t>(head_dim);
  const uint8_t* at = unit + kv::code_bytes(4, width);
  const auto planes = kv::channel_planes(at, width);
  const int e0 = kv::load_base(planes.head);
  const float zstep = kv::load_half(planes.head);
  float weighed[kHeads * kCells];
  float totals[kHeads] = {};
  for (int h = 0; h < kHeads; ++h)
    totals[h] =
        weigh(weights + h * kCells, at + kv::channel_plane_bytes(width), weighed + h * kCells);
  Ahead ahead(next, unit);
  for (int64_t channel = 0; channel < head_dim; channel += kVectors * kLanes) {
    ahead.ask(kv::code_bytes(4, kVectors * kLanes));
    Floats sum[kHeads][kVectors];
    sum_channels<UnitFormat::c4, kHeads, kVectors>(unit + kv::code_bytes(4, channel), weighed, sum);
    for (int64_t j = 0; j < kVectors; ++j) {
      const ChannelLanes c = channel_lanes(planes, channel + j * kLanes, e0, zstep);
      const Floats s = hn::Mul(c.s, set(kSumScale<UnitFormat::c4>));
      for (int h = 0; h < kHeads; ++h) {
        float* to = acc + h * acc_stride + channel + j * kLanes;
        store(hn::Add(load(to), hn::MulAdd(sum[h][j], s, hn::Mul(c.z, set(totals[h])))), to);
      }
    }
  }
  ahead.ask(kv::channel_plane_bytes(width) + kv::kFactorBytes);
}

template <UnitFormat kFormat, int kHeads>
void add_rows(int64_t head_dim, const float* weights, const uint8_t* unit, const uint8_t* next,
              float* acc, int64_t acc_stride) {
  constexpr int kVectors = kAddedVectors<kHeads>;
  constexpr int kBits = kCodeBits<kFormat>;
  static_assert(kGroup % (kVectors * kLanes) == 0);
  const uint8_t* factors = unit + kv::code_bytes(kBits, static_cast<int32_t>(head_dim));
  float weighed[kHeads * kCells];
  Ahead ahead(next, unit);
  for (int64_t channel = 0; channel < head_dim; channel += kVectors * kLanes) {
    ahead.ask(kv::code_bytes(kBits, kVectors * kLanes));
    if (channel % kGroup == 0) {
      for (int h = 0; h < kHeads; ++h)
        weigh(weights + h * kCells, factors + channel / kGroup * kv::kFactorBytes,
              weighed + h * kCells);
    }
    Floats sum[kHeads][kVectors];
    sum_channels<kFormat, kHeads, kVectors>(unit + kv::code_bytes(kBits, channel), weighed, sum);
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kVectors; ++j) {
        float* to = acc + h * acc_stride + channel + j * kLanes;
        store(hn::MulAdd(sum[h][j], set(kSumScale<kFormat>), load(to)), to);
      }
    }
  }
  ahead.ask(head_dim / kGroup * kv::kFactorBytes);
}

template <UnitFormat kFormat, int kHeads>
void add(int64_t head_dim, const float* weights, const uint8_t* unit, const uint8_t* next,
         float* acc, int64_t acc_stride) {
  if constexpr (kFormat == UnitFormat::c4) {
    add_c4<kHeads>(head_dim, weights, unit, next, acc, acc_stride);
  } else {
    add_rows<kFormat, kHeads>(head_dim, weights, unit, next, acc, acc_stride);
  }
}

// Lanes and order are the same in every form, so a head's result does not depend on other heads.
template <int kMost, typename Act>
HWY_INLINE void for_heads(int32_t heads, int32_t first, const Act& act) {
  for (; heads - first >= kMost; first += kMost) act.template operator()<kMost>(first);
  if constexpr (kMost > 1) for_heads<kMost == 2 ? 1 : kMost - 2>(heads, first, act);
}

void score_here(UnitFormat format, int64_t head_dim, int32_t heads, const float* q,
                const uint8_t* unit, const uint8_t* next, float* scores) {
  with_format(format, [&]<UnitFormat kFormat>() {
    for_heads<kMostHeads>(heads, 0, [&]<int kHeads>(int32_t h) {
      score<kFormat, kHeads>(head_dim, q + h * head_dim, unit, h == 0 ? next : nullptr,
                             scores + h * kCells);
    });
  });
}

void add_here(UnitFormat format, int64_t head_dim, int32_t heads, const float* weights,
              const uint8_t* unit, const uint8_t* next, float* acc, int64_t acc_stride) {
  with_format(format, [&]<UnitFormat kFormat>() {
    for_heads<kMostHeads>(heads, 0, [&]<int kHeads>(int32_t h) {
      add<kFormat, kHeads>(head_dim, weights + h * kCells, unit, h == 0 ? next : nullptr,
                           acc + h * acc_stride, acc_stride);
    });
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

void score_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* q,
                const uint8_t* unit, const uint8_t* next, float* scores) {
  const UnitFormat format = unit_format(codec, head_dim);
  BRAID_CHECK(format != UnitFormat::none);
  HWY_DYNAMIC_DISPATCH(score_here)(format, head_dim, heads, q, unit, next, scores);
}

void add_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* weights,
              const uint8_t* unit, const uint8_t* next, float* acc, int64_t acc_stride) {
  const UnitFormat format = unit_format(codec, head_dim);
  BRAID_CHECK(format != UnitFormat::none);
  HWY_DYNAMIC_DISPATCH(add_here)(format, head_dim, heads, weights, unit, next, acc, acc_stride);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
