// ref_blocks.cpp -- ops of draft blocks: the reference.
#include <vector>

#include "ops/ref_ops.h"

namespace braid {

void RefOps::short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                        const Batch& batch) {
  BRAID_CHECK(conv.taps > 0 && conv.taps <= kMostConvTaps && conv.group > 0 &&
              x.cols % conv.group == 0);
  const int64_t groups = x.cols / conv.group;
  BRAID_CHECK(mix.cols == conv.taps * groups && y.cols == x.cols && tail != Tail::silu_mul);
  BRAID_CHECK(x.rows >= batch.tokens && y.rows >= batch.tokens && mix.rows >= batch.tokens);
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const int32_t before = t - batch.first_row[batch.sequence[t]];
    for (int64_t c = 0; c < x.cols; ++c) {
      double sum = 0;
      for (int32_t j = 0; j < conv.taps && j <= before; ++j) {
        const double factor =
            double{conv.base[j * x.cols + c]} + mix.f32(t)[j * groups + c / conv.group];
        sum += factor * x.f32(t - j)[c];
      }
      y.f32(t)[c] = static_cast<float>(tail == Tail::add ? y.f32(t)[c] + sum : sum);
    }
  }
}

void RefOps::pair_scores(Tensor scores, Tensor confidence, const PairInputs& in,
                         const PairWeights& w, const Batch& batch) {
  const int64_t count = in.values.cols;
  const int64_t rank = w.predecessor->k;
  BRAID_CHECK(w.predecessor->is_table && w.successor->is_table && w.successor->k == rank);
  BRAID_CHECK(count <= kMostPairCandidates && rank <= kMostPairRank &&
              scores.cols == count * count);
  BRAID_CHECK(!in.gate || in.gate.cols == rank);
  const auto row_of = [&](const Weight& table, int32_t row) {
    BRAID_CHECK(row >= 0 && row < table.n);
    std::vector<float> values(static_cast<size_t>(rank));
    decode_weight_row(table, 0, row, values.data());
    return values;
  };
  const auto ids = [&](int32_t i) {
    return static_cast<const int32_t*>(in.ids.data) + i * in.ids.stride;
  };
  for (int32_t i = 0; i < batch.outputs; ++i) {
    const int32_t sequence = batch.sequence[batch.output_row[i]];
    const bool first = i == 0 || batch.sequence[batch.output_row[i - 1]] != sequence;
    for (int64_t p = 0; p < (first ? 1 : count); ++p) {
      int32_t token = batch.token[batch.first_row[sequence]];
      if (!first) token = w.token_of == nullptr ? ids(i - 1)[p] : w.token_of[ids(i - 1)[p]];
      const std::vector<float> before = row_of(*w.predecessor, token);
      const auto product = [&](const float* with) {
        double sum = 0;
        for (int64_t r = 0; r < rank; ++r) sum += double{before[static_cast<size_t>(r)]} * with[r];
        return sum * w.scale;
      };
      for (int64_t c = 0; c < count; ++c) {
        std::vector<float> after = row_of(*w.successor, ids(i)[c]);
        if (in.gate)
          for (int64_t r = 0; r < rank; ++r) after[static_cast<size_t>(r)] *= in.gate.f32(i)[r];
        scores.f32(i)[p * count + c] =
            static_cast<float>(in.values.f32(i)[c] + product(after.data()));
      }
      if (w.confidence != nullptr)
        confidence.f32(i)[p] = static_cast<float>(in.confidence.f32(i)[0] + product(w.confidence));
    }
  }
}

}  // namespace braid
