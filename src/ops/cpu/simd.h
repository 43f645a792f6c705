// simd.h -- the Highway targets of the kernels. Include before any Highway header.
// Products have no vector kernels below AVX2, so older x86 sets only cost compile time. Scalable
// vectors (SVE, RVV) cannot be kept in arrays, so such machines run the NEON path.
#pragma once

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
