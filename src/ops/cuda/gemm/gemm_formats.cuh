// gemm_formats.cuh -- packed units (packed.h) to fragments of f16 weights, two MMA steps at a time.
//
// A code in the low mantissa bits of an f16 with exponent 0 is exactly code * 2^-24. A fused
// multiply-add with S = scale * P * 2^24 turns two of them into weights with one rounding. Codes 4
// or 5 bits higher use S / 16 or S / 32. Most pairs need one AND, or a shift and an AND, because
// integer instructions limit these kernels.
//
// Codes: a lane's load of 16 rows (g and g + 8) of half a unit. Scales: derived once for them.
// fragments(): A operands of steps 2i and 2i + 1. `part` is half a unit, `rest` belongs to both.
#pragma once

#include "ops/cuda/gemm/gemm_kernels.h"

namespace braid::cuda {

__device__ inline __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ inline uint32_t as_bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }
__device__ inline __half2 twice(__half h) { return __half2half2(h); }
__device__ inline uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// __byte_perm() without masking the selector, which must not have bits 3, 7, 11, 15.
__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// For products of codes with scales on the sums (gemm_skinny_pair.cuh): kSubBlocks, parts of a
// lane's 32 k with a scale each; kHighFactor, the factor of codes of h = 1; raw(), fragments of
// codes times 2^-24; sum_scales(), factors of the sums; kOffset, the factor of the sum of x for
// code 0, times SumScales::min if kMin, else times s.
//
// a[step][4]: rows g, g + 8 of h = 0, then of h = 1.
struct Fragments {
  uint32_t a[2][4];
};

// `pair` holds rows g and g + 8. Repeating one half is free in an instruction on pairs.
__device__ inline __half2 of_row(__half2 pair, int half) {
  return twice(half == 0 ? __low2half(pair) : __high2half(pair));
}
__device__ inline Fragments scaled(Fragments f, __half2 low, __half2 high, __half2 c) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      f.a[p][half] = as_bits(__hfma2(as_half2(f.a[p][half]), of_row(low, half), of_row(c, half)));
      f.a[p][2 + half] =
          as_bits(__hfma2(as_half2(f.a[p][2 + half]), of_row(high, half), of_row(c, half)));
    }
  return f;
}

// Factors of the sums of rows g and g + 8; `min`: of the sum of x, with kMin.
template <int kSubBlocks>
struct SumScales {
  float2 s[kSubBlocks];
  float2 min;
};

// Defaults. Half a unit of f16 has twice the bytes, so half as many warps share the shared memory.
struct FormatWarps {
  static constexpr int kWarps = 8;         // gemm_mma.cuh
  static constexpr int kNarrowWarps = 16;  // gemm_mma.cuh, up to 16 rows of x
  static constexpr int kStreams = 8;       // up to 8 rows: gemm_skinny.cuh, gemm_grouped.cuh
  static constexpr int kStreamHalves = 1;  // per load of gemm_grouped.cuh
};

struct FormatF16 : FormatWarps {
  static constexpr Pack kPack = Pack::f16;
  static constexpr int kSubBlocks = 0;
  static constexpr int kWarps = 4;
  static constexpr int kNarrowWarps = 8;
  static constexpr int kStreams = 4;
  struct Codes {
    uint4 v[2][4];
  };
  struct Scales {};
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 4 * 32 + lane;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) codes.v[half][i] = at[(half * 4 + i) * 32];
  }
  __device__ static void scales(Scales&, const uint8_t*, const uint8_t*, int, int) {}
  __device__ static Fragments fragments(const Codes& codes, const Scales&, int i) {
    const uint4& low = codes.v[0][i];
    const uint4& high = codes.v[1][i];
    return {{{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}}};
  }
};

struct FormatQ8 : FormatWarps {
  static constexpr Pack kPack = Pack::q8;
  struct Codes {
    uint4 v[2][2];
  };
  struct Scales {
    __half2 s, c;
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 2 * 32 + lane;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) codes.v[half][i] = at[(half * 2 + i) * 32];
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t* rest, int lane,
                                int r16) {
    out.s = *reinterpret_cast<const __half2*>(part + 4096 + lane * 8 + r16 * 4);
    out.c = __hmul2(out.s, __float2half2_rn(-0x1p-17f));  // -128 * 2^-24
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    return scaled(raw(codes, i), scales.s, scales.s, scales.c);
  }

  static constexpr int kSubBlocks = 1;
  static constexpr bool kMin = false;
  static constexpr float kHighFactor = 1.0f;
  __device__ static Fragments raw(const Codes& codes, int i) {
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint32_t w = word_of(codes.v[half][i / 2], 2 * (i % 2) + p);
        f.a[p][half] = w & 0x00ff00ffu;
        f.a[p][2 + half] = w >> 8 & 0x00ff00ffu;
      }
    return f;
  }
  static constexpr float kOffset = -0x1p-17f;  // 128 * 2^-24
  __device__ static SumScales<1> sum_scales(const uint8_t* part, const uint8_t* rest, int lane,
                                            int r16) {
    const float2 s =
        __half22float2(*reinterpret_cast<const __half2*>(part + 4096 + lane * 8 + r16 * 4));
    return {{s}, {}};
  }
};

