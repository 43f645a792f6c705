// attention_gate.cpp -- gates of finished heads (attention.h).

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_gate.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <cmath>

#include "ops/cpu/attention.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which does not overflow.
HWY_INLINE Floats softplus(Floats x) {
  const Floats rest = hn::Log1p(FloatTag(), exp_negative(hn::Neg(hn::Abs(x))));
  return hn::Add(hn::Max(x, hn::Zero(FloatTag())), rest);
}

void apply_here(float* o, const float* gate, AttentionGate::Act act, int64_t head_dim) {
  int64_t i = 0;
  if (act == AttentionGate::Act::sigmoid) {
    for (; i + kLanes <= head_dim; i += kLanes)
      store(hn::Mul(load(o + i), sigmoid(load(gate + i))), o + i);
    for (; i < head_dim; i++) o[i] /= 1.0f + std::exp(-gate[i]);
  } else {
    for (; i + kLanes <= head_dim; i += kLanes)
      store(hn::Mul(load(o + i), softplus(load(gate + i))), o + i);
    for (; i < head_dim; i++)
      o[i] *= std::max(gate[i], 0.0f) + std::log1p(std::exp(-std::abs(gate[i])));
  }
}

void multiply_here(float* o, float factor, int64_t head_dim) { scale(o, factor, head_dim); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(apply_here);
HWY_EXPORT(multiply_here);
}  // namespace

namespace cpu {

void apply_gate(float* o, const float* gate, AttentionGate::Act act, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(apply_here)(o, gate, act, head_dim);
}

void apply_head_gate(float* o, float gate, AttentionGate::Act act, int64_t head_dim) {
  const double x = gate;
  const double factor = act == AttentionGate::Act::sigmoid
                            ? 1.0 / (1.0 + std::exp(-x))
                            : std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  HWY_DYNAMIC_DISPATCH(multiply_here)(o, static_cast<float>(factor), head_dim);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
