// row_scan.h -- passes over a whole row of logits: the largest, truncations, a draw.
//
// Tokens are ordered by logit, then by id. A truncation keeps a beginning of that order, described
// by its last token, a Cut, without sorting. Weights e^((logit - top) / temperature), computed in
// f32, are integers in units of 2^-40: sums do not depend on the order and fit 64 bits. AVX2,
// AVX-512 and NEON give the same bytes. NaN and minus infinity are never kept.
//
// Any thread. A RowScan allocates only for rows longer than before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace braid {

struct Cut {
  float value = std::numeric_limits<float>::lowest();
  int32_t id = std::numeric_limits<int32_t>::max();  // last kept id at `value`

  bool keeps(float logit, int32_t of) const {
    return logit > value || (logit == value && of <= id);
  }
};
inline Cut tighter(const Cut& a, const Cut& b) { return a.keeps(b.value, b.id) ? b : a; }

struct Scored {
  int32_t id = 0;
  float logit = 0;
};

struct RowScale;

// Ties go to the lowest index; -1 when all are NaN or minus infinity.
int32_t largest_of_row(std::span<const float> row);

// NaN if the row has only minus infinity or any NaN. `largest`: largest_of_row().
double log_sum_of_row(std::span<const float> row, int32_t largest);

// Largest weight / -log(uniform) (noise.h) of the kept tokens. `largest`: largest_of_row().
int32_t draw_of_row(std::span<const float> row, const Cut& cut, float temperature, int32_t largest,
                    uint64_t seed, int32_t position);

class RowScan {
 public:
  void reserve(int64_t vocabulary) { part_.reserve(static_cast<size_t>(vocabulary)); }

  // Keeps the best `count` tokens, or all.
  Cut best(std::span<const float> row, int32_t count);
  // The fewest best tokens of `within` that hold at least `share` (below 1) of its weight; at least
  // one. `top`: the row's largest logit, finite.
  Cut heaviest(std::span<const float> row, const Cut& within, float top, float temperature,
               double share);
  // The best `count` tokens in order, or all.
  void list_best(std::span<const float> row, int32_t count, std::vector<Scored>& out);

 private:
  struct Weighed {
    float logit;
    float weight;  // whole units
  };
  Cut fewest_that_hold(std::span<const float> row, const Cut& within, const RowScale& scale,
                       double share, uint64_t least);
  Cut cut_inside(std::span<const float> row, uint64_t wanted);

  std::vector<Weighed> part_;
};

}  // namespace braid
