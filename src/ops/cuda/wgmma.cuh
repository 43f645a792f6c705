// wgmma.cuh -- the warpgroup matrix instruction of sm_90a: A in registers or shared memory, B in
// shared memory, f32 sums.
//
// Four warps multiply 64 rows, 16 each, with fragments and sums as for mma.m16n8k16. Shared memory
// holds rows of 64 numbers (128 bytes) in groups of eight (1024 bytes, so aligned). 16-byte pieces
// are swizzled by row modulo 8, as tensor map copies with 128-byte swizzle leave them. A row of A
// has 64 k, a row of B 64 k of a column or 64 columns of one k. A register that an instruction
// reads must keep its value until wait_wgmma().
#pragma once

#include <cstdint>

#include "ops/cuda/gpu.h"

namespace braid::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void commit_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ inline void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// For registers of an instruction, right after its wait: keeps their use after that.
template <int kCount>
__device__ inline void hold_wgmma(float (&x)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    asm volatile("" : "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])::"memory");
}
template <int kCount>
__device__ inline void hold_wgmma(uint32_t (&x)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    asm volatile("" : "+r"(x[n][0]), "+r"(x[n][1]), "+r"(x[n][2]), "+r"(x[n][3])::"memory");
}

// B with rows of one k: the next 16 k are 2048 bytes further, the next 64 columns `columns` bytes.
__device__ inline uint64_t wgmma_rows_operand(uint32_t shared, uint32_t columns) {
  return static_cast<uint64_t>(shared >> 4 & 0x3fff) | static_cast<uint64_t>(columns >> 4) << 16 |
         uint64_t{64} << 32 | uint64_t{1} << 62;
}
// Rows of 64 k: the next 16 k are 32 bytes further. The distance is unused here.
__device__ inline uint64_t wgmma_operand(uint32_t shared) { return wgmma_rows_operand(shared, 16); }
// The operand `offset` bytes further.
__device__ inline uint64_t wgmma_operand_at(uint64_t operand, uint32_t offset) {
  return (operand & ~uint64_t{0xffffffffu}) | (static_cast<uint32_t>(operand) + (offset >> 4));
}

#define BRAID_SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define BRAID_SUMS_2(n) BRAID_SUMS(n), BRAID_SUMS(n + 1)
#define BRAID_SUMS_4(n) BRAID_SUMS_2(n), BRAID_SUMS_2(n + 2)
#define BRAID_SUMS_8(n) BRAID_SUMS_4(n), BRAID_SUMS_4(n + 4)
#define BRAID_SUMS_16(n) BRAID_SUMS_8(n), BRAID_SUMS_8(n + 8)
#define BRAID_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BRAID_NAMES_16 BRAID_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define BRAID_NAMES_32                                                            \
  BRAID_NAMES_16                                                                  \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
  "%31"
#define BRAID_NAMES_48                                                            \
  BRAID_NAMES_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47"
#define BRAID_NAMES_64                                                            \
  BRAID_NAMES_48                                                                  \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
  "%63"
#define BRAID_NAMES_128                                                                          \
  BRAID_NAMES_64                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// A in registers. `operands`: names after those of the sums; `rows_are_k`: a row of b is one k.
#define BRAID_MULTIPLY(columns, type, names, operands, rows_are_k, ...)                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names \
               "}, " operands ", 1, 1, 1, " #rows_are_k ";\n"                                   \
               : __VA_ARGS__                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d[n8][4] += a b, f16, one step of 16 k.
template <int kColumns>
__device__ void multiply_wgmma(float (&d)[kColumns / 8][4], const uint32_t (&a)[4], uint64_t b);

#define BRAID_WIDE(columns, names, operands, ...)                                                  \
  template <>                                                                                      \
  __device__ inline void multiply_wgmma<columns>(float(&d)[columns / 8][4], const uint32_t(&a)[4], \
                                                 uint64_t b) {                                     \
    BRAID_MULTIPLY(columns, "f16", names, operands, 0, __VA_ARGS__);                               \
  }
BRAID_WIDE(16, BRAID_NAMES_8, "{%8, %9, %10, %11}, %12", BRAID_SUMS_2(0))
BRAID_WIDE(32, BRAID_NAMES_16, "{%16, %17, %18, %19}, %20", BRAID_SUMS_4(0))
BRAID_WIDE(64, BRAID_NAMES_32, "{%32, %33, %34, %35}, %36", BRAID_SUMS_8(0))
BRAID_WIDE(96, BRAID_NAMES_48, "{%48, %49, %50, %51}, %52", BRAID_SUMS_8(0), BRAID_SUMS_4(8))
BRAID_WIDE(128, BRAID_NAMES_64, "{%64, %65, %66, %67}, %68", BRAID_SUMS_16(0))

// d [64, columns] += a b, the rows of b are k; one step of 16 k.
#define BRAID_ROWS(Number, type)                                                                 \
  __device__ inline void multiply_rows(float(&d)[16][4], const uint32_t(&a)[4], uint64_t b,      \
                                       Number) {                                                 \
    BRAID_MULTIPLY(128, type, BRAID_NAMES_64, "{%64, %65, %66, %67}, %68", 1, BRAID_SUMS_16(0)); \
  }                                                                                              \
  __device__ inline void multiply_rows(float(&d)[32][4], const uint32_t(&a)[4], uint64_t b,      \
                                       Number) {                                                 \
    BRAID_MULTIPLY(256, type, BRAID_NAMES_128, "{%128, %129, %130, %131}, %132", 1,              \
                   BRAID_SUMS_16(0), BRAID_SUMS_16(16));                                         \
  }
BRAID_ROWS(__half, "f16")
BRAID_ROWS(__nv_bfloat16, "bf16")

// Both in shared memory, rows of k: d [64, 64] = a b, or with kAdd d += a b; one step of 16 k.
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

#undef BRAID_SUMS
#undef BRAID_SUMS_2
#undef BRAID_SUMS_4
#undef BRAID_SUMS_8
#undef BRAID_SUMS_16
#undef BRAID_NAMES_8
#undef BRAID_NAMES_16
#undef BRAID_NAMES_32
#undef BRAID_NAMES_48
#undef BRAID_NAMES_64
#undef BRAID_NAMES_128
#undef BRAID_MULTIPLY
#undef BRAID_WIDE
#undef BRAID_ROWS
#undef BRAID_BOTH_SHARED

#endif

}  // namespace braid::cuda
