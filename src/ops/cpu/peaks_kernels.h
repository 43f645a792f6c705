// peaks_kernels.h -- the inner loops of measure_peaks for one instruction set.
#pragma once

#include <cstddef>

namespace braid::cpu {

struct PeakKernels {
  const char* dot_name = "";
  double (*fma)(int repeats) = nullptr;  // runs, returns the operations done
  double (*dot)(int repeats) = nullptr;
  void (*read)(const void* p, size_t size_bytes) = nullptr;  // size a multiple of 512
};

PeakKernels plain_peaks();
#if defined(__x86_64__)
PeakKernels avx2_peaks();
PeakKernels avx512_peaks();
#endif

}  // namespace braid::cpu
