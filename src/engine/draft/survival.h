// survival.h -- the probability that a draft is accepted, given that its parent was.
//
// It is sigmoid(w * logit(q) + b), with q the drafter's own probability. w and b are fitted per
// depth to drafts with an accepted parent, from w = 1, b = 0. A depth without data uses the one
// before.
#pragma once

#include <cstdint>

namespace braid {

class Survival {
 public:
  // depth: 0 for drafts that follow the last certain token.
  double probability(int32_t depth, float log_q) const;
  void judged(int32_t depth, float log_q, bool accepted);

 private:
  static constexpr int32_t kDepths = 16;  // deeper ones use the last
  struct Fit {
    double w = 1, b = 0;
    double w_weight = 16, b_weight = 8;  // confidence, in judged drafts
  };
  Fit fits_[kDepths];
  int32_t known_ = 1;  // depths with their own fit
};

}  // namespace braid