struct FormatQ4K : FormatWarps {
  static constexpr Pack kPack = Pack::q4k;
  static constexpr int kStreamHalves = 2;
  struct Codes {
    uint4 v[2];
  };
  struct Scales {
    __half2 s, s16, c;
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 32 + lane;
    codes.v[0] = at[0];
    codes.v[1] = at[32];
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t* rest, int lane,
                                int r16) {
    __half2 min;
    fields(out.s, min, part, rest, lane, r16);
    out.s16 = __hmul2(out.s, __float2half2_rn(0.0625f));
    out.c = __hmul2(min, __float2half2_rn(-0x1p-12f));
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    return scaled(raw(codes, i), scales.s, scales.s16, scales.c);
  }

  static constexpr int kSubBlocks = 1;
  static constexpr bool kMin = true;
  static constexpr float kHighFactor = 0.0625f;
  static constexpr float kOffset = -0x1p-12f;  // of the sum of x for the minimum
  __device__ static Fragments raw(const Codes& codes, int i) {
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t w = word_of(codes.v[half], i);
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint32_t x = p == 0 ? w : w >> 8;
        f.a[p][half] = x & 0x000f000fu;
        f.a[p][2 + half] = x & 0x00f000f0u;
      }
    }
    return f;
  }
  __device__ static SumScales<1> sum_scales(const uint8_t* part, const uint8_t* rest, int lane,
                                            int r16) {
    __half2 scale, min;
    fields(scale, min, part, rest, lane, r16);
    return {{__half22float2(scale)}, __half22float2(min)};
  }

 private:
  __device__ static void fields(__half2& s, __half2& m, const uint8_t* part, const uint8_t* rest,
                                int lane, int r16) {
    const uint32_t word = reinterpret_cast<const uint32_t*>(part + 2048)[lane];
    const uint32_t bytes = reinterpret_cast<const unsigned short*>(part + 2176)[lane];
    // [min @10][scale @4] in both halves. After a branch, loads of other rows would wait.
    const uint32_t others = permute(bytes, 0, 0x1404) | (word << 4 & 0x00f000f0u);
    const uint32_t x = r16 == 0 ? word : others;
    const uint2 factors = *reinterpret_cast<const uint2*>(rest + (lane / 4) * 16 + r16 * 8);
    const __half2 d = as_half2(factors.x);
    const __half2 dmin = as_half2(factors.y);
    const __half2 offset = __float2half2_rn(64.0f);
    s = __hmul2(__hsub2(as_half2((x & 0x03f003f0u) | 0x54005400u), offset), d);
    m = __hmul2(__hsub2(as_half2((x >> 6 & 0x03f003f0u) | 0x54005400u), offset), dmin);
  }
};

