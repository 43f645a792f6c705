// unit_tiles-inl.h -- codes of a unit between planes and rows. Included per target (Highway).

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "ops/cpu/kv_unit.h"
#include "ops/cpu/simd-inl.h"
#include "ops/kv/code_planes.h"

#if defined(BRAID_OPS_CPU_KV_UNIT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRAID_OPS_CPU_KV_UNIT_TILES_INL_H_
#undef BRAID_OPS_CPU_KV_UNIT_TILES_INL_H_
#else
#define BRAID_OPS_CPU_KV_UNIT_TILES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCells = kBlockTokens;
constexpr int64_t kTile = 16;
using cpu::UnitFormat;
template <UnitFormat kFormat>
constexpr int kCodeBits = kFormat == UnitFormat::q8_0 ? 8 : 4;
constexpr int64_t kGroup = 32;  // channels of a scale of q8_0 and q4_0
using Ints = hn::RebindToSigned<FloatTag>;
using Codes = hn::Rebind<uint8_t, FloatTag>;

// put_planes: codes [32][head_dim] to planes of 8 or 4 bits, [channel][32 cells].
// get_planes: 16 channels of planes to codes [32][16].
#if HWY_TARGET == HWY_SCALAR
template <int kBits>
void put_planes(const uint8_t* codes, int64_t head_dim, uint8_t* planes) {
  for (int64_t channel = 0; channel < head_dim; ++channel) {
    uint8_t cells[kCells];
    for (int64_t t = 0; t < kCells; ++t) cells[t] = codes[t * head_dim + channel];
    kv::put_codes<kBits>(planes, static_cast<int32_t>(head_dim), static_cast<int32_t>(channel),
                         cells);
  }
}

template <int kBits>
void get_planes(const uint8_t* planes, int64_t channel, uint8_t* codes) {
  for (int64_t i = 0; i < kTile; ++i) {
    uint8_t cells[kCells];
    // one plane: no width needed
    kv::get_codes<kBits>(planes, 0, static_cast<int32_t>(channel + i), cells);
    for (int64_t t = 0; t < kCells; ++t) codes[t * kTile + i] = cells[t];
  }
}
#else
using Bytes = hn::FixedTag<uint8_t, 16>;

// Each of four rounds rotates the eight bits of (row, column) by one.
HWY_INLINE void transpose(hn::Vec<Bytes> (&tile)[kTile]) {
  const Bytes d;
  for (int round = 0; round < 4; ++round) {
    hn::Vec<Bytes> next[kTile];
    for (int64_t i = 0; i < kTile / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, tile[i], tile[i + kTile / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, tile[i], tile[i + kTile / 2]);
    }
    for (int64_t i = 0; i < kTile; ++i) tile[i] = next[i];
  }
}

template <int kBits>
HWY_INLINE void put_planes(const uint8_t* codes, int64_t head_dim, uint8_t* planes) {
  const Bytes d;
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    hn::Vec<Bytes> low[kTile], high[kTile];
    for (int64_t t = 0; t < kTile; ++t) {
      low[t] = hn::LoadU(d, codes + t * head_dim + channel);
      high[t] = hn::LoadU(d, codes + (t + kTile) * head_dim + channel);
    }
    transpose(low);
    transpose(high);
    uint8_t* out = planes + channel * 4 * kBits;
    for (int64_t i = 0; i < kTile; ++i) {
      if constexpr (kBits == 8) {
        hn::StoreU(low[i], d, out + 32 * i);
        hn::StoreU(high[i], d, out + 32 * i + 16);
      } else {
        const hn::Repartition<uint16_t, Bytes> wide;
        const auto upper =
            hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(wide, high[i])));  // codes are below 16
        hn::StoreU(hn::Or(low[i], upper), d, out + 16 * i);
      }
    }
  }
}

template <int kBits>
HWY_INLINE void get_planes(const uint8_t* planes, int64_t channel, uint8_t* codes) {
  const Bytes d;
  const uint8_t* in = planes + channel * 4 * kBits;
  hn::Vec<Bytes> low[kTile], high[kTile];
  for (int64_t i = 0; i < kTile; ++i) {
    if constexpr (kBits == 8) {
      low[i] = hn::LoadU(d, in + 32 * i);
      high[i] = hn::LoadU(d, in + 32 * i + 16);
    } else {
      const hn::Repartition<uint16_t, Bytes> wide;
      const auto both = hn::LoadU(d, in + 16 * i);
      low[i] = hn::And(both, hn::Set(d, 15));
      high[i] = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(wide, both))), hn::Set(d, 15));
    }
  }
  transpose(low);
  transpose(high);
  for (int64_t t = 0; t < kTile; ++t) {
    hn::StoreU(low[t], d, codes + t * kTile);
    hn::StoreU(high[t], d, codes + (t + kTile) * kTile);
  }
}
#endif

template <typename Act>
HWY_INLINE void with_format(UnitFormat format, const Act& act) {
  switch (format) {
    case UnitFormat::none:
      return;
    case UnitFormat::q8_0:
      return act.template operator()<UnitFormat::q8_0>();
    case UnitFormat::q4_0:
      return act.template operator()<UnitFormat::q4_0>();
    case UnitFormat::c4:
      return act.template operator()<UnitFormat::c4>();
  }
}

HWY_INLINE Floats load_codes(const uint8_t* codes) {
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(Ints(), hn::LoadU(Codes(), codes)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#endif
