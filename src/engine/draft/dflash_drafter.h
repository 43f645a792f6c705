// dflash_drafter.h -- drafts from a DFlash drafter (model/dflash/dflash.h): chains of the likeliest tokens,
// or, where answers are drawn, of those that the answer's noise makes the likeliest.
//
// Before a step, each sequence that decodes has a draft block run: the token that the step will run, then
// masks, in the cells that the step will write. One forward gives all drafts of all of them; the host waits
// once. What the blocks see of the past is memory of the sequences, so there is nothing here to keep or to
// bring back.
#pragma once

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft/drafter_options.h"
#include "engine/draft/lattice.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "model/dflash/dflash.h"
#include "ops/device.h"

namespace braid {

class DflashDrafter : public Drafter {
 public:
  // Sequences whose blocks run together; more run one round after the other.
  static constexpr int32_t kMostTogether = 16;
  DflashDrafter(Device& device, Dflash& dflash, SequenceCache& cache, Scheduler& scheduler)
      : device_(device), dflash_(dflash), cache_(cache), scheduler_(scheduler) {}
  // Rows of the blocks that run together, where so many sequences run at a time.
  static int32_t most_rows(const Dflash& dflash, int32_t sequences) {
    return std::min(sequences, kMostTogether) * dflash.config().block;
  }
  // Errors: exhausted.
  Status allocate(const DrafterOptions& options);

  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  // A sequence that is drafted for, and how many drafts it gets.
  struct Chain {
    StepItem* item;
    int32_t length;
  };
  // Arrays of a batch: of its rows, then of its sequences.
  enum Array {
    token,
    position,
    last_position,
    cell,
    sequence,
    parent,
    output_row,
    first_row,
    rows,
    context,
    slot,
    table,
    kArrays
  };
  void choose(StepPlan& plan, int32_t budget);
  // A round: chains `round` of chains_.
  bool run(std::span<const Chain> round);
  void fill(std::span<const Chain> round);
  Batch batch() const;
  void enqueue();
  void take(std::span<const Chain> round);
  void take_chain(const Chain& chain, int64_t first);
  int64_t numbers(int64_t guesses) const { return guesses * (2 * int64_t{width_} + 1); }
  int32_t* host(Array a) { return static_cast<int32_t*>(host_.data()) + offset_[a]; }
  const int32_t* on_device(Array a) const;

  Device& device_;
  Dflash& dflash_;
  SequenceCache& cache_;
  Scheduler& scheduler_;
  DrafterOptions options_;
  int32_t block_ = 0;          // rows of a block
  int32_t guesses_ = 0;        // rows of it whose logits are wanted: those behind the first
  std::vector<Chain> chains_;  // of this step
  int32_t padded_ = 0;         // sequences of the batch: those of the round, and padding
  int64_t offset_[kArrays + 1] = {};
  Buffer host_, memory_;  // the arrays; memory_ is empty where the device reads host memory
  // Of all guesses of a round: the ids of their candidates [guesses, width_] i32, their logits, and the log
  // of the sum of exp [guesses].
  Buffer numbers_, numbers_on_host_;
  int32_t width_ = 0;  // candidates of a guess
  Lattice lattice_;
  std::set<int32_t> warmed_up_;  // sizes that have run once
};

}  // namespace braid
