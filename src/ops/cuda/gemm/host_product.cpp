// host_product.cpp -- see host_product.h.
//
// A vector of a unit's codes is 32 k of one row for each 16 bytes, so all lanes of a sum belong to
// one row. Masks and shifts of 16-bit lanes yield pairs of codes; one permutation of x for each
// pack makes up for their order. Four lanes with the sums of 32 products, or two with 16, get a
// scale and are added up over k; lanes are added at the end. Minima have sums of their own, whose
// lanes are rows and c.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cuda/gemm/host_product.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "ops/cuda/gemm/host_product.h"
#include "ops/cpu/simd-inl.h"

#ifndef BRAID_OPS_CUDA_GEMM_HOST_PRODUCT_ONCE
#define BRAID_OPS_CUDA_GEMM_HOST_PRODUCT_ONCE
namespace braid::cuda {
namespace {

constexpr int kUnitC = 4;         // values of c
constexpr int kUnitLanes = 32;    // lanes of a GPU
constexpr int kHalfRows = 8;      // rows of a unit that are consecutive: g of packed.h
constexpr int kRowBytes = 64;     // codes of a row and k128, in a piece
constexpr int kLine = 64;         // of a cache
constexpr int kFieldBytes = 512;  // a piece

constexpr bool has_min(Pack pack) { return pack == Pack::q4k || pack == Pack::q5; }
constexpr bool has_two_scales(Pack pack) {
  return pack == Pack::q6k || pack == Pack::t4 || pack == Pack::fp4;
}
constexpr int pieces_of(Pack pack) { return pack == Pack::q8 ? 2 : 1; }
constexpr int steps_of(Pack pack) { return pack == Pack::q5 ? 5 : 4; }
// Decoded codes are this much above what they stand for.
constexpr int offset_of(Pack pack) {
  switch (pack) {
    case Pack::q8:
    case Pack::t4:
      return 128;
    case Pack::q6k:
      return 32;
    case Pack::fp4:
      return 12;
    default:
      return 0;
  }
}
// Scales are stored times 2^24, those of fp4 for 1 / 512 of a code.
constexpr float unit_factor(Pack pack) { return pack == Pack::fp4 ? 0x1p-15f : 0x1p-24f; }
// Minima are stored times 2^12.
constexpr float kMinFactor = 0x1p12f;

// k, of 32, of a decoded code: word i of the four, e its half.
constexpr int k_of(Pack pack, int step, int i, int e) {
  switch (pack) {
    case Pack::q8:
      return 16 * (step / 2) + 4 * i + 2 * (step % 2) + e;
    case Pack::q6k: {
      const int pair = step < 2 ? step : (step == 2) == (i % 2 == 0) ? 3 : 2;
      return 8 * i + 2 * pair + e;
    }
    case Pack::q5: {
      constexpr int kPairs[] = {0, 1, 3, 2};
      return step == 4 ? 28 + e : 8 * i + 2 * kPairs[step] + e;
    }
    case Pack::t4:
      return 8 * i + 4 * e + step;
    default:
      return 8 * i + 2 * step + e;
  }
}

struct XOrder {
  uint8_t k[HostX::kMostSteps * 8] = {};
};
constexpr XOrder x_order(Pack pack) {
  XOrder order;
  for (int step = 0; step < steps_of(pack); ++step)
    for (int i = 0; i < 4; ++i)
      for (int e = 0; e < 2; ++e)
        order.k[8 * step + 2 * i + e] = static_cast<uint8_t>(k_of(pack, step, i, e));
  return order;
}

}  // namespace
}  // namespace braid::cuda
#endif

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

using namespace cuda;  // NOLINT: this namespace is per target

// Emulated vectors are slower than a link to a GPU, and their f16 has no NaN.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

bool has_products() { return false; }
void multiply_product(const HostProduct&) {}
void put_x(Pack, const float*, int64_t, HostX*) {}
void put_x_f16(Pack, const uint16_t*, int64_t, HostX*) {}
void silu_times_up(const float*, int64_t, float*) {}

#else

using Ints32 = hn::RebindToSigned<FloatTag>;
using Words32 = hn::RebindToUnsigned<FloatTag>;
using Pairs = hn::Repartition<uint16_t, FloatTag>;
using SignedPairs = hn::Repartition<int16_t, FloatTag>;
using Octets = hn::Repartition<uint8_t, FloatTag>;
using FourFloats = hn::FixedTag<float, 4>;
constexpr int kGroups = kLanes / 4;  // of 32 k in a vector of codes
static_assert(kUnitC % kGroups == 0);

