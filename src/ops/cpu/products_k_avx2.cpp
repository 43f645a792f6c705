// products_k_avx2.cpp -- Q4_K, Q5_K and Q6_K weights on AVX2.
#include "ops/cpu/products_avx2.h"
namespace braid::cpu::avx2 {}  // namespace braid::cpu::avx2
