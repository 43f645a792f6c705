// simd.h -- which Highway targets our kernels are built for. Include before any Highway header.
//
// Product kernels need AVX2, so older x86 sets only cost compile time; the scalable vectors of SVE and RVV
// cannot be kept in arrays, as the kernels do, so such machines run the NEON path.
#pragma once

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