// 16-bit lanes: a for e and words of even i, b for those of odd i.
HWY_INLINE hn::Vec<Pairs> by_parity(uint16_t a, uint16_t b) {
  const auto both = static_cast<uint64_t>(a | static_cast<uint32_t>(a) << 16) |
                    static_cast<uint64_t>(b | static_cast<uint32_t>(b) << 16) << 32;
  return hn::BitCast(Pairs(), hn::Set(hn::Repartition<uint64_t, FloatTag>(), both));
}
// The same for each of four words.
HWY_INLINE hn::Vec<Pairs> by_word(uint16_t a, uint16_t b, uint16_t c, uint16_t d) {
  HWY_ALIGN const uint16_t words[8] = {a, a, b, b, c, c, d, d};
  return hn::LoadDup128(Pairs(), words);
}
HWY_INLINE hn::Vec<Pairs> pairs_at(const uint8_t* at) {
  return hn::BitCast(Pairs(), hn::LoadU(Octets(), at));
}
HWY_INLINE hn::Vec<Pairs> pairs_of(uint16_t bits) { return hn::Set(Pairs(), bits); }

// ---- codes: kSteps vectors of pairs, of kGroups groups of 32 k from lane `lane` on

template <Pack kPack>
struct Decoder;

template <>
struct Decoder<Pack::q8> {
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[4]) {
    const uint8_t* at = part + (r16 * 2 + kHalf) * 2 * kFieldBytes + lane * 16;
    for (int piece = 0; piece < 2; ++piece) {
      const auto v = pairs_at(at + piece * kFieldBytes);
      out[2 * piece] = hn::And(v, pairs_of(0xff));
      out[2 * piece + 1] = hn::ShiftRight<8>(v);
    }
  }
};

template <>
struct Decoder<Pack::q4k> {
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[4]) {
    const auto v = pairs_at(part + (r16 * 2 + kHalf) * kFieldBytes + lane * 16);
    out[0] = hn::And(v, pairs_of(15));
    out[1] = hn::And(hn::ShiftRight<4>(v), pairs_of(15));
    out[2] = hn::And(hn::ShiftRight<8>(v), pairs_of(15));
    out[3] = hn::ShiftRight<12>(v);
  }
};

// The high half of a product by 2^(16 - n) is a shift by n to the right, for each lane its own.
template <>
struct Decoder<Pack::q6k> {
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[4]) {
    const auto v = pairs_at(part + (r16 * 2 + kHalf) * kFieldBytes + lane * 16);
    const Words32 d;
    const auto thirds = hn::BitCast(d, pairs_at(part + 2048 + (r16 * kUnitLanes + lane) * 16));
    const auto third = hn::BitCast(Pairs(), kHalf == 0 ? hn::InterleaveLower(d, thirds, thirds)
                                                       : hn::InterleaveUpper(d, thirds, thirds));
    const auto high = hn::And(hn::Mul(third, by_parity(1 << 4, 1 << 2)), pairs_of(0x30));
    out[0] = hn::Or(hn::And(v, pairs_of(15)), high);
    out[1] = hn::And(hn::ShiftRight<4>(v), pairs_of(63));
    out[2] = hn::ShiftRight<10>(v);
    out[3] = hn::And(hn::MulHigh(third, by_parity(1 << 6, 1 << 12)), pairs_of(63));
  }
};

// out[3]: words 0 to 2 and bit 4 of word 3, whose other bits are out[4].
template <>
struct Decoder<Pack::q5> {
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[5]) {
    const auto v = pairs_at(part + (r16 * 2 + kHalf) * kFieldBytes + lane * 16);
    const Words32 d;
    // Lanes beyond the fifth words of this vector are read and not used; scales follow them.
    const auto fifths =
        hn::BitCast(d, pairs_at(part + 2048 + ((r16 * kUnitLanes + lane) * 2 + kHalf) * 4));
    HWY_ALIGN static constexpr uint32_t kFrom[16] = {0, 0, 0, 0, 2, 2, 2, 2,
                                                     4, 4, 4, 4, 6, 6, 6, 6};
    const auto fifth =
        hn::BitCast(Pairs(), hn::TableLookupLanes(fifths, hn::SetTableIndices(d, kFrom)));
    out[0] = hn::And(v, pairs_of(31));
    out[1] = hn::And(hn::ShiftRight<5>(v), pairs_of(31));
    out[2] = hn::And(hn::ShiftRight<10>(v), pairs_of(31));
    const auto top = hn::And(hn::Mul(fifth, by_word(1 << 11, 1 << 6, 1 << 1, 1)),
                             by_word(0xf800, 0xf800, 0xf800, 0x8000));
    out[3] = hn::ShiftRight<11>(top);
    out[4] = hn::MulHigh(hn::And(v, pairs_of(0x8000)), by_word(2, 4, 8, 16));
  }
};

