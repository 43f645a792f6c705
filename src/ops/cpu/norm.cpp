// norm.cpp -- residual addition and RMS norm, row by row (sums in 16 lanes, simd-inl.h).

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

// Returns the sum of squares.
float add_squares(float* residual, const float* x, int64_t width) {
  if (x == nullptr) return dot(residual, residual, width);
  Floats sum[kSumVectors];
  for (int64_t j = 0; j < kSumVectors; j++) sum[j] = hn::Zero(FloatTag());
  int64_t i = 0;
  for (; i + kSumLanes <= width; i += kSumLanes) {
    for (int64_t j = 0; j < kSumVectors; j++) {
      float* at = residual + i + j * kLanes;
      const Floats value = hn::Add(load(at), load(x + i + j * kLanes));
      store(value, at);
      sum[j] = hn::MulAdd(value, value, sum[j]);
    }
  }
  float total = fold_sum(sum);
  for (; i < width; i++) {
    residual[i] += x[i];
    total += residual[i] * residual[i];
  }
  return total;
}

void norm_row(float* y, float* residual, const float* x, const float* weight, float eps,
              int64_t width) {
  const float mean = add_squares(residual, x, width) / static_cast<float>(width);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store(hn::Mul(hn::Mul(load(residual + i), set(inverse)), load(weight + i)), y + i);
  }
  for (; i < width; i++) y[i] = residual[i] * inverse * weight[i];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(norm_row);
}

void CpuOps::add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) {
  const int64_t width = y.cols;
  BRAID_CHECK(residual.cols == width && residual.rows >= y.rows && weight != nullptr);
  BRAID_CHECK(!x || (x.cols == width && x.rows >= y.rows));
  const auto row = &HWY_DYNAMIC_DISPATCH(norm_row);
  split(y.rows, 0.15 * static_cast<double>(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      row(y.f32(t), residual.f32(t), x ? x.f32(t) : nullptr, weight, eps, width);
    }
  });
}

}  // namespace braid
#endif  // HWY_ONCE
