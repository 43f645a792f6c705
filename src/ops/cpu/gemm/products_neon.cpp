// products_neon.cpp -- the kernels of products_neon.h without sdot; empty on other processors.

#if defined(__aarch64__)
#include "ops/cpu/gemm/products_small_neon.h"

namespace braid::cpu::neon {

template void w8_rows<false>(const Job&);
template void w8_wide_rows<false>(const Job&);
template void w4k_rows<false>(const Job&);
template void w5k_rows<false>(const Job&);
template void w6k_rows<false>(const Job&);
BRAID_K_KERNELS(false)
#define BRAID_KERNELS(l) BRAID_SMALL_KERNELS(false, l)
BRAID_SMALL_LAYOUTS(BRAID_KERNELS)

}  // namespace braid::cpu::neon
#endif
