// blocks.cpp -- ops of draft blocks: rows mixed inside a block, scores of candidate pairs.
// Successors are decoded and gated once as [r][candidate]; products add in ascending r.
#include <algorithm>

#include "ops/cpu/cpu_ops.h"

namespace braid {
namespace {

constexpr double kNsPerTap = 0.2;
constexpr double kNsPerProduct = 0.1;
constexpr int64_t kMost = kMostPairCandidates;

// The last column holds the weights of the confidence.
struct Successors {
  float rows[kMostPairRank][kMost + 1];
};

void read_row(const Weight& table, int32_t row, float* values) {
  BRAID_CHECK(row >= 0 && row < table.n);
  decode_weight_row(table, 0, row, values);
}

}  // namespace

void CpuOps::short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                        const Batch& batch) {
  BRAID_CHECK(conv.taps > 0 && conv.taps <= kMostConvTaps && conv.group > 0 &&
              x.cols % conv.group == 0);
  const int64_t groups = x.cols / conv.group;
  BRAID_CHECK(mix.cols == conv.taps * groups && y.cols == x.cols && tail != Tail::silu_mul);
  BRAID_CHECK(x.rows >= batch.tokens && y.rows >= batch.tokens && mix.rows >= batch.tokens);
  const auto row = [&](int32_t t) {
    const int32_t taps = std::min(conv.taps, t - batch.first_row[batch.sequence[t]] + 1);
    float* out = y.f32(t);
    if (tail == Tail::store) std::fill_n(out, x.cols, 0.0f);
    for (int32_t j = 0; j < taps; ++j) {
      const float* in = x.f32(t - j);
      const float* base = conv.base + j * x.cols;
      const float* own = mix.f32(t) + j * groups;
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t c = g * conv.group; c < (g + 1) * conv.group; ++c)
          out[c] += (base[c] + own[g]) * in[c];
    }
  };
  split(batch.tokens, kNsPerTap * static_cast<double>(x.cols * conv.taps),
        [&](int64_t begin, int64_t end) {
          for (auto t = static_cast<int32_t>(begin); t < end; ++t) row(t);
        });
}

void CpuOps::pair_scores(Tensor scores, Tensor confidence, const PairInputs& in,
                         const PairWeights& w, const Batch& batch) {
  const int64_t count = in.values.cols;
  const int64_t rank = w.predecessor->k;
  BRAID_CHECK(w.predecessor->is_table && w.successor->is_table && w.successor->k == rank);
  BRAID_CHECK(count <= kMost && rank <= kMostPairRank && scores.cols == count * count);
  BRAID_CHECK(!in.gate || in.gate.cols == rank);
  const auto ids = [&](int32_t i) {
    return static_cast<const int32_t*>(in.ids.data) + i * in.ids.stride;
  };
  const auto run = [&](int32_t i, Successors& after) {
    float row[kMostPairRank];
    for (int64_t c = 0; c < count; ++c) {
      read_row(*w.successor, ids(i)[c], row);
      for (int64_t r = 0; r < rank; ++r)
        after.rows[r][c] = row[r] * (in.gate ? in.gate.f32(i)[r] : 1.0f);
    }
    for (int64_t r = 0; r < rank; ++r)
      after.rows[r][kMost] = w.confidence != nullptr ? w.confidence[r] : 0.0f;
    const int32_t sequence = batch.sequence[batch.output_row[i]];
    const bool first = i == 0 || batch.sequence[batch.output_row[i - 1]] != sequence;
    for (int64_t p = 0; p < (first ? 1 : count); ++p) {
      int32_t token = batch.token[batch.first_row[sequence]];
      if (!first) token = w.token_of == nullptr ? ids(i - 1)[p] : w.token_of[ids(i - 1)[p]];
      read_row(*w.predecessor, token, row);
      float sums[kMost + 1] = {};
      for (int64_t r = 0; r < rank; ++r)
        for (int64_t c = 0; c <= kMost; ++c) sums[c] += row[r] * after.rows[r][c];
      float* out = scores.f32(i) + p * count;
      for (int64_t c = 0; c < count; ++c) out[c] = in.values.f32(i)[c] + w.scale * sums[c];
      if (w.confidence != nullptr)
        confidence.f32(i)[p] = in.confidence.f32(i)[0] + w.scale * sums[kMost];
    }
  };
  split(batch.outputs, kNsPerProduct * static_cast<double>(count * kMost * rank),
        [&](int64_t begin, int64_t end) {
          Successors after = {};
          for (auto i = static_cast<int32_t>(begin); i < end; ++i) run(i, after);
        });
}

}  // namespace braid
