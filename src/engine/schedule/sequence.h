// sequence.h -- one running generation: its tokens, its memory, and how far it is; and what one step does
// with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/prefix/block_pool.h"
#include "engine/prefix/prefix_hash.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"

namespace braid {

using Clock = std::chrono::steady_clock;

// Always true between steps, for a running sequence:
//   held < tokens.size(): there is something to run;  held == tokens.size() - 1 while it decodes
//   positions [0, held) are in the KV cells and in the state slot;  blocks.size() == blocks_for(held)
//   under_way == 0, or some layers of the slot are ahead of `held` and nobody may copy it
//   hashes has one entry per full block of `tokens`; the first `published` blocks of the table are full
// A sequence that waits holds no blocks and no slot; one that was preempted keeps its tokens, its sampler and
// perhaps copies of its memory on the host.
struct Sequence {
  RequestId id = 0;
  Request request;
  Sink* sink = nullptr;
  uint64_t order = 0;  // of arrival

  std::vector<int32_t> tokens;  // prompt, then what was generated
  int32_t held = 0;             // tokens whose K, V and state change are in memory
  // Rows from `held` on that are being run in pieces, so that some layers have had them, or whose numbers
  // turned out to be none: cells and state of them are nobody's.
  int32_t under_way = 0;
  BlockTable blocks;
  int32_t slot = -1;
  Sampler sampler;
  bool cancelled = false;

  // Prefix cache.
  PrefixHash seed;                       // of the empty prefix, for this model and salt
  std::vector<PrefixHash> hashes;        // [full blocks of tokens]
  int32_t published = 0;                 // blocks of the table that are offered to others already
  std::vector<ResumePoint> checkpoints;  // where the state is to be kept, ascending, beyond held
  int32_t cached = 0;                    // prompt tokens that were found when it first entered
  bool announced = false;                // its sink knows that it has started
  bool was_held_back = false;            // it has waited for another's prefix
  RequestId waits_for = 0;               // it waits for this one's prompt to reach `waits_until`
  int32_t waits_until = 0;
  uint64_t waits_for_load = 0;  // it waits for this load from the disk; 0: for none
  int32_t disk_tries = 0;       // loads of its prefix that were begun
  int32_t scored = 0;           // prompt positions whose logits have been reported

  // While preempted.
  int32_t resume_checkpoint = -1;  // pinned, at `swapped_held`
  int32_t swapped_held = 0;
  std::vector<int32_t> swapped;  // host images of its full blocks; empty: to be found or computed again

  Clock::time_point submitted;
  Clock::time_point started;
  Clock::time_point first_token;
  Clock::time_point last_token;

  int32_t prompt_tokens() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t generated() const { return static_cast<int32_t>(tokens.size()) - prompt_tokens(); }
  int32_t pending() const { return static_cast<int32_t>(tokens.size()) - held; }
  bool decoding() const { return generated() > 0 && pending() == 1; }
  const PrefixHash& prefix(int32_t blocks_before) const {
    return blocks_before == 0 ? seed : hashes[static_cast<size_t>(blocks_before) - 1];
  }
  // One more entry of hashes per block that is full by now.
  void extend_hashes() {
    while ((hashes.size() + 1) * kBlockTokens <= tokens.size())
      hashes.push_back(chain_hash(prefix(static_cast<int32_t>(hashes.size())),
                                  tokens.data() + hashes.size() * kBlockTokens));
  }
};

// A drafted token. `parent` is an index into the drafts of the same item, -1: follows the last certain token.
struct Draft {
  int32_t token = 0;
  int32_t parent = -1;
};

// What one step does for one sequence: run `certain` tokens from `held` on, then the drafts.
struct PlanItem {
  Sequence* sequence = nullptr;
  int32_t certain = 0;
  std::vector<Draft> drafts;  // parents before children; only when the certain rows end the known tokens

  // Filled by StepBatch.
  int32_t first_row = 0;     // in the batch
  int32_t first_output = 0;  // in the batch's outputs
  int32_t outputs = 0;       // scored rows, the last of the certain rows (always), then all drafts
  bool wants_next = false;   // the last certain row and the drafts decide what comes next

  int32_t rows() const { return certain + static_cast<int32_t>(drafts.size()); }
  // That of the last certain row.
  int32_t last_output() const { return first_output + outputs - static_cast<int32_t>(drafts.size()) - 1; }
};

struct Plan {
  std::vector<PlanItem> items;
  int32_t decoding = 0;       // sequences that take one token further
  int32_t prompt_tokens = 0;  // certain rows of the others
  int32_t rows() const {
    int32_t sum = 0;
    for (const PlanItem& item : items) sum += item.rows();
    return sum;
  }
};

// What survived of an item and what comes next.
struct Verdict {
  std::vector<TokenEvent> events;  // to report, in order
  std::vector<int32_t> next;       // new tokens of the sequence: accepted drafts, then one of its own
  std::vector<int32_t> accepted;   // indices into drafts, a path from the root
  bool failed = false;             // its numbers are none: nothing of the step is kept; finished as well
  bool finished = false;
  Finished end;
};

// Adds uncertain tokens to a plan; hears what became of them. The engine without speculation has none.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // May add drafts to items whose `wants_next` is set, at most `budget` in all.
  virtual void propose(Plan& plan, int32_t budget) = 0;
  // Called after the sequences have been brought up to date; verdicts[i] belongs to plan.items[i].
  virtual void observe(const Plan& plan, std::span<const Verdict> verdicts) = 0;
};

}  // namespace braid
