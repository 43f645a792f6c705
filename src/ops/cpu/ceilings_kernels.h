// ceilings_kernels.h -- the inner loops of measure_ceilings for one instruction set.
#pragma once

#include <cstddef>

namespace braid::cpu {

struct CeilingKernels {
  const char* dot_name = "";
  double (*fma)(int repeats) = nullptr;  // runs, returns the operations done
  double (*dot)(int repeats) = nullptr;
  void (*read)(const void* p, size_t size_bytes) = nullptr;  // size a multiple of 512
};

CeilingKernels plain_ceilings();
#if defined(__x86_64__)
CeilingKernels avx2_ceilings();
CeilingKernels avx512_ceilings();
#endif

}  // namespace braid::cpu
