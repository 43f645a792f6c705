// ref_math.h -- functions shared by the reference ops, all in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/ops.h"

namespace braid::ref {

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x / (1.0 + std::exp(-x)); }
inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }
inline double gate(AttentionGate::Act act, double x) {
  switch (act) {
    case AttentionGate::Act::none:
      return 1;
    case AttentionGate::Act::sigmoid:
      return sigmoid(x);
    case AttentionGate::Act::softplus:
      return softplus(x);
  }
  return NAN;
}

// sum a[i] b[i] in 32 partial sums of fixed order, for speed. A product of two floats is exact in
// double, so fusing does not change the bits.
double dot(const float* a, const float* b, int64_t count);

inline double inverse_rms(const float* x, int64_t count, double eps) {
  return 1.0 / std::sqrt(dot(x, x, count) / static_cast<double>(count) + eps);
}

inline const float* weight_row(const Weight& w, int64_t expert, int64_t row) {
  return static_cast<const float*>(w.device_data) + (expert * w.n + row) * w.k;
}
inline double weight_scale(const Weight& w, int64_t expert) {
  if (w.scales.empty()) return 1.0;
  return w.scales.size() == 1 ? w.scales[0] : w.scales[static_cast<size_t>(expert)];
}
inline double product(const Weight& w, int64_t expert, int64_t row, const float* x) {
  return weight_scale(w, expert) * dot(weight_row(w, expert, row), x, w.k);
}

}  // namespace braid::ref
