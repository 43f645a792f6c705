// oracle.h -- decides acceptance in place of the model, for benches of untrained weights.
//
// Drafters, verification and sampling run as usual.
#pragma once

#include <cstdint>
#include <span>

#include "engine/schedule/step_plan.h"

namespace braid {

class Oracle {
 public:
  virtual ~Oracle() = default;
  // Replaces a drafter's log probabilities for the token `depth` after the next one, best first.
  // Only drafters with a lattice call it.
  virtual void rate(const Sequence& sequence, int32_t depth, std::span<float> log_q) = 0;
  // Replaces the token `drawn` after draft `node` (-1: after the last certain token).
  virtual int32_t next(const StepItem& item, int32_t node, int32_t drawn) = 0;
};

}  // namespace braid
