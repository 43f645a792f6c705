// kernels_avx512.h -- the kernels of the AVX-512 VNNI table (products.h).
//
// Parts of an activation buffer that differ from the other tables:
// - ActHead::sum is -128 x (sum of codes), the start of the sum of a W8 sub-block.
// - start6 is 16 int32, starts of W6K sums: -32 x (sum of codes) of the first, then second 16 k.
// - For int16 codes, ActNibbles has two int8 planes, code = 256 high + low.
#pragma once

#include "ops/cpu/gemm/products.h"

namespace braid::cpu::avx512 {

void w8_few(const Job& job);
void w8_many(const Job& job);
void w8_wide_few(const Job& job);
void w8_wide_many(const Job& job);
void w4k_few(const Job& job);
void w4k_many(const Job& job);
void w5k_few(const Job& job);
void w5k_many(const Job& job);
void w6k_few(const Job& job);
void w6k_many(const Job& job);
// The small types and, with int16 activations, the K-quants.
template <Layout L>
void small_rows(const Job& job);
template <Layout L>
void wide_rows(const Job& job);
void f32_rows(const Job& job);
void f16_rows(const Job& job);
void bf16_rows(const Job& job);
template <Layout L>
void decoded_rows(const Job& job);
void quantize(const QuantizeJob& job);
void silu_mul(float* y, const float* gate, const float* up, int64_t n);

}  // namespace braid::cpu::avx512
