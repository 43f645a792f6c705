// kv_unit.cpp -- see kv_unit.h. Lanes are channels; codes are transposed in registers, 16 by 16.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kv_unit.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/kv_unit.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/unit_tiles-inl.h"
#include "ops/kv/channel_planes.h"
#include "ops/kv/code_planes.h"
#include "ops/kv/formats.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

struct Unit {
  int64_t head_dim;
  KvSide side;
  uint8_t* bytes;
};

// Infinities become the largest number. False if there is a NaN.
HWY_INLINE bool load_rows(const uint16_t* rows, int64_t row_stride, int64_t head_dim, float* out) {
  const hn::Rebind<uint16_t, FloatTag> dh;
  auto most = hn::Zero(dh);  // of all magnitudes, as integers
  for (int64_t t = 0; t < kCells; ++t) {
    const uint16_t* row = rows + t * row_stride;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      most = hn::Max(most, hn::And(hn::LoadU(dh, row + i), hn::Set(dh, 0x7fff)));
      const Floats x = load_kv<KvFormat::f16>(reinterpret_cast<const std::byte*>(row), i);
      store(hn::Min(hn::Max(x, set(-65504.0f)), set(65504.0f)), out + t * head_dim + i);
    }
  }
  uint16_t lanes[kLanes];
  hn::StoreU(most, dh, lanes);
  return *std::max_element(lanes, lanes + kLanes) <= 0x7c00;
}

// Truncates numbers of 0 .. 255.
HWY_INLINE void store_codes(Floats x, uint8_t* codes) {
  hn::StoreU(hn::DemoteTo(Codes(), hn::ConvertTo(Ints(), x)), Codes(), codes);
}

template <int kBits>
constexpr float kZeroCode = 1 << (kBits - 1);

HWY_INLINE Floats round_away(Floats x) {
  const Floats even = hn::Round(x);
  const Floats off = hn::Sub(x, even);
  const auto up = hn::And(hn::Eq(off, set(0.5f)), hn::Gt(x, set(0.0f)));
  const auto down = hn::And(hn::Eq(off, set(-0.5f)), hn::Lt(x, set(0.0f)));
  return hn::Add(even,
                 hn::Sub(hn::IfThenElseZero(up, set(1.0f)), hn::IfThenElseZero(down, set(1.0f))));
}

// The scale of kGroup values, unrounded. In q4_0 the first of the largest values gets code 0.
template <int kBits>
HWY_INLINE float group_step(const float* x) {
  const FloatTag d;
  Floats sizes = hn::Zero(d);
  for (int64_t i = 0; i < kGroup; i += kLanes) sizes = hn::Max(sizes, hn::Abs(load(x + i)));
  const float most = hn::GetLane(hn::MaxOfLanes(d, sizes));
  if constexpr (kBits == 8) return most / 127.0f;
  int64_t first = -1;
  for (int64_t i = 0; first < 0; i += kLanes) {
    const int64_t lane = hn::FindFirstTrue(d, hn::Eq(hn::Abs(load(x + i)), set(most)));
    if (lane >= 0) first = i + lane;
  }
  return (x[first] < 0.0f ? most : -most) / kZeroCode<kBits>;
}

// Halves round away from zero in q8_0, up in q4_0. Truncated by store_codes().
template <int kBits>
HWY_INLINE Floats row_codes(Floats x) {
  if constexpr (kBits == 8) return hn::Add(round_away(x), set(kZeroCode<kBits>));
  return hn::Min(hn::Add(x, set(kZeroCode<kBits> + 0.5f)), set(15.0f));
}

