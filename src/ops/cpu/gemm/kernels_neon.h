// kernels_neon.h -- the kernels of the aarch64 tables (products.h), with sdot (kDot) and without.
// For int16 codes, ActNibbles has two int8 planes: code = 256 high + low.
#pragma once

#include "ops/cpu/gemm/products.h"

namespace braid::cpu::neon {

template <bool kDot>
void w8_rows(const Job& job);
template <bool kDot>
void w8_wide_rows(const Job& job);
template <bool kDot>
void w4k_rows(const Job& job);
template <bool kDot>
void w5k_rows(const Job& job);
template <bool kDot>
void w6k_rows(const Job& job);
// The small types with int8 activations; with int16 activations every quantized type but Q8_0.
template <bool kDot, Layout L>
void small_rows(const Job& job);
template <bool kDot, Layout L>
void wide_rows(const Job& job);
void f32_rows(const Job& job);
void f16_rows(const Job& job);
void bf16_rows(const Job& job);
template <Layout L>
void decoded_rows(const Job& job);
void quantize(const QuantizeJob& job);
void silu_mul(float* y, const float* gate, const float* up, int64_t n);

}  // namespace braid::cpu::neon
