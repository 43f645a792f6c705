// kernels_avx2.h -- the kernels of the AVX2 table (products.h).
#pragma once

#include "ops/cpu/gemm/products.h"

namespace braid::cpu::avx2 {

void w8_few(const Job& job);
void w8_many(const Job& job);
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
void f32_few(const Job& job);
void f16_few(const Job& job);
void bf16_few(const Job& job);
template <Layout L>
void decoded_rows(const Job& job);
template <Layout L>
void decode_small(const std::byte* tiles, int64_t k, int64_t block, float* panel);
// decode_tiles (decode.h), faster for the quantized layouts; panel is 32-byte aligned.
void decode(Layout layout, uint32_t raw_type, const std::byte* tiles, int64_t k, int64_t block,
            float* panel);
void quantize(const QuantizeJob& job);
void silu_mul(float* y, const float* gate, const float* up, int64_t n);

}  // namespace braid::cpu::avx2