// Levels at the bytes of `low` and `high`.
HWY_INLINE void look_up(hn::Vec<Octets> levels, hn::Vec<Pairs> low, hn::Vec<Pairs> high,
                        hn::Vec<Pairs> (&out)[4]) {
  const auto first = hn::BitCast(Pairs(), hn::TableLookupBytes(levels, hn::BitCast(Octets(), low)));
  const auto second =
      hn::BitCast(Pairs(), hn::TableLookupBytes(levels, hn::BitCast(Octets(), high)));
  out[0] = hn::And(first, pairs_of(0xff));
  out[1] = hn::ShiftRight<8>(first);
  out[2] = hn::And(second, pairs_of(0xff));
  out[3] = hn::ShiftRight<8>(second);
}

template <>
struct Decoder<Pack::t4> {
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[4]) {
    const auto v = pairs_at(part + (r16 * 2 + kHalf) * kFieldBytes + lane * 16);
    const auto levels = hn::LoadDup128(Octets(), part + 2560);
    const auto low = hn::And(v, pairs_of(0x0f0f));
    const auto high = hn::And(hn::ShiftRight<4>(v), pairs_of(0x0f0f));
    look_up(levels, low, high, out);
  }
};

template <>
struct Decoder<Pack::fp4> {
  // Bytes of an index: sign at 3, magnitude at 0.
  static HWY_INLINE hn::Vec<Pairs> index(hn::Vec<Pairs> low_magnitude, hn::Vec<Pairs> low_sign,
                                         hn::Vec<Pairs> high_magnitude, hn::Vec<Pairs> high_sign) {
    const auto magnitude =
        hn::Or(hn::And(low_magnitude, pairs_of(0x0007)), hn::And(high_magnitude, pairs_of(0x0700)));
    const auto sign =
        hn::Or(hn::And(low_sign, pairs_of(0x0008)), hn::And(high_sign, pairs_of(0x0800)));
    return hn::Or(magnitude, sign);
  }
  template <int kHalf>
  static HWY_INLINE void codes(const uint8_t* part, int r16, int lane, hn::Vec<Pairs> (&out)[4]) {
    HWY_ALIGN static constexpr uint8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                      12, 11, 10, 9,  8,  6,  4,  0};
    const auto v = pairs_at(part + (r16 * 2 + kHalf) * kFieldBytes + lane * 16);
    const auto levels = hn::LoadDup128(Octets(), kLevels);
    const auto low = index(hn::ShiftRight<9>(v), hn::ShiftRight<12>(v), hn::ShiftLeft<2>(v),
                           hn::ShiftRight<1>(v));
    const auto high = index(hn::ShiftRight<3>(v), hn::ShiftRight<11>(v), hn::ShiftLeft<8>(v),
                            hn::ShiftRight<2>(v));
    look_up(levels, low, high, out);
  }
};

// ---- scales

// Of 16 rows of a unit.
struct UnitScales {
  HWY_ALIGN float s[2][2][2 * kUnitLanes];  // [k128][half][lane][first or last 16]
  float beyond[kLanes];                     // vectors are read from any lane on
  HWY_ALIGN float min[2][2][kUnitLanes];    // [k128][half][lane], times kMinFactor
};

