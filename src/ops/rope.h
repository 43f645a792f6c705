// rope.h -- by which angles rotary position embedding turns the pairs of a head, with YaRN.
//
// Pair i (of i < dims / 2) turns by position * rope_frequency(params, i). YaRN (Peng et al. 2023) stretches
// slow pairs to a longer context: with `corr(beta) = dims * ln(original_context / (2 pi beta)) / (2 ln
// freq_base)`, pairs below floor(corr(beta_fast)) keep their frequency, pairs above ceil(corr(beta_slow))
// have it divided by `factor`, those between are blended.
#pragma once

#include <cstdint>

namespace braid {

struct RopeParams {
  int32_t dims = 0;          // rotated dims of a head (n_rot); pairs are (i, i + dims / 2)
  double freq_base = 10000;  // without scaling, pair i has frequency freq_base^(-2 i / dims)
  double factor = 1;         // frequencies are divided by it: all, or with YaRN those of slow pairs
  // YaRN if positive: the context that the frequencies were trained for.
  int32_t original_context = 0;
  double beta_fast = 32;  // turns within original_context above which a pair keeps its frequency
  double beta_slow = 1;   // and below which it is divided by `factor`
  double magnitude = 1;   // cosines and sines are multiplied by it

  bool operator==(const RopeParams&) const = default;
};

double rope_frequency(const RopeParams& rope, int32_t pair);

}  // namespace braid
