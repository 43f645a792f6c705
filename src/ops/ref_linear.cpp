// ref_linear.cpp -- products with weights and row look-ups: the reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/ref_math.h"
#include "ops/ref_ops.h"

namespace braid {

void RefOps::embed(Tensor y, const Weight& table, const Batch& batch) {
  BRAID_CHECK(table.is_table && y.cols == table.k && y.rows >= batch.tokens);
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const int32_t token = batch.token[t];
    BRAID_CHECK(token >= 0 && token < table.n);
    decode_weight_row(table, 0, token, y.f32(t));
  }
}

void RefOps::linear(std::span<const LinearPart> parts, Tensor x) {
  for (const LinearPart& part : parts) {
    const Weight& w = *part.w;
    BRAID_CHECK(w.device_data != nullptr && w.experts == 1);
    BRAID_CHECK(w.k == x.cols && part.y.cols == w.n && part.y.rows >= x.rows);
    BRAID_CHECK((part.tail == Tail::silu_mul) == (part.up != nullptr));
    if (part.up != nullptr) BRAID_CHECK(part.up->n == w.n && part.up->k == w.k);
    for (int64_t row = 0; row < w.n; ++row) {
      for (int64_t t = 0; t < x.rows; ++t) {
        const double p = ref::product(w, 0, row, x.f32(t));
        float& y = part.y.f32(t)[row];
        switch (part.tail) {
          case Tail::store:
            y = static_cast<float>(p);
            break;
          case Tail::add:
            y = static_cast<float>(y + p);
            break;
          case Tail::silu_mul:
            y = static_cast<float>(ref::silu(p) * ref::product(*part.up, 0, row, x.f32(t)));
            break;
        }
      }
    }
  }
}

void RefOps::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  BRAID_CHECK(y.cols == x.cols && y.rows >= count);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t row = rows == nullptr ? i : rows[i];
    BRAID_CHECK(row >= 0 && row < x.rows);
    std::memcpy(y.f32(i), x.f32(row), static_cast<size_t>(x.cols) * sizeof(float));
  }
}

void RefOps::logits(Tensor logits, const Weight& w, Tensor x) {
  const LinearPart part{&w, nullptr, logits, Tail::store};
  linear({&part, 1}, x);
}

void RefOps::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                   const int32_t* token_of) {
  const int64_t k = values.cols;
  BRAID_CHECK(k > 0 && k <= kMostTopK && k <= logits.cols && ids.cols == k &&
              ids.type == DType::i32);
  BRAID_CHECK(values.rows >= logits.rows && ids.rows >= logits.rows && log_sum.rows >= logits.rows);
  std::vector<int32_t> order(static_cast<size_t>(logits.cols));
  for (int64_t t = 0; t < logits.rows; ++t) {
    const float* row = logits.f32(t);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t j = 0; j < k; ++j) {
      values.f32(t)[j] = row[order[j]];
      (static_cast<int32_t*>(ids.data) + t * ids.stride)[j] =
          token_of == nullptr ? order[j] : token_of[order[j]];
    }
    double sum = 0;
    for (int64_t i = 0; i < logits.cols; ++i) sum += std::exp(double{row[i]} - row[order[0]]);
    *log_sum.f32(t) = static_cast<float>(row[order[0]] + std::log(sum));
  }
}

}  // namespace braid
