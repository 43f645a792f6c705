// step_plan.h -- what one step does for each of its sequences, and what comes of it.
//
// The scheduler makes the plan, a drafter may add uncertain tokens, StepBatch numbers its rows, and Judge
// gives a verdict on each item. A step has hundreds of them: lists of a few elements are inside, and cost no
// allocation.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/draft_stats.h"
#include "engine/schedule/sequence.h"

namespace braid {

// A drafted token. `parent` is an index into the drafts of the same item, -1: follows the last certain token.
struct Draft {
  int32_t token = 0;
  int32_t parent = -1;
  float log_q = 0;  // log of the probability that the drafter gives it behind its parent
  DraftSource source = DraftSource::other;
};
using Drafts = boost::container::small_vector<Draft, 8>;

// Sequences or rows of a decoding step, rounded up so that few records and measurements serve all: from
// eight on four to an octave.
inline int32_t row_bucket(int32_t count) {
  int32_t step = 1;
  while (step * 8 <= count) step *= 2;
  return (count + step - 1) / step * step;
}

// What one step does for one sequence: run `certain` tokens from `computed_tokens` on, then the drafts.
struct StepItem {
  Sequence* sequence = nullptr;
  int32_t certain = 0;
  Drafts drafts;  // parents before children; only when the certain rows end the known tokens

  // Filled by StepBatch.
  int32_t first_row = 0;     // in the batch
  int32_t first_output = 0;  // in the batch's outputs
  int32_t outputs = 0;       // scored rows, the last of the certain rows (always), then all drafts
  bool wants_next = false;   // the last certain row and the drafts decide what comes next
  // Set before drafting: drafts that it may have one behind the other, and in all, and whether drafters that run a
  // model may be asked for them.
  int32_t draft_depth = 0;
  int32_t draft_count = 0;
  bool may_run_model = true;
  bool model_ran = false;  // set by drafters: one was run for it

  int32_t rows() const { return certain + static_cast<int32_t>(drafts.size()); }
  // That of the last certain row.
  int32_t last_output() const { return first_output + outputs - static_cast<int32_t>(drafts.size()) - 1; }
};

struct StepPlan {
  std::vector<StepItem> items;
  int32_t decoding = 0;       // sequences that take one token further
  int32_t answering = 0;      // these, and those whose masks are not ready
  int32_t prompt_tokens = 0;  // certain rows of the others
  bool awaits_masks = false;  // somebody has no part because its mask is not ready
  int32_t rows() const {
    int32_t sum = 0;
    for (const StepItem& item : items) sum += item.rows();
    return sum;
  }
};

// What survived of an item and what comes next.
struct Verdict {
  TokenEvents events;                                   // to report, in order
  boost::container::small_vector<int32_t, 8> next;      // new tokens: accepted drafts, then one of its own
  boost::container::small_vector<int32_t, 8> accepted;  // indices into drafts, a path from the root
  bool failed = false;  // its numbers are none: nothing of the step is kept; finished as well
  bool finished = false;
  Finished end;
};

class Oracle;

// Adds uncertain tokens to a plan; hears what became of them. The engine without speculation has none.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Of its drafts that do not say so themselves.
  virtual DraftSource source() const { return DraftSource::other; }
  // Benches: is asked how sure drafts are (step/oracle.h); null: nobody.
  virtual void set_oracle(Oracle*) {}
  // May add drafts to items, as each of them allows, at most `budget` in all.
  virtual void propose(StepPlan& plan, int32_t budget) = 0;
  // Called after the sequences have been brought up to date; verdicts[i] belongs to plan.items[i].
  virtual void observe(const StepPlan& plan, std::span<const Verdict> verdicts) = 0;
};

}  // namespace braid
