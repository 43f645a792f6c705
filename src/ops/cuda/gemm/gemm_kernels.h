// gemm_kernels.h -- launchers of the product kernels by format, and the choice of a format by pack.
//
// CMake writes sources that instantiate the templates (instances.cmake), so that nvcc compiles them
// in parallel. A launcher that returns false has no form for the product and launched nothing.
#pragma once

#include "ops/cuda/context.h"
#include "ops/cuda/gemm/gemm_args.h"

namespace braid::cuda {

struct Columns {
  int count = 8;       // 8, 16, 32, 64 with mma.sync; 16, 32, 64, 96, 128 with wgmma
  bool wgmma = false;  // x must be OrderedRows
  bool wide = false;   // gemm_wide.cuh
};
Columns columns_for(const Context& context, int64_t rows);

// Multiplying warps per CTA of the wgmma kernels, with 32 rows of a tile each.
constexpr int wgmma_warps(Pack pack) { return pack == Pack::f16 ? 4 : 8; }

// A launch before its kernel is chosen; each launcher uses its part.
struct GemmLaunch : GemmArgs {
  ExpertList list;
  SkinnyNorm norm;
  // The launch may overlap the preceding kernel: x is older, and no memory is written that it uses.
  bool beside_previous = false;
  int second_block = 0;  // the second format's first block
  float* partials = nullptr;
  unsigned* counters = nullptr;
  unsigned* claims = nullptr;
};
// For kernels without a norm: queues the norm, if any, and returns the launch without it.
GemmLaunch norm_first(Context& context, const GemmLaunch& launch);

struct FormatF16;
struct FormatQ8;
struct FormatQ4K;
struct FormatQ6K;
struct FormatQ5;
struct FormatT4;
struct FormatFp4;

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

// Up to 8 rows of x. With two formats the second begins at block second_block.
template <class First, class Second>
bool launch_gemm_skinny(Context& context, const GemmLaunch& launch);
// 9 to 16 rows on sm_90a, if plan_wide() takes them: q4k, or q6k and q4k, all parts gated or none.
template <class First, class Second>
bool launch_gemm_wide(Context& context, const GemmLaunch& launch);
// 9 and more rows, by wgmma (all parts gated or none; a second format without gates) or mma.sync.
template <class First, class Second>
void launch_gemm_wgmma(Context& context, int columns, const GemmLaunch& launch);
template <class Format>
void launch_gemm_mma(Context& context, int columns, const GemmLaunch& launch);
// Lists of experts with up to 8 rows each: any; many on sm_90a, in all formats but f16.
template <class Format>
bool launch_gemm_grouped(Context& context, const GemmLaunch& launch);
template <class Format>
bool launch_gemm_grouped_persistent(Context& context, const GemmLaunch& launch);

// 9 to 128 rows of x and a few megabytes of 16-bit pairs (gemm_small.cu).
inline constexpr int kMostSmallRows = 128;
bool small_fits(const Context& context, int64_t blocks, int units);
void launch_gemm_small(Context& context, const GemmArgs& args);

}  // namespace braid::cuda
