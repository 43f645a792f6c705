// ref_norm.cpp -- residual norm and the table of rotations: the reference.
#include <cmath>

#include "ops/ref_math.h"
#include "ops/ref_ops.h"

namespace braid {

void RefOps::add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) {
  const int64_t width = residual.cols;
  BRAID_CHECK(y.cols == width && residual.rows >= y.rows);
  if (x) BRAID_CHECK(x.cols == width && x.rows >= y.rows);
  for (int64_t t = 0; t < y.rows; ++t) {
    float* sum = residual.f32(t);
    if (x) {
      const float* add = x.f32(t);
      for (int64_t i = 0; i < width; ++i) sum[i] += add[i];
    }
    const double inverse = ref::inverse_rms(sum, width, eps);
    float* out = y.f32(t);
    for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(sum[i] * inverse * weight[i]);
  }
}

void RefOps::rope_table(Tensor table, const RopeParams& rope, const Batch& batch) {
  BRAID_CHECK(table.cols == rope.dims && rope.dims % 2 == 0 && table.rows >= batch.tokens);
  for (int32_t t = 0; t < batch.tokens; ++t) {
    float* out = table.f32(t);
    for (int32_t i = 0; i < rope.dims / 2; ++i) {
      const double angle = batch.position[t] * rope_frequency(rope, i);
      out[2 * i] = static_cast<float>(rope.magnitude * std::cos(angle));
      out[2 * i + 1] = static_cast<float>(rope.magnitude * std::sin(angle));
    }
  }
}

}  // namespace braid