struct FormatQ6K : FormatWarps {
  static constexpr Pack kPack = Pack::q6k;
  struct Codes {
    uint4 v[2];
    uint4 high;  // two words of row g, two of row g + 8
  };
  struct Scales {  // [first or last 16]
    __half2 s[2], s16[2], c[2];
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 32 + lane;
    codes.v[0] = at[0];
    codes.v[1] = at[32];
    codes.high = reinterpret_cast<const uint4*>(part + 2048)[r16 * 32 + lane];
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t* rest, int lane,
                                int r16) {
    fields(out.s, part, rest, lane, r16);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      out.s16[s] = __hmul2(out.s[s], __float2half2_rn(0.0625f));
      out.c[s] = __hmul2(out.s[s], __float2half2_rn(-0x1p-19f));  // -32 * 2^-24
    }
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    const int s = i / 2;
    return scaled(raw(codes, i), scales.s[s], scales.s16[s], scales.c[s]);
  }

  static constexpr int kSubBlocks = 2;
  static constexpr bool kMin = false;
  static constexpr float kHighFactor = 0.0625f;
  static constexpr float kOffset = -0x1p-19f;  // 32 * 2^-24
  // 16 codes lie in three words: two per 16 bits, the rest assembled (packed.h).
  __device__ static Fragments raw(const Codes& codes, int i) {
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t w = word_of(codes.v[half], i);
      const uint32_t h = word_of(codes.high, half * 2 + i / 2);
      f.a[0][half] = (w & 0x000f000fu) | ((i % 2 == 0 ? h << 4 : h << 2) & 0x00300030u);
      f.a[0][2 + half] = w & 0x03f003f0u;
      f.a[1][half] = (i % 2 == 0 ? h : w) >> 10 & 0x003f003fu;
      f.a[1][2 + half] = (i % 2 == 0 ? w >> 6 : h) & 0x03f003f0u;
    }
    return f;
  }
  __device__ static SumScales<2> sum_scales(const uint8_t* part, const uint8_t* rest, int lane,
                                            int r16) {
    __half2 s[2];
    fields(s, part, rest, lane, r16);
    return {{__half22float2(s[0]), __half22float2(s[1])}, {}};
  }

 private:
  __device__ static void fields(__half2 (&out)[2], const uint8_t* part, const uint8_t* rest,
                                int lane, int r16) {
    const uint32_t bytes = *reinterpret_cast<const uint32_t*>(part + 3072 + lane * 8 + r16 * 4);
    const __half2 d = *reinterpret_cast<const __half2*>(rest + (lane / 4) * 8 + r16 * 4);
    const __half2 offset = __float2half2_rn(1152.0f);  // 1024 + 128
#pragma unroll
    for (int s = 0; s < 2; ++s) {  // bytes s and 2 + s: the two rows
      const uint32_t code = __byte_perm(bytes, 0x64646464u, 0x4240 + 0x0101 * s);
      out[s] = __hmul2(__hsub2(as_half2(code), offset), d);
    }
  }
};

struct FormatQ5 : FormatWarps {
  static constexpr Pack kPack = Pack::q5;
  struct Codes {
    uint4 v[2];
    uint2 high;  // a word of row g, one of row g + 8
  };
  struct Scales {
    __half2 s, s32, c;
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 32 + lane;
    codes.v[0] = at[0];
    codes.v[1] = at[32];
    codes.high = reinterpret_cast<const uint2*>(part + 2048)[r16 * 32 + lane];
  }
  __device__ static uint2 pairs_at(const uint8_t* part, int lane, int r16) {
    return reinterpret_cast<const uint2*>(part + 2560)[r16 * 32 + lane];
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t* rest, int lane,
                                int r16) {
    const uint2 pairs = pairs_at(part, lane, r16);
    out.s = as_half2(__byte_perm(pairs.x, pairs.y, 0x5410));
    out.s32 = __hmul2(out.s, __float2half2_rn(0.03125f));
    out.c = __hmul2(as_half2(__byte_perm(pairs.x, pairs.y, 0x7632)), __float2half2_rn(-0x1p-12f));
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    return scaled(raw(codes, i), scales.s, scales.s32, scales.c);
  }

  static constexpr int kSubBlocks = 1;
  static constexpr bool kMin = true;
  static constexpr float kHighFactor = 0.03125f;
  static constexpr float kOffset = -0x1p-12f;  // of the sum of x for the minimum
  // Three codes in each 16 bits; the sixteenth is assembled from the spare bits of five words.
  __device__ static Fragments raw(const Codes& codes, int i) {
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& v = codes.v[half];
      const uint32_t w = word_of(v, i);
      const uint32_t h = half == 0 ? codes.high.x : codes.high.y;
      f.a[0][half] = w & 0x001f001fu;
      f.a[0][2 + half] = w & 0x03e003e0u;
      f.a[1][2 + half] = w >> 5 & 0x03e003e0u;
      if (i < 3) {
        f.a[1][half] = h >> 5 * i & 0x001f001fu;
      } else {
        f.a[1][half] = (v.x >> 15 & 0x00010001u) | (v.y >> 14 & 0x00020002u) |
                       (v.z >> 13 & 0x00040004u) | (v.w >> 12 & 0x00080008u) |
                       (h >> 11 & 0x00100010u);
      }
    }
    return f;
  }
  __device__ static SumScales<1> sum_scales(const uint8_t* part, const uint8_t* rest, int lane,
                                            int r16) {
    const uint2 pairs = pairs_at(part, lane, r16);
    return {{__half22float2(as_half2(__byte_perm(pairs.x, pairs.y, 0x5410)))},
            __half22float2(as_half2(__byte_perm(pairs.x, pairs.y, 0x7632)))};
  }
};