template <int kBits>
void encode_rows(const float* rows, const Unit& unit, float* scratch) {
  auto* codes = reinterpret_cast<uint8_t*>(scratch);  // [32][head_dim]
  uint8_t* factors = unit.bytes + kv::code_bytes(kBits, static_cast<int32_t>(unit.head_dim));
  for (int64_t t = 0; t < kCells; ++t) {
    for (int64_t group = 0; group < unit.head_dim / kGroup; ++group) {
      const int64_t at = t * unit.head_dim + group * kGroup;
      const float step = group_step<kBits>(rows + at);
      const float inverse = step != 0.0f ? 1.0f / step : 0.0f;
      kv::store_half(factors + group * kv::kFactorBytes + 2 * t, step);
      for (int64_t i = 0; i < kGroup; i += kLanes)
        store_codes(row_codes<kBits>(hn::Mul(load(rows + at + i), set(inverse))), codes + at + i);
    }
  }
  put_planes<kBits>(codes, unit.head_dim, unit.bytes);
}

template <int kBits>
void expand_rows(const uint8_t* bytes, int64_t head_dim, float* rows, int64_t row_stride) {
  const uint8_t* factors = bytes + kv::code_bytes(kBits, static_cast<int32_t>(head_dim));
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    uint8_t codes[kCells * kTile];
    get_planes<kBits>(bytes, channel, codes);
    const uint8_t* steps = factors + channel / kGroup * kv::kFactorBytes;
    for (int64_t t = 0; t < kCells; ++t) {
      const Floats step = set(kv::load_half(steps + 2 * t));
      for (int64_t i = 0; i < kTile; i += kLanes) {
        const Floats code = hn::Sub(load_codes(codes + t * kTile + i), set(kZeroCode<kBits>));
        store(hn::Mul(code, step), rows + t * row_stride + channel + i);
      }
    }
  }
}

constexpr int kMostCode = 15;
constexpr float kHalfCodes = 0.5f * kMostCode;
constexpr kv::ChannelShares kShares;  // tried for a channel's scale

HWY_INLINE void divide_rows(float* rows, int64_t head_dim, uint8_t* factors) {
  constexpr int64_t kVectors = 32 / kLanes;
  for (int64_t t = 0; t < kCells; ++t) {
    float* row = rows + t * head_dim;
    Floats sum[kVectors];
    for (int64_t j = 0; j < kVectors; ++j) sum[j] = hn::Zero(FloatTag());
    for (int64_t i = 0; i < head_dim; i += 32) {
      for (int64_t j = 0; j < kVectors; ++j) {
        const Floats x = load(row + i + j * kLanes);
        sum[j] = hn::Add(sum[j], hn::Mul(x, x));
      }
    }
    for (int64_t half = kVectors / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) sum[j] = hn::Add(sum[j], sum[j + half]);
    }
    const float squares = fold(sum[0]);
    kv::store_half(factors + 2 * t,
                   std::sqrt(squares / static_cast<float>(head_dim)) + kv::kRootBias);
    const Floats factor = set(kv::load_half(factors + 2 * t));
    for (int64_t i = 0; i < head_dim; i += kLanes) store(hn::Div(load(row + i), factor), row + i);
  }
}

// Shared by the scales of a unit: least exponent and step of the middles.
struct Grid {
  int e0;
  float zstep;
};

HWY_INLINE hn::Vec<Ints> scale_byte(Floats half, float share, const Grid& grid) {
  const Ints di;
  const Floats step =
      hn::Max(hn::Div(hn::Mul(set(2.0f * share), half), set(static_cast<float>(kMostCode))),
              set(kv::kLeastScale));
  const auto index = hn::ShiftRight<19>(hn::Add(hn::BitCast(di, step), hn::Set(di, 1 << 18)));
  const auto byte = hn::Sub(index, hn::Set(di, (grid.e0 + 127) << 4));
  return hn::Min(hn::Max(byte, hn::Zero(di)), hn::Set(di, 255));
}
HWY_INLINE Floats scale_of(hn::Vec<Ints> byte, const Grid& grid) {
  const Ints di;
  return hn::BitCast(FloatTag(),
                     hn::ShiftLeft<19>(hn::Add(byte, hn::Set(di, (grid.e0 + 127) << 4))));
}
HWY_INLINE Floats code_of(Floats y, Floats middle, Floats scale) {
  const Floats code = hn::Round(hn::Add(hn::Div(hn::Sub(y, middle), scale), set(kHalfCodes)));
  return hn::Min(hn::Max(code, set(0.0f)), set(static_cast<float>(kMostCode)));
}

