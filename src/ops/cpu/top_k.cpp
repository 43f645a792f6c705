// top_k.cpp -- the largest logits of a row and its log-sum-exp, one row per worker.
//
// One pass keeps a short sorted list: almost every logit fails the first comparison, so the pass runs at the
// speed of the sum. The sum is a running one over shares of 1024, added in double, relative to the row's
// maximum (a first pass, which the vectoriser handles).
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"

namespace braid {

void CpuOps::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits, const int32_t* token_of) {
  const int64_t k = values.cols;
  BRAID_CHECK(k > 0 && k <= kMostTopK && k <= logits.cols && ids.cols == k && ids.type == DType::i32);
  BRAID_CHECK(values.rows >= logits.rows && ids.rows >= logits.rows && log_sum.rows >= logits.rows);
  split(logits.rows, static_cast<double>(logits.cols), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float* row = logits.f32(t);
      float* best = values.f32(t);
      int32_t* id = static_cast<int32_t*>(ids.data) + t * ids.stride;
      int64_t held = 0;
      for (int64_t i = 0; i < logits.cols; ++i) {
        if (held == k && !(row[i] > best[k - 1])) continue;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && row[i] > best[at - 1]; --at) {
          best[at] = best[at - 1];
          id[at] = id[at - 1];
        }
        best[at] = row[i];
        id[at] = static_cast<int32_t>(i);
      }
      if (token_of != nullptr)
        for (int64_t j = 0; j < k; ++j) id[j] = token_of[id[j]];
      double sum = 0;
      constexpr int64_t kShare = 1024;
      for (int64_t i = 0; i < logits.cols; i += kShare) {
        float part = 0;
        const int64_t end = std::min(i + kShare, logits.cols);
        for (int64_t j = i; j < end; ++j) part += std::exp(row[j] - best[0]);
        sum += part;
      }
      *log_sum.f32(t) = static_cast<float>(best[0] + std::log(sum));
    }
  });
}

}  // namespace braid
