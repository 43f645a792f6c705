// step_plan.h -- the plan of a step for each of its sequences, and the verdicts.
//
// The scheduler plans, a drafter may add tokens, StepBatch numbers the rows, Judge decides.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_stats.h"
#include "engine/schedule/sequence.h"

namespace braid {

// `parent` is an index into the drafts of the same item, -1: follows the last certain token.
struct Draft {
  int32_t token = 0;
  int32_t parent = -1;
  float log_q = 0;  // log of the drafter's probability, given the parent
  DraftSource source = DraftSource::other;
};
using Drafts = boost::container::small_vector<Draft, 8>;

// Rounds up, so that few CUDA graphs and measurements suffice: from eight on four per octave.
inline int32_t row_bucket(int32_t count) {
  int32_t step = 1;
  while (step * 8 <= count) step *= 2;
  return (count + step - 1) / step * step;
}

// Runs `certain` tokens from a position on, then the drafts.
struct StepItem {
  Sequence* sequence = nullptr;
  int32_t first_position = 0;  // the sequence's computed_tokens when it was planned
  int32_t certain = 0;
  Drafts drafts;  // parents first; only if certain rows end the known tokens

  // Set by StepBatch.
  int32_t index = 0;         // of the sequence in the batch
  int32_t first_row = 0;     // in the batch
  int32_t first_output = 0;  // in the batch's outputs
  int32_t outputs = 0;       // scored rows, the last certain row (always), all drafts
  bool wants_next = false;   // the next token is to be decided
  // Set before drafting: longest chain, most drafts, and whether model drafters may run.
  int32_t draft_depth = 0;
  int32_t draft_count = 0;
  bool may_run_model = true;
  bool model_ran = false;  // set by drafters

  int32_t rows() const { return certain + static_cast<int32_t>(drafts.size()); }
  int32_t end_position() const { return first_position + certain; }  // without drafts
  int32_t last_output() const {
    return first_output + outputs - static_cast<int32_t>(drafts.size()) - 1;
  }
};

struct StepPlan {
  std::vector<StepItem> items;
  int32_t decoding = 0;       // sequences that advance by one token
  int32_t answering = 0;      // these, plus those that wait for masks
  int32_t prompt_tokens = 0;  // certain rows of the others
  bool awaits_masks = false;  // some sequence waits for its mask
  int32_t rows() const {
    int32_t sum = 0;
    for (const StepItem& item : items) sum += item.rows();
    return sum;
  }
};

struct Verdict {
  TokenEvents events;                                   // in order
  boost::container::small_vector<int32_t, 8> next;      // accepted drafts, then one new token
  boost::container::small_vector<int32_t, 8> accepted;  // indices of drafts, a path from the root
  bool failed = false;  // NaN: nothing of the step is kept; also finished
  bool finished = false;
  Finished end;
};

class Oracle;

// Adds uncertain tokens to a plan and learns from the verdicts.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // For drafts without a source of their own.
  virtual DraftSource source() const { return DraftSource::other; }
  // For benches (step/oracle.h); null: off.
  virtual void set_oracle(Oracle*) {}
  // Adds at most `budget` drafts in all, within each item's limits.
  virtual void propose(StepPlan& plan, int32_t budget) = 0;
  // Called after the sequences are updated; verdicts[i] belongs to plan.items[i].
  virtual void observe(const StepPlan& plan, std::span<const Verdict> verdicts) = 0;
};

}  // namespace braid
