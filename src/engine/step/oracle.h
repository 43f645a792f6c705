// oracle.h -- who says in place of the model what is accepted, so that a bench of weights that were never
// trained can ask what speculation gives at a known acceptance. Everything else of a step is as always:
// drafters run, drafts are verified, and the sampler draws.
#pragma once

#include <cstdint>
#include <span>

#include "engine/schedule/step_plan.h"

namespace braid {

class Oracle {
 public:
  virtual ~Oracle() = default;
  // Sets how sure a drafter is of its candidates for the token `depth` behind the sequence's next one, the
  // likeliest first: logs of probabilities. Drafters whose candidates make a lattice ask.
  virtual void rate(const Sequence& sequence, int32_t depth, std::span<float> log_q) = 0;
  // The token behind draft `node` of the item (-1: behind its last certain token), for which the sampler has
  // drawn `drawn`.
  virtual int32_t next(const StepItem& item, int32_t node, int32_t drawn) = 0;
};

}  // namespace braid
