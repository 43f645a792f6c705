// peaks_avx2.cpp -- loops of independent instructions, in assembly because compilers fold them.
#if defined(__x86_64__)

#include "ops/cpu/peaks_kernels.h"

namespace braid::cpu {
namespace {

#define BRAID_TWELVE(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)
#define BRAID_FMA(N) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #N "\n\t"
// A product into one of two temporaries, added to one of six sums.
#define BRAID_DOT(T, N) \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #T "\n\tvpaddw %%ymm" #T ", %%ymm" #N ", %%ymm" #N "\n\t"
#define BRAID_CLOBBERED                                                                    \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", \
      "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"

double fma(int repeats) {
  asm volatile("vpxor %%xmm14, %%xmm14, %%xmm14\n\tvpxor %%xmm15, %%xmm15, %%xmm15" ::
                   : BRAID_CLOBBERED);
  for (int i = 0; i < repeats; i++) {
    asm volatile(BRAID_TWELVE(BRAID_FMA) BRAID_TWELVE(BRAID_FMA)::: BRAID_CLOBBERED);
  }
  return repeats * 24.0 * 8 * 2;
}

double dot(int repeats) {
  for (int i = 0; i < repeats; i++) {
    asm volatile(BRAID_DOT(0, 6) BRAID_DOT(1, 7) BRAID_DOT(2, 8) BRAID_DOT(3, 9) BRAID_DOT(4, 10)
                     BRAID_DOT(5, 11) BRAID_DOT(0, 6) BRAID_DOT(1, 7) BRAID_DOT(2, 8)
                         BRAID_DOT(3, 9) BRAID_DOT(4, 10) BRAID_DOT(5, 11)::
                             : BRAID_CLOBBERED);
  }
  return repeats * 12.0 * 32 * 2;
}

void read(const void* p, size_t size_bytes) {
  const auto* at = static_cast<const char*>(p);
  const char* end = at + size_bytes;
  for (; at < end; at += 512) {
    asm volatile(
        "vmovdqa (%0), %%ymm0\n\tvmovdqa 32(%0), %%ymm1\n\tvmovdqa 64(%0), %%ymm2\n\tvmovdqa "
        "96(%0), "
        "%%ymm3\n\t"
        "vmovdqa 128(%0), %%ymm0\n\tvmovdqa 160(%0), %%ymm1\n\tvmovdqa 192(%0), %%ymm2\n\tvmovdqa "
        "224(%0), "
        "%%ymm3\n\t"
        "vmovdqa 256(%0), %%ymm0\n\tvmovdqa 288(%0), %%ymm1\n\tvmovdqa 320(%0), %%ymm2\n\tvmovdqa "
        "352(%0), "
        "%%ymm3\n\t"
        "vmovdqa 384(%0), %%ymm0\n\tvmovdqa 416(%0), %%ymm1\n\tvmovdqa 448(%0), %%ymm2\n\tvmovdqa "
        "480(%0), "
        "%%ymm3" ::"r"(at)
        : "ymm0", "ymm1", "ymm2", "ymm3", "memory");
  }
}

}  // namespace

PeakKernels avx2_peaks() { return {"vpmaddubsw + vpaddw", fma, dot, read}; }

}  // namespace braid::cpu

#endif