HWY_INLINE void widen_halves(const uint8_t* from, int count, float* to) {
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  for (int i = 0; i < count; i += static_cast<int>(kLanes)) {
    const auto halves = hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from) + i);
    hn::StoreU(hn::PromoteTo(FloatTag(), halves), FloatTag(), to + i);
  }
}
// f16 in the low 16 bits of each word.
HWY_INLINE Floats widen_low(hn::Vec<Words32> words) {
  const hn::Rebind<uint16_t, FloatTag> du;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const auto bits = hn::DemoteTo(du, hn::BitCast(Ints32(), words));
  return hn::PromoteTo(FloatTag(), hn::BitCast(dh, bits));
}
HWY_INLINE Floats number(hn::Vec<Words32> words) {
  return hn::ConvertTo(FloatTag(), hn::BitCast(Ints32(), words));
}
HWY_INLINE hn::Vec<Words32> low16(hn::Vec<Words32> words) {
  return hn::And(words, hn::Set(Words32(), 0xffff));
}

// d of 16 rows for each lane, from `stride` numbers for each g, those of halves consecutive.
HWY_INLINE void spread_rows(const float* from, int stride, float (&to)[2][kUnitLanes]) {
  const FourFloats d;
  for (int g = 0; g < kHalfRows; ++g)
    for (int half = 0; half < 2; ++half)
      hn::Store(hn::Set(d, from[g * stride + half]), d, to[half] + g * kUnitC);
}

HWY_INLINE void put_scales_q4k(const uint8_t* unit, int r16, UnitScales& out) {
  const Words32 dw;
  const hn::Rebind<uint16_t, FloatTag> d16;
  HWY_ALIGN float factors[kHalfRows * 8];  // [g][r16][d or dmin][half]
  HWY_ALIGN float d[2][kUnitLanes], dmin[2][kUnitLanes];
  widen_halves(unit + 2 * half_bytes(Pack::q4k), kHalfRows * 8, factors);
  spread_rows(factors + r16 * 4, 8, d);
  spread_rows(factors + r16 * 4 + 2, 8, dmin);
  const auto six = hn::Set(dw, 63);
  for (int k128 = 0; k128 < 2; ++k128) {
    const uint8_t* part = unit + k128 * half_bytes(Pack::q4k) + 2048;
    for (int lane = 0; lane < kUnitLanes; lane += static_cast<int>(kLanes)) {
      const auto words = hn::LoadU(dw, reinterpret_cast<const uint32_t*>(part) + lane);
      const auto put = [&](int half, hn::Vec<Words32> scale, hn::Vec<Words32> min) {
        store(hn::Mul(number(scale), load(d[half] + lane)), out.s[k128][half] + lane);
        store(hn::Mul(number(min), hn::Mul(load(dmin[half] + lane), set(kMinFactor))),
              out.min[k128][half] + lane);
      };
      if (r16 == 0) {
        put(0, hn::And(hn::ShiftRight<4>(words), six), hn::And(hn::ShiftRight<10>(words), six));
        put(1, hn::And(hn::ShiftRight<20>(words), six), hn::ShiftRight<26>(words));
      } else {
        const auto high =
            hn::PromoteTo(dw, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(part + 128) + lane));
        const auto low_bits = hn::Set(dw, 15), high_bits = hn::Set(dw, 0x30);
        put(0, hn::Or(hn::And(words, low_bits), hn::And(hn::ShiftLeft<4>(high), high_bits)),
            hn::And(hn::ShiftRight<2>(high), six));
        put(1,
            hn::Or(hn::And(hn::ShiftRight<16>(words), low_bits),
                   hn::And(hn::ShiftRight<4>(high), high_bits)),
            hn::ShiftRight<10>(high));
      }
    }
  }
}

HWY_INLINE void put_scales_q6k(const uint8_t* unit, int r16, UnitScales& out) {
  const Words32 dw;
  HWY_ALIGN float factors[kHalfRows * 4];  // [g][r16][half]
  HWY_ALIGN float d[2][kUnitLanes];
  widen_halves(unit + 2 * half_bytes(Pack::q6k), kHalfRows * 4, factors);
  spread_rows(factors + r16 * 2, 4, d);
  const auto scale = [&](hn::Vec<Words32> bytes, int half, int lane) {
    const auto code =
        hn::Sub(hn::BitCast(Ints32(), hn::And(bytes, hn::Set(dw, 0xff))), hn::Set(Ints32(), 128));
    return hn::Mul(hn::ConvertTo(FloatTag(), code), load(d[half] + lane));
  };
  for (int k128 = 0; k128 < 2; ++k128) {
    const uint8_t* part = unit + k128 * half_bytes(Pack::q6k) + 3072;
    for (int lane = 0; lane < kUnitLanes; lane += static_cast<int>(kLanes)) {
      hn::Vec<Words32> rows[2];
      hn::LoadInterleaved2(dw, reinterpret_cast<const uint32_t*>(part) + 2 * lane, rows[0],
                           rows[1]);
      const auto words = r16 == 0 ? rows[0] : rows[1];
      hn::StoreInterleaved2(scale(words, 0, lane), scale(hn::ShiftRight<8>(words), 0, lane),
                            FloatTag(), out.s[k128][0] + 2 * lane);
      hn::StoreInterleaved2(scale(hn::ShiftRight<16>(words), 1, lane),
                            scale(hn::ShiftRight<24>(words), 1, lane), FloatTag(),
                            out.s[k128][1] + 2 * lane);
    }
  }
}

