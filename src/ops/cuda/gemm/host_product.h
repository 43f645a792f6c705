// host_product.h -- products with packed units (packed.h) on the CPU.
//
// Numbers of x are 16-bit codes with a scale for each 32, so sums of 32 products are exact and the
// rounding of x, 2^-16 of the largest of 32, is far below that of f16. No function allocates; all
// may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/gemm/pack_plan.h"

namespace braid::cuda {

// 256 consecutive numbers of a row of x, in the order in which codes of one pack are decoded: a
// vector of 16 bits is (step, c, word of the four, half of the word), for c of packed.h.
struct alignas(64) HostX {
  static constexpr int kMostSteps = 5;
  int16_t codes[2][kMostSteps][4][8];  // [k128][step][c]
  float scale[2][4][4];                // [k128][c], four times
  int32_t start[2][4][4];              // [k128][c][word]: what makes up for codes that are not
                                       // signed, - offset * sum of the codes of x
  float sum[2][4];                     // [k128][c], of 32 numbers
};

// 16 or 32 rows of a block of weights times up to kMostRows rows of x.
struct HostProduct {
  static constexpr int kMostRows = 4;
  Pack pack = Pack::f16;
  const uint8_t* units = nullptr;  // of the block, along k
  int64_t count = 0;               // units
  const uint8_t* next = nullptr;   // prefetched at the end; may be null
  int first16 = 0, end16 = 2;      // of r16 (packed.h)
  int rows = 0;                    // of x
  const HostX* x[kMostRows] = {};  // [count] each
  float factor = 1;                // of the block
  float* out = nullptr;            // [rows][32], columns 16 first16 .. 16 end16 - 1 are written
};

// Whether this processor has vectors for multiply_units().
bool has_host_products();

void multiply_units(const HostProduct& product);

// Codes of x for weights in `pack`. `count` numbers become ceil(count / 256) HostX.
void put_host_x(Pack pack, const float* x, int64_t count, HostX* out);
void put_host_x_f16(Pack pack, const uint16_t* x, int64_t count, HostX* out);

// up[i] = silu(gate[i]) * up[i], for a multiple of 16 numbers.
void silu_times(const float* gate, int64_t count, float* up);

}  // namespace braid::cuda
