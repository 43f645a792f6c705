// top_k.cpp -- the largest logits of a row and its log-sum-exp, one row per worker.
// Few logits exceed the last entry of the sorted list, so kCompared are compared at once, and
// single ones only if one exceeds it. A second pass sums e^(x - largest).

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/top_k.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCompared = 64;  // logits compared at once

// Whether one of kCompared numbers is above `least`; a NaN is not.
HWY_INLINE bool any_above(const float* x, float least) {
  auto above = hn::Gt(load(x), set(least));
  for (int64_t i = kLanes; i < kCompared; i += kLanes)
    above = hn::Or(above, hn::Gt(load(x + i), set(least)));
  return !hn::AllFalse(FloatTag(), above);
}

void best_of_row(const float* row, int64_t count, float* best, int32_t* id, int64_t k) {
  int64_t held = 0;
  for (int64_t begin = 0; begin < count; begin += kCompared) {
    const int64_t end = std::min(begin + kCompared, count);
    if (held == k && end - begin == kCompared && !any_above(row + begin, best[k - 1])) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (held == k && !(row[i] > best[k - 1])) continue;
      int64_t at = held < k ? held++ : k - 1;
      for (; at > 0 && row[i] > best[at - 1]; --at) {
        best[at] = best[at - 1];
        id[at] = id[at - 1];
      }
      best[at] = row[i];
      id[at] = static_cast<int32_t>(i);
    }
  }
}

float log_sum_of(const float* row, int64_t count, float most) {
  return static_cast<float>(most + std::log(sum_exp(row, count, most)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(best_of_row);
HWY_EXPORT(log_sum_of);
}  // namespace

void CpuOps::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                   const int32_t* token_of) {
  const int64_t k = values.cols;
  BRAID_CHECK(k > 0 && k <= kMostTopK && k <= logits.cols && ids.cols == k &&
              ids.type == DType::i32);
  BRAID_CHECK(values.rows >= logits.rows && ids.rows >= logits.rows && log_sum.rows >= logits.rows);
  const auto best_of = &HWY_DYNAMIC_DISPATCH(best_of_row);
  const auto log_sum_of_row = &HWY_DYNAMIC_DISPATCH(log_sum_of);
  split(logits.rows, 0.3 * static_cast<double>(logits.cols), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* best = values.f32(t);
      int32_t* id = static_cast<int32_t*>(ids.data) + t * ids.stride;
      best_of(logits.f32(t), logits.cols, best, id, k);
      if (token_of != nullptr)
        for (int64_t j = 0; j < k; ++j) id[j] = token_of[id[j]];
      *log_sum.f32(t) = log_sum_of_row(logits.f32(t), logits.cols, best[0]);
    }
  });
}

}  // namespace braid
#endif  // HWY_ONCE
