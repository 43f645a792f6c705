// model_drafter.h -- drafts from the model's own head (MTP): chains, greedy, for all sequences that decode.
//
// Before a step the head runs a row for each of them: the token that the step will run, with the hidden row
// before it, then its own guesses. Ids stay on the device from row to row; the host waits once. What the head
// goes on from is part of the sequences' memory (model.h), so there is nothing here to keep or to bring back.
#pragma once

#include <set>
#include <vector>

#include "base/result.h"
#include "engine/draft/drafter_options.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Device& device, Model& model, SequenceCache& cache, Scheduler& scheduler)
      : device_(device), model_(model), cache_(cache), scheduler_(scheduler) {}
  // Errors: exhausted.
  Status allocate(const DrafterOptions& options);

  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  // Arrays of a row's batch, [sequences] each. Those of row j of a chain follow those of row j - 1.
  enum Array { position, cell, sequence, parent, first_row, rows, certain, context, slot, kArrays };
  // A sequence that is drafted for, and how many guesses it gets.
  struct Chain {
    StepItem* item;
    int32_t length;
  };
  void choose(StepPlan& plan, int32_t budget);
  void fill();
  int32_t* host(int32_t row, Array a) {
    return static_cast<int32_t*>(host_.data()) + (int64_t{row} * kArrays + a) * padded_;
  }
  Batch batch_of(int32_t row) const;
  void enqueue();
  Status run();
  void take_guesses();

  Device& device_;
  Model& model_;
  SequenceCache& cache_;
  Scheduler& scheduler_;
  DrafterOptions options_;
  std::vector<Chain> chains_;  // of this step, the longest first
  int32_t length_ = 0;         // of the longest
  int32_t padded_ = 0;         // rows of a batch: those of chains_, and padding
  // The arrays of all rows, then the first tokens, then block tables.
  Buffer host_, memory_;  // memory_ is empty where the device reads host memory
  // Of each row [padded]: guessed ids i32, their logits, and the log of the sum of exp.
  Buffer guesses_, guesses_on_host_;
  std::set<uint64_t> warmed_up_;  // shapes that have run once
};

}  // namespace braid