HWY_INLINE void put_scales_q8(const uint8_t* unit, int r16, UnitScales& out) {
  const Words32 dw;
  for (int k128 = 0; k128 < 2; ++k128) {
    const uint8_t* part = unit + k128 * half_bytes(Pack::q8) + 4096;
    for (int lane = 0; lane < kUnitLanes; lane += static_cast<int>(kLanes)) {
      hn::Vec<Words32> rows[2];
      hn::LoadInterleaved2(dw, reinterpret_cast<const uint32_t*>(part) + 2 * lane, rows[0],
                           rows[1]);
      const auto words = r16 == 0 ? rows[0] : rows[1];
      store(widen_low(low16(words)), out.s[k128][0] + lane);
      store(widen_low(hn::ShiftRight<16>(words)), out.s[k128][1] + lane);
    }
  }
}

// Two f16 [r16][lane][half]: scales of the first and the last 16, or scale and minimum.
template <Pack kPack>
HWY_INLINE void put_scale_pairs(const uint8_t* unit, int r16, UnitScales& out) {
  const Words32 dw;
  constexpr int kAt = kPack == Pack::q5 ? 2560 : 2048;
  for (int k128 = 0; k128 < 2; ++k128) {
    const uint8_t* part = unit + k128 * half_bytes(kPack) + kAt + r16 * kUnitLanes * 8;
    for (int lane = 0; lane < kUnitLanes; lane += static_cast<int>(kLanes)) {
      hn::Vec<Words32> halves[2];
      hn::LoadInterleaved2(dw, reinterpret_cast<const uint32_t*>(part) + 2 * lane, halves[0],
                           halves[1]);
      for (int half = 0; half < 2; ++half) {
        const Floats first = widen_low(low16(halves[half]));
        const Floats second = widen_low(hn::ShiftRight<16>(halves[half]));
        if constexpr (kPack == Pack::q5) {
          store(first, out.s[k128][half] + lane);
          store(hn::Mul(second, set(kMinFactor)), out.min[k128][half] + lane);
        } else {
          hn::StoreInterleaved2(first, second, FloatTag(), out.s[k128][half] + 2 * lane);
        }
      }
    }
  }
}

template <Pack kPack>
HWY_INLINE void put_scales(const uint8_t* unit, int r16, UnitScales& out) {
  if constexpr (kPack == Pack::q4k) {
    put_scales_q4k(unit, r16, out);
  } else if constexpr (kPack == Pack::q6k) {
    put_scales_q6k(unit, r16, out);
  } else if constexpr (kPack == Pack::q8) {
    put_scales_q8(unit, r16, out);
  } else {
    put_scale_pairs<kPack>(unit, r16, out);
  }
}

// ---- products

// Of 16 rows of weights and kRows rows of x.
template <int kRows>
struct RowSums {
  HWY_ALIGN float sum[2][kHalfRows][kRows][kLanes];  // [half][g]
  HWY_ALIGN float min[kRows][2][kUnitLanes];         // [half][lane]
};

