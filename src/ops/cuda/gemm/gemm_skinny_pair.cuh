// gemm_skinny_pair.cuh -- one or two rows of x: codes are multiplied directly, scales apply to the
// sums.
//
// An mma adds over the k of all four lanes c of a group, which have different scales (packed.h). So
// the 8 columns are 4 lanes x 2 rows: column 2 c + t has x of row t for lane c's k, else zeros, and
// lane c gets the sums of its own k. This saves a third of the instructions.
//
// x: pieces as in gemm_skinny.cuh, those for codes of h = 1 times Format::kHighFactor; and sums of
// x per scale, times Format::kOffset: [half][c][sub-block][row].
#pragma once

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/gemm/gemm_formats.cuh"

namespace braid::cuda {

// acc[r16]: row g of x rows 0 and 1, then row g + 8. x: this lane's 32 k. Other lanes keep b zero.
template <class Format>
__device__ inline void multiply_pair(const uint8_t* part, const uint8_t* rest, bool holds_x,
                                     const uint8_t* x, int exchanged, const float* sums,
                                     uint4 (&b)[2], float (&acc)[2][4], int lane) {
  constexpr int kSub = Format::kSubBlocks;
  constexpr bool kMin = Format::kMin;
  constexpr bool kShifted = Format::kOffset != 0.0f;
  float2 x_sums[kSub] = {};
  if (kShifted) {
#pragma unroll
    for (int s = 0; s < kSub; ++s) x_sums[s] = *reinterpret_cast<const float2*>(sums + 2 * s);
  }
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16) {
    typename Format::Codes codes;
    Format::load(codes, part, lane, r16);
    const SumScales<kSub> scales = Format::sum_scales(part, rest, lane, r16);
    float d[kSub][4];
#pragma unroll
    for (int s = 0; s < kSub; ++s) {
      d[s][0] = d[s][2] = kMin ? 0.0f : x_sums[s].x;
      d[s][1] = d[s][3] = kMin ? 0.0f : x_sums[s].y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4& own = b[i % 2];
      if (holds_x) own = *reinterpret_cast<const uint4*>(x + ((i ^ exchanged) << 4));
      const Fragments f = Format::raw(codes, i);
      mma(d[i * kSub / 4], f.a[0], own.x, own.y, __half());
      mma(d[i * kSub / 4], f.a[1], own.z, own.w, __half());
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int s = 0; s < kSub; ++s)
        acc[r16][q] = fmaf(q < 2 ? scales.s[s].x : scales.s[s].y, d[s][q], acc[r16][q]);
      if (kMin)
        acc[r16][q] = fmaf(q < 2 ? scales.min.x : scales.min.y,
                           q % 2 == 0 ? x_sums[0].x : x_sums[0].y, acc[r16][q]);
    }
  }
}

// Adds over the four lanes. Lane c gets row 16 (c / 2) + 8 (c % 2) + g, for both rows of x.
__device__ inline float2 add_lanes(const float (&acc)[2][4], int c) {
  float two[4];  // of r16 = c / 2
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float other = __shfl_xor_sync(kFullWarp, c < 2 ? acc[1][q] : acc[0][q], 2);
    two[q] = (c < 2 ? acc[0][q] : acc[1][q]) + other;
  }
  const float x = __shfl_xor_sync(kFullWarp, c % 2 == 0 ? two[2] : two[0], 1);
  const float y = __shfl_xor_sync(kFullWarp, c % 2 == 0 ? two[3] : two[1], 1);
  return c % 2 == 0 ? make_float2(two[0] + x, two[1] + y) : make_float2(two[2] + x, two[3] + y);
}

// Prepares 8 k of row `row` for multiply_pair. Pieces of a half lie in every kApart-th lane; all of
// `lanes` call. `sums`: [c][sub-block][row] of the half, or null.
template <class Format, int kApart>
__device__ inline uint4 prepare_pair(uint4 v, float* sums, int piece, int row, unsigned lanes) {
  constexpr int kSub = Format::kSubBlocks;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float2 x = __half22float2(as_half2(word_of(v, w)));
    sum += x.x + x.y;
  }
  sum += __shfl_xor_sync(lanes, sum, kApart);
  if (kSub == 1) sum += __shfl_xor_sync(lanes, sum, 2 * kApart);
  if (sums != nullptr && piece % (4 / kSub) == 0)
    sums[piece / (4 / kSub) * 2 + row] = sum * Format::kOffset;
  if (Format::kHighFactor != 1.0f) {
    const __half2 high = __float2half2_rn(Format::kHighFactor);
    v.y = as_bits(__hmul2(as_half2(v.y), high));
    v.w = as_bits(__hmul2(as_half2(v.w), high));
  }
  return v;
}

}  // namespace braid::cuda
