// rope.h -- angles of rotary position embedding, with YaRN (Peng et al. 2023).
//
// Pair i (i < dims / 2) turns by position * rope_frequency(params, i). For longer contexts YaRN
// divides the frequency of slow pairs by `factor`: those above ceil(corr(beta_slow)). Pairs below
// floor(corr(beta_fast)) keep theirs, and pairs between are blended.
//   corr(beta) = dims * ln(original_context / (2 pi beta)) / (2 ln freq_base)
#pragma once

#include <cstdint>

namespace braid {

struct RopeParams {
  int32_t dims = 0;          // rotated dims of a head (n_rot); pairs are (i, i + dims / 2)
  double freq_base = 10000;  // without scaling, pair i has frequency freq_base^(-2 i / dims)
  double factor = 1;         // divides the frequencies of all pairs, or with YaRN of slow pairs
  // Positive: YaRN; the context length of the training.
  int32_t original_context = 0;
  double beta_fast = 32;  // turns within original_context above which a pair keeps its frequency
  double beta_slow = 1;   // and below which it is divided by `factor`
  double magnitude = 1;   // cosines and sines are multiplied by it

  bool operator==(const RopeParams&) const = default;
};

double rope_frequency(const RopeParams& rope, int32_t pair);

}  // namespace braid