// Codes of one piece, followed by an f16 scale per 16.
struct TwoScales {
  __device__ static uint2 pairs_at(const uint8_t* part, int lane, int r16) {
    return reinterpret_cast<const uint2*>(part + 2048)[r16 * 32 + lane];
  }
  // [first or last 16]
  __device__ static void both_scales(__half2 (&s)[2], const uint8_t* part, int lane, int r16) {
    const uint2 pairs = pairs_at(part, lane, r16);
    s[0] = as_half2(__byte_perm(pairs.x, pairs.y, 0x5410));
    s[1] = as_half2(__byte_perm(pairs.x, pairs.y, 0x7632));
  }
  __device__ static SumScales<2> sum_scales(const uint8_t* part, const uint8_t*, int lane,
                                            int r16) {
    __half2 s[2];
    both_scales(s, part, lane, r16);
    return {{__half22float2(s[0]), __half22float2(s[1])}, {}};
  }
};

struct FormatT4 : FormatWarps, TwoScales {
  static constexpr Pack kPack = Pack::t4;
  struct Codes {
    uint4 v[2];
    uint4 levels;  // + 128, a byte each
  };
  struct Scales {  // [first or last 16]
    __half2 s[2], c[2];
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 32 + lane;
    codes.v[0] = at[0];
    codes.v[1] = at[32];
    codes.levels = *reinterpret_cast<const uint4*>(part + 2560);
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t* rest, int lane,
                                int r16) {
    both_scales(out.s, part, lane, r16);
    const __half2 back = __float2half2_rn(-0x1p-17f);  // -128 * 2^-24
    for (int s = 0; s < 2; ++s) out.c[s] = __hmul2(out.s[s], back);
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    const int s = i / 2;
    return scaled(raw(codes, i), scales.s[s], scales.s[s], scales.c[s]);
  }

  static constexpr int kSubBlocks = 2;
  static constexpr bool kMin = false;
  static constexpr float kHighFactor = 1.0f;
  static constexpr float kOffset = -0x1p-17f;  // 128 * 2^-24
  __device__ static Fragments raw(const Codes& codes, int i) {
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t w = word_of(codes.v[half], i);
      const uint32_t in_eight = w & 0x77777777u;  // index among the first or last levels
      const uint32_t which_eight = (w >> 1 & 0x44444444u) | 0x32103210u;  // of byte 0, 1, 2, 3
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint32_t at = p == 0 ? in_eight : in_eight >> 16;
        const uint32_t low = permute(codes.levels.x, codes.levels.y, at);
        const uint32_t high = permute(codes.levels.z, codes.levels.w, at);
        const uint32_t x = permute(low, high, p == 0 ? which_eight : which_eight >> 16);
        f.a[p][half] = x & 0x00ff00ffu;
        f.a[p][2 + half] = __byte_perm(x, 0, 0x4341);
      }
    }
    return f;
  }
};

struct FormatFp4 : FormatWarps, TwoScales {
  static constexpr Pack kPack = Pack::fp4;
  struct Codes {
    uint4 v[2];
  };
  struct Scales {  // [first or last 16]
    __half2 s[2];
  };
  __device__ static void load(Codes& codes, const uint8_t* part, int lane, int r16) {
    const uint4* at = reinterpret_cast<const uint4*>(part) + r16 * 2 * 32 + lane;
    codes.v[0] = at[0];
    codes.v[1] = at[32];
  }
  __device__ static void scales(Scales& out, const uint8_t* part, const uint8_t*, int lane,
                                int r16) {
    both_scales(out.s, part, lane, r16);
  }
  __device__ static Fragments fragments(const Codes& codes, const Scales& scales, int i) {
    Fragments f = raw(codes, i);
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        f.a[p][n] = as_bits(__hmul2(as_half2(f.a[p][n]), of_row(scales.s[i / 2], n % 2)));
    return f;
  }

  static constexpr int kSubBlocks = 2;
  static constexpr bool kMin = false;
  static constexpr float kHighFactor = 1.0f;
  static constexpr float kOffset = 0.0f;
  // The f16 bits of these numbers lie in the order of [p][h] (packed.h).
  __device__ static Fragments raw(const Codes& codes, int i) {
    constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x0e000e00u;
    Fragments f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t w = word_of(codes.v[half], i);
      f.a[0][half] = w & (kSign | kMagnitude);
      f.a[0][2 + half] = w << 3 & (kSign | kMagnitude);
      f.a[1][half] = (w << 6 & kMagnitude) | (w << 1 & kSign);
      f.a[1][2 + half] = (w << 9 & kMagnitude) | (w << 2 & kSign);
    }
    return f;
  }
};

}  // namespace braid::cuda