HWY_INLINE hn::Vec<Ints> best_scale(const float* rows, int64_t head_dim, Floats half, Floats middle,
                                    const Grid& grid) {
  const Ints di;
  auto best = hn::Zero(di);
  Floats least = set(HUGE_VALF);
  for (const float share : kShares.part) {
    const auto byte = scale_byte(half, share, grid);
    const Floats s = scale_of(byte, grid);
    const Floats z = hn::Sub(middle, hn::Mul(s, set(kHalfCodes)));
    Floats error = hn::Zero(FloatTag());
    for (int64_t t = 0; t < kCells; ++t) {
      const Floats y = load(rows + t * head_dim);
      const Floats off = hn::Sub(y, hn::Add(hn::Mul(s, code_of(y, middle, s)), z));
      error = hn::Add(error, hn::Mul(off, off));
    }
    const auto better = hn::Lt(error, least);
    best = hn::IfThenElse(hn::RebindMask(di, better), byte, best);
    least = hn::IfThenElse(better, error, least);
  }
  return best;
}

void encode_c4(float* rows, const Unit& unit, float* scratch) {
  const FloatTag d;
  const Ints di;
  const int64_t head_dim = unit.head_dim;
  const auto width = static_cast<int32_t>(head_dim);
  uint8_t* planes = unit.bytes + kv::code_bytes(4, width);
  const auto channels = kv::channel_planes(planes, width);
  if (unit.side == KvSide::v) divide_rows(rows, head_dim, planes + kv::channel_plane_bytes(width));
  float* middles = scratch;
  float* halves = scratch + head_dim;
  auto* codes = reinterpret_cast<uint8_t*>(scratch + 2 * head_dim);  // [32][head_dim]
  Floats farthest = hn::Zero(d);
  Floats widest = hn::Zero(d);
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    Floats low = load(rows + i);
    Floats high = low;
    for (int64_t t = 1; t < kCells; ++t) {
      const Floats x = load(rows + t * head_dim + i);
      low = hn::Min(low, x);
      high = hn::Max(high, x);
    }
    const Floats middle = hn::Mul(hn::Add(low, high), set(0.5f));
    const Floats half = hn::Mul(hn::Sub(high, low), set(0.5f));
    store(middle, middles + i);
    store(half, halves + i);
    farthest = hn::Max(farthest, hn::Abs(middle));
    widest = hn::Max(widest, half);
  }
  const uint16_t zstep = f32_to_f16(hn::GetLane(hn::MaxOfLanes(d, farthest)) / kv::kMostMiddle);
  const float widest_step =
      2.0f * hn::GetLane(hn::MaxOfLanes(d, widest)) / static_cast<float>(kMostCode);
  const Grid grid{kv::grid_base(std::max(widest_step, kv::kLeastScale)), f16_to_f32(zstep)};
  kv::store_head(channels.head, zstep, grid.e0);
  const hn::Rebind<int8_t, FloatTag> dm;
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    Floats m = hn::Zero(d);
    if (grid.zstep != 0.0f) {
      m = hn::Round(hn::Div(load(middles + i), set(grid.zstep)));
      m = hn::Min(hn::Max(m, set(-kv::kMostMiddle)), set(kv::kMostMiddle));
    }
    hn::StoreU(hn::DemoteTo(dm, hn::ConvertTo(di, m)), dm,
               reinterpret_cast<int8_t*>(channels.m + i));
    const Floats middle = hn::Mul(m, set(grid.zstep));
    const auto byte = best_scale(rows + i, head_dim, load(halves + i), middle, grid);
    hn::StoreU(hn::DemoteTo(Codes(), byte), Codes(), channels.s + i);
    const Floats s = scale_of(byte, grid);
    for (int64_t t = 0; t < kCells; ++t)
      store_codes(code_of(load(rows + t * head_dim + i), middle, s), codes + t * head_dim + i);
  }
  put_planes<4>(codes, head_dim, unit.bytes);
}

