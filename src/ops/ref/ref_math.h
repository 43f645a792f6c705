// ref_math.h -- the few functions the reference ops share. All in double.
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

// sum a[i] b[i]. Thirty-two partial sums: the order is fixed, and goldens of a whole model stay affordable. A product
// of two floats is exact in double, so the bits do not depend on whether multiply and add are fused.
double dot(const float* a, const float* b, int64_t count);

// 1 / sqrt(mean(x^2) + eps)
inline double inverse_rms(const float* x, int64_t count, double eps) {
  return 1.0 / std::sqrt(dot(x, x, count) / static_cast<double>(count) + eps);
}

// Row r of expert e of a loaded weight, f32 [k].
inline const float* weight_row(const Weight& w, int64_t expert, int64_t row) {
  return static_cast<const float*>(w.device_data) + (expert * w.n + row) * w.k;
}
inline double weight_scale(const Weight& w, int64_t expert) {
  if (w.scales.empty()) return 1.0;
  return w.scales.size() == 1 ? w.scales[0] : w.scales[static_cast<size_t>(expert)];
}
// (W_expert x)[row], scaled.
inline double product(const Weight& w, int64_t expert, int64_t row, const float* x) {
  return weight_scale(w, expert) * dot(weight_row(w, expert, row), x, w.k);
}

}  // namespace braid::ref
