// dflash_drafter.h -- drafts from a DFlash drafter (model/dflash/dflash.h), chains or trees. Of DFlash2 and
// DSpark a token's probability is that behind the one before it.
//
// Before a step, each sequence that decodes has a draft block run: the token that the step will run, then
// masks, in the cells that the step will write. One forward gives all drafts of all of them; the host waits
// once. What the blocks see of the past is memory of the sequences, so there is nothing here to keep or to
// bring back.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft/drafter_options.h"
#include "engine/draft/lattice/lattice_reader.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/batch_arrays.h"
#include "engine/step/records.h"
#include "model/dflash/dflash.h"
#include "ops/device.h"

namespace braid {

class DflashDrafter : public Drafter {
 public:
  // Sequences whose blocks run together; more run one round after the other.
  static constexpr int32_t kMostTogether = 16;
  DflashDrafter(Device& device, Dflash& dflash, SequenceCache& cache, Scheduler& scheduler, Records& records)
      : device_(device), dflash_(dflash), cache_(cache), scheduler_(scheduler), records_(records) {}
  // Rows of the blocks that run together, where so many sequences run at a time.
  static int32_t most_rows(const Dflash& dflash, int32_t sequences) {
    return std::min(sequences, kMostTogether) * dflash.config().block;
  }
  // Of its arrays on the device; logits are not looked at.
  static size_t bytes(const Dflash& dflash, const DrafterOptions& options);
  // Errors: exhausted.
  Status allocate(const DrafterOptions& options);

  DraftSource source() const override { return DraftSource::dflash; }
  void set_oracle(Oracle* oracle) override { reader_.set_oracle(oracle); }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  // A sequence that is drafted for: how deep, and with how many drafts.
  struct Block {
    StepItem* item;
    int32_t depth;
    int32_t most;
  };
  void choose(StepPlan& plan, int32_t budget);
  // A round: blocks `round` of blocks_.
  bool run(std::span<const Block> round);
  void fill(std::span<const Block> round);
  void enqueue();
  void take(std::span<const Block> round);
  void take(const Block& block, int64_t first);
  static BatchArrays::Sizes most(const Dflash& dflash, const DrafterOptions& options);
  static int64_t numbers(const Dflash& dflash, int32_t width, int64_t guesses);
  int64_t numbers(int64_t guesses) const { return numbers(dflash_, width_, guesses); }
  Dflash::Guesses guesses_at(void* numbers, int64_t guesses) const;

  Device& device_;
  Dflash& dflash_;
  SequenceCache& cache_;
  Scheduler& scheduler_;
  Records& records_;
  DrafterOptions options_;
  int32_t block_ = 0;          // rows of a block
  int32_t guesses_ = 0;        // rows of it whose logits may be wanted
  int32_t wanted_ = 0;         // rows of it whose logits this round wants
  std::vector<Block> blocks_;  // of this step
  int32_t padded_ = 0;         // sequences of the batch: those of the round, and padding
  BatchArrays arrays_;
  Batch batch_;                       // of the round
  Buffer numbers_, numbers_on_host_;  // of all guesses of a round
  int32_t width_ = 0;                 // candidates of a guess
  std::vector<int32_t> tokens_;       // of one guess
  LatticeReader reader_;
};

}  // namespace braid
