// gemm_kernels.h -- the launchers of the kernels of products, one for each format, and the choice of a format
// by its pack.
//
// Templates are declared here and instantiated by sources that CMake writes (instances.cmake), so that nvcc
// compiles them side by side. A launcher that returns bool launches nothing, and returns false, where its
// kernel has no form for the product.
#pragma once

#include "ops/cuda/gemm/gemm_args.h"
#include "ops/cuda/primitives/context.h"

namespace braid::cuda {

// How a launch multiplies: rows of x a CTA takes at once, and the kernel.
struct Columns {
  int count = 8;       // 8, 16, 32, 64 with mma.sync; 16, 32, 64, 96, 128 with wgmma
  bool wgmma = false;  // x must be in the order of units
  bool wide = false;   // gemm_wide.cuh
};
// For up to `rows` rows of x of one weight.
Columns columns_for(const Context& context, int64_t rows);

// Warps of a CTA of the wgmma kernels that multiply, with 32 rows each of a tile.
constexpr int wgmma_warps(Pack pack) { return pack == Pack::f16 ? 4 : 8; }

// A launch before its kernel is chosen. Each launcher takes what its kernel needs.
struct GemmLaunch : GemmArgs {
  ExpertList list;
  SkinnyNorm norm;
  // x was complete before the kernel before this one began, and nothing that the kernel before reads or
  // writes is written: it may still run.
  bool beside_previous = false;
  int second_block = 0;  // of two formats: the first block of the second
  float* partials = nullptr;
  unsigned* counters = nullptr;
  unsigned* claims = nullptr;
};
// For kernels that do not norm: queues the norm, if there is one, and returns the launch without it.
GemmLaunch norm_first(Context& context, const GemmLaunch& launch);

// gemm_formats.cuh
struct FormatF16;
struct FormatQ8;
struct FormatQ4K;
struct FormatQ6K;
struct FormatQ5;
struct FormatT4;
struct FormatFp4;

// Calls run<Format>() with the format of `pack`.
template <class Run>
auto with_format(Pack pack, Run run) {
  switch (pack) {
    case Pack::f16:
      return run.template operator()<FormatF16>();
    case Pack::q8:
      return run.template operator()<FormatQ8>();
    case Pack::q4k:
      return run.template operator()<FormatQ4K>();
    case Pack::q6k:
      return run.template operator()<FormatQ6K>();
    case Pack::q5:
      return run.template operator()<FormatQ5>();
    case Pack::t4:
      return run.template operator()<FormatT4>();
    case Pack::fp4:
      break;
  }
  return run.template operator()<FormatFp4>();
}

// Up to 8 rows of x. Two formats: from block second_block on weights have the second one.
template <class First, class Second>
bool launch_gemm_skinny(Context& context, const GemmLaunch& launch);
// 9 to 16 rows on sm_90a, if plan_wide() takes them: q4k, or q6k and q4k, all parts gated or none.
template <class First, class Second>
bool launch_gemm_wide(Context& context, const GemmLaunch& launch);
// 9 and more rows: wgmma, all parts gated or none, with tiles of the second format from block second_block on where
// none is; or mma.sync.
template <class First, class Second>
void launch_gemm_wgmma(Context& context, int columns, const GemmLaunch& launch);
template <class Format>
void launch_gemm_mma(Context& context, int columns, const GemmLaunch& launch);
// Lists of experts with up to 8 rows each: any, and many on sm_90a, where every format but f16 has it.
template <class Format>
bool launch_gemm_grouped(Context& context, const GemmLaunch& launch);
template <class Format>
bool launch_gemm_grouped_persistent(Context& context, const GemmLaunch& launch);

// Matrices of a few megabytes of 16-bit pairs, 9 to 128 rows of x (gemm_small.cu).
inline constexpr int kMostSmallRows = 128;
bool small_fits(const Context& context, int64_t blocks, int units);
void launch_gemm_small(Context& context, const GemmArgs& args);

}  // namespace braid::cuda
