// dflash_drafter.h -- drafts from a DFlash drafter (model/dflash/dflash.h), chains or trees. With
// DFlash2 and DSpark a token's probability depends on the preceding candidate.
//
// Before a step, each decoding sequence runs a draft block in the cells that the step will write:
// its newest token, then masks. One forward drafts for all sequences, and the host waits once. The
// past that the blocks read belongs to the sequences, so no state is kept here.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft/drafter_options.h"
#include "engine/draft/lattice_reader.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/batch_arrays.h"
#include "engine/schedule/records.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "model/dflash/dflash.h"
#include "ops/device.h"

namespace braid {

class DflashDrafter : public Drafter {
 public:
  // Sequences whose blocks run together; more take several rounds.
  static constexpr int32_t kMostTogether = 16;
  DflashDrafter(Device& device, Dflash& dflash, SequenceCache& cache, Scheduler& scheduler,
                Records& records)
      : device_(device), dflash_(dflash), cache_(cache), scheduler_(scheduler), records_(records) {}
  static int32_t most_rows(const Dflash& dflash, int32_t sequences) {
    return std::min(sequences, kMostTogether) * dflash.config().block;
  }
  // Device memory of its arrays, without logits.
  static size_t bytes(const Dflash& dflash, const DrafterOptions& options);
  Status allocate(const DrafterOptions& options);

  DraftSource source() const override { return DraftSource::dflash; }
  void set_oracle(Oracle* oracle) override { reader_.set_oracle(oracle); }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  struct Block {
    StepItem* item;
    int32_t depth;
    int32_t most;
  };
  void choose(StepPlan& plan, int32_t budget);
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
  int32_t guesses_ = 0;        // rows of a block whose logits may be needed
  int32_t wanted_ = 0;         // rows of a block whose logits this round needs
  std::vector<Block> blocks_;  // of this step
  int32_t padded_ = 0;         // sequences of the batch, with padding
  BatchArrays arrays_;
  Batch batch_;                       // of the round
  Buffer numbers_, numbers_on_host_;  // of all guesses of a round
  int32_t width_ = 0;                 // candidates of a guess
  std::vector<int32_t> tokens_;       // of one guess
  LatticeReader reader_;
};

}  // namespace braid
