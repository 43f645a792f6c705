// ref_math.cpp -- see ref_math.h.
#include "ops/ref_math.h"

namespace braid::ref {

// One clone per vector set; the loader picks the best for the machine.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
double
dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 32;
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] += double{a[i + j]} * double{b[i + j]};
  }
  double sum = 0;
  for (; i < count; ++i) sum += double{a[i]} * double{b[i]};
  for (double part : lane) sum += part;
  return sum;
}

}  // namespace braid::ref
