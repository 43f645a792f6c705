// products.h -- the product kernels of one instruction set, as a table of functions.
//
// A kernel multiplies row groups of one weight matrix with rows of activations over the whole k and
// writes plain f32 sums. Scales of tensors, residuals and SiLU are tails, applied by linear.cpp.
//
// All instruction sets give equal bits (s, t: exact integer sums over codes; k ascending):
//   w8        acc = fma(float(s32) * da, dw, acc)                                      per 32 k
//   w4k, w5k  f = fma(float(s32) * scale, da, f);  m = fma(float(min), da * sum, m)    per 32 k
//             acc = fma(d, f, acc);  acc = fma(-dmin, m, acc)                          per 256 k
//   w6k       f = fma(fma(float(t16), scale1, float(s16) * scale0), da, f)             per 32 k
//             acc = fma(d, f, acc)                                                     per 256 k
//   small     as w8; nvfp4 once per 16 k
//             q4_1, q5_1: acc = fma(min, da * sum, acc) per 32 k, after the products of 256 k
//   float     acc = fma(w, x, acc)                                                     per k
// f and m start at 0 in each block of 256. With int8 activations the scaled sums of K-quants stay
// below 2^24, so a kernel may scale in integers. Types without a layout (raw) use f32 activations
// and decoded weights.
// Included by sources for one instruction set: no inline functions of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/gemm/layouts.h"

namespace braid::cpu {

// Row groups [0, groups) of one matrix times rows of activations: out[m * out_stride + 16 g + r].
struct Job {
  const std::byte* tiles = nullptr;  // first tile of the first row group
  int64_t k = 0;
  int64_t groups = 0;
  size_t group_bytes = 0;  // from one row group to the next
  uint32_t raw_type = 0;   // Layout::raw: the GgmlType
  ActView act;
  const int32_t* row = nullptr;  // activation rows; null: first, first + 1, ...
  int64_t first = 0;
  int64_t rows = 0;  // M
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t ahead_bytes = 0;       // prefetch distance of weights (prefetch.h)
  std::byte* scratch = nullptr;  // kScratchBytes of the calling thread, 64-byte aligned
};
inline constexpr size_t kScratchBytes = 32 * 1024;

using Kernel = void (*)(const Job&);

struct Kernels {
  Kernel few = nullptr;  // rows <= kFewRows
  Kernel many = nullptr;
  uint8_t few_needs = kNeedsFloat;
  uint8_t many_needs = kNeedsFloat;
};
inline constexpr int kFewRows = 4;

// Fills the `needs` parts of block rows [row] of an activation buffer from x[k].
struct QuantizeJob {
  const float* x = nullptr;
  int64_t k = 0;
  int64_t row = 0;
  int64_t rows = 0;  // stride between blocks
  uint8_t needs = 0;
  bool wide_codes = false;  // int16 instead of int8
  ActHead* head = nullptr;
  ActCodes* codes = nullptr;
  ActNibbles* nibbles = nullptr;
  ActWide* wide = nullptr;
};

using DecodePanel = void (*)(const std::byte* tiles, uint32_t raw_type, int64_t k, int64_t block,
                             float* panel);

struct ProductTable {
  const char* name = "";
  Kernels i8[kLayouts];
  Kernels i16[kLayouts];
  Kernels f32[kLayouts];
  void (*quantize)(const QuantizeJob&) = nullptr;
  // n is a multiple of 16.
  void (*silu_mul)(float* y, const float* gate, const float* up, int64_t n) = nullptr;
};

// Plain loops for any processor; the specification of the kernels.
const ProductTable& scalar_products();
#if defined(__x86_64__)
const ProductTable& avx2_products();
const ProductTable& avx512_products();
#elif defined(__aarch64__)
const ProductTable& neon_products();
const ProductTable& dotprod_products();
#endif

// The fastest table this processor can run; BRAID_CPU=scalar|avx2|avx512|neon|dotprod forces one.
// Null: the forced one does not exist or cannot run here.
const ProductTable* choose_products(const char* forced);

}  // namespace braid::cpu
