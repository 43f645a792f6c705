// activations.h -- constants of every instruction set's quantize() and silu_mul() (products.h).
//
// A sub-block has 32 values: peak = max |x|, d = peak / range, code = round to nearest even (x *
// (range / peak)). Peaks below kSmallestPeak give d = 0 and zero codes. A NaN makes d and every
// product with the sub-block NaN, with arbitrary codes.
// exp(x) = 2^n p(r): x limited to [low, high], n = round(x log2 e), r = x - n ln 2 in two steps, p
// of degree 6 by Horner, every step one FMA.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/products.h"

namespace braid::cpu {

inline constexpr float kCodeRange = 127.0f;
inline constexpr float kWideRange = 32512.0f;
inline constexpr float kSmallestPeak = 1e-30f;

inline constexpr float kExpLow = -87.0f, kExpHigh = 88.0f;
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
inline constexpr float kExpTerms[7] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6,
                                       0.5f,       1.0f,       1.0f};

// ProductTable::quantize from sub(x or null for zeros, index, job, block) of one sub-block. The
// type is local to each source, so that no instruction set links another's copy.
template <typename QuantizeSub>
void quantize_row(const QuantizeJob& job, const QuantizeSub& quantize_sub) {
  const int64_t blocks = (job.k + kBlockK - 1) / kBlockK;
  for (int64_t b = 0; b < blocks; b++) {
    for (int sub = 0; sub < kSubBlocks; sub++) {
      const int64_t k = b * kBlockK + 32 * sub;
      quantize_sub(k < job.k ? job.x + k : nullptr, sub, job, b * job.rows + job.row);
    }
  }
}

}  // namespace braid::cpu
