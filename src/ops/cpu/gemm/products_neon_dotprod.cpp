// products_neon_dotprod.cpp -- the kernels of products_neon.h with sdot (ARMv8.2); empty elsewhere.

#if defined(__aarch64__)
#if !defined(__clang__)
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include "ops/cpu/gemm/products_small_neon.h"

namespace braid::cpu::neon {

template void w8_rows<true>(const Job&);
template void w8_wide_rows<true>(const Job&);
template void w4k_rows<true>(const Job&);
template void w5k_rows<true>(const Job&);
template void w6k_rows<true>(const Job&);
BRAID_K_KERNELS(true)
#define BRAID_KERNELS(l) BRAID_SMALL_KERNELS(true, l)
BRAID_SMALL_LAYOUTS(BRAID_KERNELS)

}  // namespace braid::cpu::neon
#endif
