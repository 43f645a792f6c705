// row_scan.h -- passes over one whole row of logits: its largest, what truncations leave of it, a draw.
//
// Tokens are ordered: the larger logit first, equal ones by id. Every truncation keeps a beginning of that
// order, so it is told by the last token that it keeps, a Cut, and nothing is sorted.
//
// Weights are integers: e^((logit - top) / temperature) in f32, in units of 2^-40, so sums do not depend on
// the order of the tokens, and a vocabulary's fits 64 bits. What is below half a unit weighs nothing. Bytes are the same on
// AVX2, AVX-512 and NEON. Logits that are no numbers, or minus infinity, are never kept.
//
// Any thread; nothing is shared. Memory is allocated only where a RowScan has not seen so long a row before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace braid {

struct Cut {
  float value = std::numeric_limits<float>::lowest();
  int32_t id = std::numeric_limits<int32_t>::max();  // the last kept of those that are equal to `value`

  bool keeps(float logit, int32_t of) const { return logit > value || (logit == value && of <= id); }
};
// The one that keeps less.
inline Cut tighter(const Cut& a, const Cut& b) { return a.keeps(b.value, b.id) ? b : a; }

struct Scored {
  int32_t id = 0;
  float logit = 0;
};

struct RowScale;

// Index of the largest number; ties to the lowest; -1 when there is none above minus infinity.
int32_t largest_of_row(std::span<const float> row);

// log of the sum of exp over the row; no number where the row has none, or one that is none. `largest`:
// largest_of_row().
double log_sum_of_row(std::span<const float> row, int32_t largest);

// Chosen by noise (noise.h) as Sampler says: the largest weight / -log(uniform) of those that `cut` keeps.
// `largest`: largest_of_row(), which every cut keeps.
int32_t draw_of_row(std::span<const float> row, const Cut& cut, float temperature, int32_t largest,
                    uint64_t seed, int32_t position);

class RowScan {
 public:
  void reserve(int64_t vocabulary) { part_.reserve(static_cast<size_t>(vocabulary)); }

  // Of the best `count` tokens. All of the row where it has not so many.
  Cut best(std::span<const float> row, int32_t count);
  // Of the fewest best tokens among those that `within` keeps that hold at least `share` (below 1) of their
  // weight; at least one. `top`: the row's largest logit, finite.
  Cut heaviest(std::span<const float> row, const Cut& within, float top, float temperature, double share);
  // The best `count` tokens in order, or as many as there are.
  void list_best(std::span<const float> row, int32_t count, std::vector<Scored>& out);

 private:
  struct Weighed {
    float logit;
    float weight;  // whole units
  };
  Cut fewest_that_hold(std::span<const float> row, const Cut& within, const RowScale& scale, double share,
                       uint64_t least);
  Cut cut_inside(std::span<const float> row, uint64_t wanted);

  std::vector<Weighed> part_;
};

}  // namespace braid
