// both.h -- code for GPU and host, so that tests need no GPU.
//
// Every operation is rounded by itself on both (no fused multiply-add), so the bytes agree.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "gguf/half.h"

#if defined(__CUDACC__)
#include "ops/cuda/gpu.h"
#define BRAID_BOTH __host__ __device__
#else
#define BRAID_BOTH
#endif
#if defined(__CUDA_ARCH__)
#define BRAID_UNROLL _Pragma("unroll")
#else
#define BRAID_UNROLL
#endif

namespace braid::cuda {

#if defined(__CUDA_ARCH__)
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float root(float a) { return __fsqrt_rn(a); }
__device__ inline float to_even(float a) { return rintf(a); }
__device__ inline float away_from_zero(float a) { return roundf(a); }
__device__ inline uint32_t bits_of(float a) { return __float_as_uint(a); }
__device__ inline float float_of_half(uint16_t a) { return __half2float(__ushort_as_half(a)); }
__device__ inline uint16_t half_of(float a) { return __half_as_ushort(__float2half_rn(a)); }
__device__ inline float float_of_bf16(uint16_t a) {
  return __uint_as_float(static_cast<uint32_t>(a) << 16);
}
__device__ inline uint16_t bf16_of(float a) { return __bfloat16_as_ushort(__float2bfloat16_rn(a)); }
#else
BRAID_BOTH inline float mul(float a, float b) { return a * b; }
BRAID_BOTH inline float add(float a, float b) { return a + b; }
BRAID_BOTH inline float sub(float a, float b) { return a - b; }
BRAID_BOTH inline float quotient(float a, float b) { return a / b; }
inline float root(float a) { return std::sqrt(a); }
inline float to_even(float a) { return std::nearbyint(a); }
inline float away_from_zero(float a) { return std::round(a); }
inline uint32_t bits_of(float a) { return std::bit_cast<uint32_t>(a); }
inline float float_of_half(uint16_t a) { return f16_to_f32(a); }
inline uint16_t half_of(float a) { return f32_to_f16(a); }
inline float float_of_bf16(uint16_t a) { return bf16_to_f32(a); }
inline uint16_t bf16_of(float a) { return f32_to_bf16(a); }
#endif

// Like std::min, std::max and std::clamp for equal numbers, also for zeros of either sign.
template <typename T>
BRAID_BOTH constexpr T lesser(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
BRAID_BOTH constexpr T greater(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
BRAID_BOTH constexpr T within(T x, T low, T high) {
  return x < low ? low : high < x ? high : x;
}
BRAID_BOTH inline float magnitude(float a) { return a < 0.0f ? -a : a; }

// The threads of a block: each(f) runs f(thread) for all of them, then a barrier. No registers are
// kept between calls. kv/host_block_test.h has the same interface on the host.
#if defined(__CUDACC__)
template <int kThreads>
struct ThreadBlock {
  static constexpr int kSize = kThreads;
  template <typename Run>
  __device__ void each(Run run) const {
    run(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};
#endif

}  // namespace braid::cuda