template <Pack kPack, int kHalf, int kRows>
HWY_INLINE void add_half(const uint8_t* unit, const uint8_t* next, int r16,
                         const UnitScales& scales, const HostX* const (&x)[kRows],
                         RowSums<kRows>& sums) {
  constexpr int kSteps = steps_of(kPack);
  constexpr int kScales = has_two_scales(kPack) ? 2 : 1;
  constexpr int kPieces = pieces_of(kPack);
  HWY_ALIGN static constexpr int32_t kFrom[2][16] = {
      {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
      {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}};
  const Ints32 di;
  const SignedPairs dx;
  const auto spread = hn::SetTableIndices(FloatTag(), kFrom[kScales - 1]);
  for (int g = 0; g < kHalfRows; ++g) {
    Floats sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = load(sums.sum[kHalf][g][r]);
    for (int k128 = 0; k128 < 2; ++k128) {
      const uint8_t* part = unit + k128 * half_bytes(kPack);
      const uint8_t* later = next + k128 * half_bytes(kPack) + g * kRowBytes;
      for (int piece = 0; piece < kPieces; ++piece)
        __builtin_prefetch(later + ((r16 * 2 + kHalf) * kPieces + piece) * kFieldBytes, 0, 2);
      for (int c = 0; c < kUnitC; c += kGroups) {
        const int lane = g * kUnitC + c;
        hn::Vec<Pairs> codes[kSteps];
        Decoder<kPack>::template codes<kHalf>(part, r16, lane, codes);
        const Floats scale =
            hn::TableLookupLanes(load(scales.s[k128][kHalf] + lane * kScales), spread);
        for (int r = 0; r < kRows; ++r) {
          auto low = hn::Zero(di), high = hn::Zero(di);
          for (int step = 0; step < kSteps; ++step)
            low =
                hn::ReorderWidenMulAccumulate(di, hn::BitCast(dx, codes[step]),
                                              hn::LoadU(dx, x[r]->codes[k128][step][c]), low, high);
          low = hn::RearrangeToOddPlusEven(low, high);
          if constexpr (offset_of(kPack) != 0)
            low = hn::Add(low, hn::LoadU(di, x[r]->start[k128][c]));
          sum[r] = hn::MulAdd(hn::ConvertTo(FloatTag(), low),
                              hn::Mul(scale, load(x[r]->scale[k128][c])), sum[r]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) store(sum[r], sums.sum[kHalf][g][r]);
  }
}

template <int kRows>
HWY_INLINE void add_minima(const UnitScales& scales, const HostX* const (&x)[kRows],
                           RowSums<kRows>& sums) {
  for (int r = 0; r < kRows; ++r) {
    const Floats first = hn::LoadDup128(FloatTag(), x[r]->sum[0]);
    const Floats second = hn::LoadDup128(FloatTag(), x[r]->sum[1]);
    for (int half = 0; half < 2; ++half)
      for (int lane = 0; lane < kUnitLanes; lane += static_cast<int>(kLanes)) {
        float* at = sums.min[r][half] + lane;
        const Floats sum = hn::MulAdd(load(scales.min[0][half] + lane), first, load(at));
        store(hn::MulAdd(load(scales.min[1][half] + lane), second, sum), at);
      }
  }
}

template <class D, class V>
HWY_INLINE hn::Vec<FourFloats> fold_to_four(D d, V v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}

template <Pack kPack, int kRows>
HWY_INLINE void finish_rows(const RowSums<kRows>& sums, int r, float factor, float* out) {
  const FourFloats d;
  HWY_ALIGN float four[2 * kHalfRows][4];
  for (int row = 0; row < 2 * kHalfRows; ++row) {
    auto sum = fold_to_four(FloatTag(), load(sums.sum[row / kHalfRows][row % kHalfRows][r]));
    if constexpr (has_min(kPack)) {
      const float* min = sums.min[r][row / kHalfRows] + row % kHalfRows * kUnitC;
      sum = hn::Sub(sum, hn::Load(d, min));
    }
    hn::Store(sum, d, four[row]);
  }
  for (int row = 0; row < 2 * kHalfRows; row += static_cast<int>(kLanes)) {
    Floats a, b, c, e;
    hn::LoadInterleaved4(FloatTag(), four[row], a, b, c, e);
    store(hn::Mul(hn::Add(hn::Add(a, b), hn::Add(c, e)), set(factor)), out + row);
  }
}

// What add_half() does not prefetch: all but codes, for each r16 where it lies apart. Into L2, as
// there: L1 awaits too few lines at a time for the bandwidth of memory.
template <Pack kPack>
HWY_INLINE void prefetch_rest(const uint8_t* unit, int first16, int end16) {
  constexpr int kCodes = 4 * kFieldBytes * pieces_of(kPack);
  // [r16] arrays after the codes
  constexpr int kArrays = kPack == Pack::q5 ? 2 : has_two_scales(kPack) ? 1 : 0;
  constexpr int kBytes16 = kPack == Pack::q6k ? 512 : 256;
  for (int k128 = 0; k128 < 2; ++k128) {
    const uint8_t* at = unit + k128 * half_bytes(kPack) + kCodes;
    for (int array = 0; array < kArrays; ++array, at += 2 * kBytes16)
      for (int i = first16 * kBytes16; i < end16 * kBytes16; i += kLine)
        __builtin_prefetch(at + i, 0, 2);
    const uint8_t* end = unit + (k128 == 0 ? half_bytes(kPack) : unit_bytes(kPack));
    for (; at < end; at += kLine) __builtin_prefetch(at, 0, 2);
  }
}

template <Pack kPack, int kRows>
void multiply_rows(const HostProduct& p) {
  RowSums<kRows> sums[2];
  UnitScales scales;
  const HostX* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = p.x[r];
  for (int r16 = p.first16; r16 < p.end16; ++r16) {
    auto* floats = reinterpret_cast<float*>(&sums[r16]);
    constexpr auto kCount = static_cast<int64_t>(sizeof(sums[0]) / sizeof(float));
    for (int64_t i = 0; i < kCount; i += kLanes) store(hn::Zero(FloatTag()), floats + i);
  }
  const uint8_t* unit = p.units;
  for (int64_t u = 0; u < p.count; ++u) {
    const uint8_t* next = u + 1 < p.count     ? unit + unit_bytes(kPack)
                          : p.next != nullptr ? p.next
                                              : unit;
    prefetch_rest<kPack>(next, p.first16, p.end16);
    for (int r16 = p.first16; r16 < p.end16; ++r16) {
      put_scales<kPack>(unit, r16, scales);
      add_half<kPack, 0>(unit, next, r16, scales, x, sums[r16]);
      add_half<kPack, 1>(unit, next, r16, scales, x, sums[r16]);
      if constexpr (has_min(kPack)) add_minima(scales, x, sums[r16]);
    }
    for (int r = 0; r < kRows; ++r) ++x[r];
    unit += unit_bytes(kPack);
  }
  const float factor = p.factor * unit_factor(kPack);
  for (int r16 = p.first16; r16 < p.end16; ++r16)
    for (int r = 0; r < kRows; ++r)
      finish_rows<kPack>(sums[r16], r, factor, p.out + r * kUnitRows + r16 * 2 * kHalfRows);
}

template <Pack kPack>
void multiply_pack(const HostProduct& p) {
  static_assert(HostProduct::kMostRows == 4);
  switch (p.rows) {
    case 1:
      return multiply_rows<kPack, 1>(p);
    case 2:
      return multiply_rows<kPack, 2>(p);
    case 3:
      return multiply_rows<kPack, 3>(p);
    default:
      return multiply_rows<kPack, 4>(p);
  }
}

bool has_products() { return true; }

void multiply_product(const HostProduct& p) {
  switch (p.pack) {
    case Pack::f16:
      return;
    case Pack::q8:
      return multiply_pack<Pack::q8>(p);
    case Pack::q4k:
      return multiply_pack<Pack::q4k>(p);
    case Pack::q6k:
      return multiply_pack<Pack::q6k>(p);
    case Pack::q5:
      return multiply_pack<Pack::q5>(p);
    case Pack::t4:
      return multiply_pack<Pack::t4>(p);
    case Pack::fp4:
      return multiply_pack<Pack::fp4>(p);
  }
}

// ---- x

// The largest magnitude of 32 numbers, NaN if one is: bits of magnitudes have the order of numbers.
HWY_INLINE float most_of(const float* x) {
  const Ints32 di;
  auto most = hn::Zero(di);
  for (int i = 0; i < 32; i += static_cast<int>(kLanes))
    most = hn::Max(most, hn::BitCast(di, hn::Abs(load(x + i))));
  return hn::GetLane(hn::BitCast(FloatTag(), hn::MaxOfLanes(di, most)));
}

template <Pack kPack>
HWY_INLINE void put_group(const float* x, int k128, int c, HostX& out) {
  constexpr XOrder kOrder = x_order(kPack);
  constexpr int kSteps = steps_of(kPack);
  constexpr float kMostCode = 32767;
  const Ints32 di;
  const hn::Rebind<int16_t, FloatTag> d16;
  const float most = most_of(x);
  // The inverse of less would not be finite. A NaN is not less.
  const bool none = most < 1e-30f;
  const float scale = none ? 0.0f : most / kMostCode;
  const Floats inverse = set(none ? 0.0f : kMostCode / most);
  HWY_ALIGN int16_t codes[32];
  auto total = hn::Zero(di);
  for (int i = 0; i < 32; i += static_cast<int>(kLanes)) {
    const auto code = hn::NearestInt(hn::Mul(load(x + i), inverse));
    total = hn::Add(total, code);
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
  }
  const int32_t sum = hn::GetLane(hn::SumOfLanes(di, total));
  out.sum[k128][c] = scale * static_cast<float>(sum);
  for (int i = 0; i < 4; ++i) out.scale[k128][c][i] = scale;
  for (int step = 0; step < kSteps; ++step)
    for (int i = 0; i < 8; ++i) out.codes[k128][step][c][i] = codes[kOrder.k[8 * step + i]];
  if constexpr (offset_of(kPack) != 0) {
    for (int word = 0; word < 4; ++word) {
      int32_t of_word = 0;
      for (int step = 0; step < kSteps; ++step)
        for (int e = 0; e < 2; ++e) of_word += out.codes[k128][step][c][2 * word + e];
      out.start[k128][c][word] = -offset_of(kPack) * of_word;
    }
  }
}

template <Pack kPack>
void put_unit(const float* x, HostX& out) {
  for (int k128 = 0; k128 < 2; ++k128)
    for (int c = 0; c < kUnitC; ++c) put_group<kPack>(x + (k128 * kUnitC + c) * 32, k128, c, out);
}

HWY_INLINE void put_unit_for(Pack pack, const float* x, HostX& out) {
  switch (pack) {
    case Pack::f16:
      return;
    case Pack::q8:
      return put_unit<Pack::q8>(x, out);
    case Pack::q4k:
      return put_unit<Pack::q4k>(x, out);
    case Pack::q6k:
      return put_unit<Pack::q6k>(x, out);
    case Pack::q5:
      return put_unit<Pack::q5>(x, out);
    case Pack::t4:
      return put_unit<Pack::t4>(x, out);
    case Pack::fp4:
      return put_unit<Pack::fp4>(x, out);
  }
}

void put_x(Pack pack, const float* x, int64_t count, HostX* out) {
  for (; count >= kUnitWidth; count -= kUnitWidth, x += kUnitWidth) put_unit_for(pack, x, *out++);
  if (count <= 0) return;
  HWY_ALIGN float padded[kUnitWidth] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = x[i];
  put_unit_for(pack, padded, *out);
}

void put_x_f16(Pack pack, const uint16_t* x, int64_t count, HostX* out) {
  HWY_ALIGN float wide[kUnitWidth];
  for (; count > 0; count -= kUnitWidth, x += kUnitWidth) {
    if (count >= kUnitWidth) {
      widen_halves(reinterpret_cast<const uint8_t*>(x), kUnitWidth, wide);
    } else {
      HWY_ALIGN uint16_t padded[kUnitWidth] = {};
      for (int64_t i = 0; i < count; ++i) padded[i] = x[i];
      widen_halves(reinterpret_cast<const uint8_t*>(padded), kUnitWidth, wide);
    }
    put_unit_for(pack, wide, *out++);
  }
}

void silu_times_up(const float* gate, int64_t count, float* up) {
  for (int64_t i = 0; i < count; i += kLanes)
    store(hn::Mul(silu(load(gate + i)), load(up + i)), up + i);
}

#endif  // vectors

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(has_products);
HWY_EXPORT(multiply_product);
HWY_EXPORT(put_x);
HWY_EXPORT(put_x_f16);
HWY_EXPORT(silu_times_up);
}  // namespace

namespace cuda {

bool has_host_products() { return HWY_DYNAMIC_DISPATCH(has_products)(); }
void multiply_units(const HostProduct& product) { HWY_DYNAMIC_DISPATCH(multiply_product)(product); }
void put_host_x(Pack pack, const float* x, int64_t count, HostX* out) {
  HWY_DYNAMIC_DISPATCH(put_x)(pack, x, count, out);
}
void put_host_x_f16(Pack pack, const uint16_t* x, int64_t count, HostX* out) {
  HWY_DYNAMIC_DISPATCH(put_x_f16)(pack, x, count, out);
}
void silu_times(const float* gate, int64_t count, float* up) {
  HWY_DYNAMIC_DISPATCH(silu_times_up)(gate, count, up);
}

}  // namespace cuda
}  // namespace braid
#endif  // HWY_ONCE
