// peaks_avx512.cpp -- the dot product of the AVX-512 kernels: 64 byte products summed into 32 bits.
// FMA and reads are those of AVX2, as wider registers do not change most pipes and caches.
#if defined(__x86_64__)

#include "ops/cpu/peaks_kernels.h"

namespace braid::cpu {
namespace {

#define BRAID_DOT512(N) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #N "\n\t"
double dot(int repeats) {
  for (int i = 0; i < repeats; i++) {
    asm volatile(BRAID_DOT512(0) BRAID_DOT512(1) BRAID_DOT512(2) BRAID_DOT512(3) BRAID_DOT512(4)
                     BRAID_DOT512(5) BRAID_DOT512(6) BRAID_DOT512(7) BRAID_DOT512(8) BRAID_DOT512(9)
                         BRAID_DOT512(10) BRAID_DOT512(11)::
                             : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7",
                               "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14",
                               "zmm15");
  }
  return repeats * 12.0 * 64 * 2;
}

}  // namespace

PeakKernels avx512_peaks() {
  PeakKernels kernels = avx2_peaks();
  kernels.dot_name = "vpdpbusd";
  kernels.dot = dot;
  return kernels;
}

}  // namespace braid::cpu

#endif
