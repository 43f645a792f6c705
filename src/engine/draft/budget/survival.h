// survival.h -- how likely a draft is accepted, given that its parent was.
//
// A drafter's own probability is a hint that is more or less right, differently for each depth: what counts
// is sigmoid(w x logit(q) + b), with w and b fitted to the drafts that were judged (those whose parent was
// accepted). It begins with what the drafter says, w = 1 and b = 0; a depth where nothing was judged yet is
// like the one before.
#pragma once

#include <cstdint>

namespace braid {

class Survival {
 public:
  // depth: 0 for drafts that follow the last certain token.
  double probability(int32_t depth, float log_q) const;
  void judged(int32_t depth, float log_q, bool accepted);

 private:
  static constexpr int32_t kDepths = 16;  // deeper ones are like the last
  struct Fit {
    double w = 1, b = 0;
    double w_weight = 16, b_weight = 8;  // what is known of them, in judged drafts
  };
  Fit fits_[kDepths];
  int32_t known_ = 1;  // depths with a fit of their own
};

}  // namespace braid
