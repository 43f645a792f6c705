// ref_moe.cpp -- routing and expert products: the reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/ref_math.h"
#include "ops/ref_ops.h"

namespace braid {

namespace {

constexpr double kLowest = std::numeric_limits<double>::lowest();

// The inner activation is f32, as between products.
void add_expert(std::vector<double>& sum, double factor, const Weight& gate, const Weight& up,
                const Weight& down, int64_t expert, const float* x) {
  BRAID_CHECK(gate.n == up.n && gate.k == up.k && down.k == gate.n && down.n == gate.k);
  std::vector<float> inner(static_cast<size_t>(gate.n));
  for (int64_t i = 0; i < gate.n; ++i) {
    inner[i] = static_cast<float>(ref::silu(ref::product(gate, expert, i, x)) *
                                  ref::product(up, expert, i, x));
  }
  for (int64_t i = 0; i < down.n; ++i)
    sum[i] += factor * ref::product(down, expert, i, inner.data());
}

}  // namespace

void RefOps::moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  BRAID_CHECK(logits.cols == params.experts && ids.cols == params.used &&
              weights.cols == params.used);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= logits.rows && weights.rows >= logits.rows);
  BRAID_CHECK(params.used > 0 && params.used <= params.experts);
  const bool sigmoid = params.score == RouteParams::Score::sigmoid;
  BRAID_CHECK(params.bias == nullptr || sigmoid);
  std::vector<double> order(static_cast<size_t>(params.experts));
  for (int64_t t = 0; t < logits.rows; ++t) {
    const float* logit = logits.f32(t);
    int32_t* chosen = static_cast<int32_t*>(ids.data) + t * ids.stride;
    float* weight = weights.f32(t);
    // Softmax keeps the order of the logits, so the choice can use them.
    for (int32_t e = 0; e < params.experts; ++e) {
      const double bias = params.bias != nullptr ? params.bias[e] : 0.0;
      const double value = sigmoid ? ref::sigmoid(logit[e]) + bias : double{logit[e]};
      order[e] = value > kLowest ? value : kLowest;  // NaN, too: an expert is chosen once
    }
    for (int32_t j = 0; j < params.used; ++j) {
      const auto best = std::max_element(order.begin(), order.end());
      chosen[j] = static_cast<int32_t>(best - order.begin());
      *best = -INFINITY;
    }
    const auto score = [&](int32_t e) {
      return sigmoid ? ref::sigmoid(logit[e]) : std::exp(double{logit[e]} - logit[chosen[0]]);
    };
    double sum = 0;
    for (int32_t j = 0; j < params.used; ++j) sum += score(chosen[j]);
    if (sigmoid) sum = std::max(sum, double{kLeastRouteSum});
    for (int32_t j = 0; j < params.used; ++j)
      weight[j] = static_cast<float>(params.scale * score(chosen[j]) / sum);
  }
}

void RefOps::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  BRAID_CHECK(y.cols == w.down->n && x.cols == w.gate->k && y.rows >= x.rows);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= x.rows && weights.rows >= x.rows &&
              ids.cols == weights.cols);
  std::vector<double> sum(static_cast<size_t>(y.cols));
  std::vector<int64_t> order(static_cast<size_t>(ids.cols));
  for (int64_t t = 0; t < x.rows; ++t) {
    const int32_t* expert = static_cast<const int32_t*>(ids.data) + t * ids.stride;
    const float* input = x.f32(t);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t j = 0; j < order.size(); ++j) order[j] = static_cast<int64_t>(j);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return expert[a] < expert[b]; });
    for (int64_t j : order) {
      const int64_t entry = w.entry_of(expert[j]);
      if (entry >= 0) add_expert(sum, weights.f32(t)[j], *w.gate, *w.up, *w.down, entry, input);
    }
    if (w.shared_gate != nullptr) {
      const double scale =
          w.shared_scale == nullptr ? 1.0 : ref::sigmoid(ref::dot(w.shared_scale, input, x.cols));
      add_expert(sum, scale, *w.shared_gate, *w.shared_up, *w.shared_down, 0, input);
    }
    float* output = y.f32(t);
    for (int64_t i = 0; i < y.cols; ++i) output[i] = static_cast<float>(output[i] + sum[i]);
  }
}

}  // namespace braid