void expand_c4(const uint8_t* bytes, int64_t head_dim, KvSide side, float* rows,
               int64_t row_stride) {
  const auto width = static_cast<int32_t>(head_dim);
  const uint8_t* planes = bytes + kv::code_bytes(4, width);
  const auto channels = kv::channel_planes(planes, width);
  const uint8_t* factors = planes + kv::channel_plane_bytes(width);
  for (int64_t channel = 0; channel < head_dim; channel += kTile) {
    uint8_t codes[kCells * kTile];
    get_planes<4>(bytes, channel, codes);
    float s[kTile], z[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      const kv::ChannelScale c = channels.scale(static_cast<int32_t>(channel + i), kMostCode);
      s[i] = c.s;
      z[i] = c.z;
    }
    for (int64_t t = 0; t < kCells; ++t) {
      const Floats factor = set(side == KvSide::v ? kv::load_half(factors + 2 * t) : 1.0f);
      for (int64_t i = 0; i < kTile; i += kLanes) {
        const Floats y =
            hn::Add(hn::Mul(load(s + i), load_codes(codes + t * kTile + i)), load(z + i));
        store(hn::Mul(y, factor), rows + t * row_stride + channel + i);
      }
    }
  }
}

bool encode_here(UnitFormat format, int32_t head_dim, KvSide side, const uint16_t* rows,
                 int64_t row_stride, float* scratch, uint8_t* unit) {
  float* wide = scratch;
  if (!load_rows(rows, row_stride, head_dim, wide)) return false;
  float* rest = wide + kCells * head_dim;
  const Unit to{head_dim, side, unit};
  with_format(format, [&]<UnitFormat kFormat>() {
    if constexpr (kFormat == UnitFormat::c4) {
      encode_c4(wide, to, rest);
    } else {
      encode_rows<kCodeBits<kFormat>>(wide, to, rest);
    }
  });
  return true;
}

void expand_here(UnitFormat format, int32_t head_dim, KvSide side, const uint8_t* unit, float* rows,
                 int64_t row_stride) {
  with_format(format, [&]<UnitFormat kFormat>() {
    if constexpr (kFormat == UnitFormat::c4) {
      expand_c4(unit, head_dim, side, rows, row_stride);
    } else {
      expand_rows<kCodeBits<kFormat>>(unit, head_dim, rows, row_stride);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(encode_here);
HWY_EXPORT(expand_here);
}  // namespace

namespace cpu {

UnitFormat unit_format(const KvCodec& codec, int32_t head_dim) {
  if (head_dim % 64 != 0) return UnitFormat::none;
  return &codec == &kv::kQ8_0   ? UnitFormat::q8_0
         : &codec == &kv::kQ4_0 ? UnitFormat::q4_0
         : &codec == &kv::kC4   ? UnitFormat::c4
                                : UnitFormat::none;
}

bool encode_unit(const KvCodec& codec, int32_t head_dim, KvSide side, const uint16_t* rows,
                 int64_t row_stride, float* scratch, uint8_t* unit) {
  const UnitFormat format = unit_format(codec, head_dim);
  BRAID_CHECK(format != UnitFormat::none);
  return HWY_DYNAMIC_DISPATCH(encode_here)(format, head_dim, side, rows, row_stride, scratch, unit);
}

void expand_unit(const KvCodec& codec, int32_t head_dim, KvSide side, const uint8_t* unit,
                 float* rows, int64_t row_stride) {
  const UnitFormat format = unit_format(codec, head_dim);
  BRAID_CHECK(format != UnitFormat::none);
  HWY_DYNAMIC_DISPATCH(expand_here)(format, head_dim, side, unit, rows, row_stride);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
