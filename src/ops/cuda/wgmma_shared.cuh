// wgmma_shared.cuh -- the warpgroup matrix instruction of sm_90a with operands that wgmma.cuh does not have:
// both from shared memory, and a B whose rows are k.
//
// Shared memory holds rows of 64 numbers (128 bytes), 16-byte pieces exchanged by row modulo 8, as copies
// with a tensor map leave them (128-byte swizzle). Where a row is one k of 64 columns, the next 64 columns
// lie `columns` bytes further, the next 8 k 1024 bytes.
#pragma once

#include "ops/cuda/gpu.h"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// B whose rows are k, at a shared address; 2048 bytes further are the next 16 k.
__device__ inline uint64_t wide_rows_operand(uint32_t shared, uint32_t columns) {
  return static_cast<uint64_t>(shared >> 4 & 0x3fff) | static_cast<uint64_t>(columns >> 4) << 16 |
         uint64_t{64} << 32 | uint64_t{1} << 62;
}

// What an instruction under way writes or reads must not be touched or moved before the wait for it: named
// right after that wait.
template <int kCount>
__device__ inline void hold_wide(float (&x)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    asm volatile("" : "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])::"memory");
}
template <int kCount>
__device__ inline void hold_wide(uint32_t (&x)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    asm volatile("" : "+r"(x[n][0]), "+r"(x[n][1]), "+r"(x[n][2]), "+r"(x[n][3])::"memory");
}

// clang-format off: tables of operands
#define BRAID_SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define BRAID_SUMS_8(n)                                                                      \
  BRAID_SUMS(n), BRAID_SUMS(n + 1), BRAID_SUMS(n + 2), BRAID_SUMS(n + 3), BRAID_SUMS(n + 4), \
      BRAID_SUMS(n + 5), BRAID_SUMS(n + 6), BRAID_SUMS(n + 7)
#define BRAID_NAMES_32                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BRAID_NAMES_64                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BRAID_NAMES_128                                                                          \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d [64, 64] = a b, or with kAdd d += a b; one step of 16 k.
#define BRAID_BOTH_SHARED(Number, type)                                                          \
  template <int kAdd>                                                                            \
  __device__ inline void multiply_shared(float(&d)[8][4], uint64_t a, uint64_t b, Number) {      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" BRAID_NAMES_32 \
                 "}, "                                                                           \
                 "%32, %33, %34, 1, 1, 0, 0;\n"                                                  \
                 : BRAID_SUMS_8(0)                                                               \
                 : "l"(a), "l"(b), "n"(kAdd));                                                   \
  }
BRAID_BOTH_SHARED(__half, "f16")
BRAID_BOTH_SHARED(__nv_bfloat16, "bf16")

// d [64, columns] += a b, the rows of b are k; one step of 16 k.
#define BRAID_ROWS(Number, type)                                                                             \
  __device__ inline void multiply_rows(float(&d)[16][4], const uint32_t(&a)[4], uint64_t b, Number) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" BRAID_NAMES_32            \
                 ", " BRAID_NAMES_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"                           \
                 : BRAID_SUMS_8(0), BRAID_SUMS_8(8)                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
  }                                                                                                          \
  __device__ inline void multiply_rows(float(&d)[32][4], const uint32_t(&a)[4], uint64_t b, Number) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" BRAID_NAMES_32            \
                 ", " BRAID_NAMES_64 ", " BRAID_NAMES_128 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n" \
                 : BRAID_SUMS_8(0), BRAID_SUMS_8(8), BRAID_SUMS_8(16), BRAID_SUMS_8(24)                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
  }
BRAID_ROWS(__half, "f16")
BRAID_ROWS(__nv_bfloat16, "bf16")
// clang-format on

#undef BRAID_SUMS
#undef BRAID_SUMS_8
#undef BRAID_NAMES_32
#undef BRAID_NAMES_64
#undef BRAID_NAMES_128
#undef BRAID_BOTH_SHARED
#undef BRAID_ROWS

#endif

}  // namespace braid::cuda
