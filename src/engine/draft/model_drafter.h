// model_drafter.h -- drafts from the model's own head (MTP), chains or trees, for all sequences that decode.
//
// Before a step the head runs a row for each of them: the token that the step will run, with the hidden row
// before it, then its own guesses. For greedy answers ids stay on the device from row to row, and the host
// waits once. For drawn ones the head goes on from the guess that the answer's noise prefers, which the host
// finds: it waits after each row. In a tree the other candidates of a row stand beside the one that the head
// went on from.
//
// The head's output matrix is most of its time. Of a large vocabulary only the rows of tokens that the texts
// had last are multiplied (draft_vocabulary.h), and no other token is a guess.
//
// What the head goes on from is part of the sequences' memory (model.h), so there is nothing
// here to keep or to bring back.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_vocabulary.h"
#include "engine/draft/drafter_options.h"
#include "engine/draft/lattice/lattice_reader.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/batch_arrays.h"
#include "engine/step/records.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Device& device, Model& model, SequenceCache& cache, Scheduler& scheduler, Records& records)
      : device_(device), model_(model), cache_(cache), scheduler_(scheduler), records_(records) {}
  // Of its arrays on the device; logits are not looked at.
  static size_t bytes(const DrafterOptions& options);
  // Errors: exhausted.
  Status allocate(const DrafterOptions& options);

  DraftSource source() const override { return DraftSource::mtp; }
  void set_oracle(Oracle* oracle) override { reader_.set_oracle(oracle); }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  // A sequence that is drafted for: how deep, and with how many drafts.
  struct Chain {
    StepItem* item;
    int32_t depth;
    int32_t most;
  };
  // How rows of guesses become the next rows' tokens.
  enum class Mode : uint8_t { chains, trees, drawn };

  void choose(StepPlan& plan, int32_t budget);
  void follow_texts();
  void fill();
  bool run();
  bool run_recorded(uint64_t shape, int32_t first, int32_t end);
  void enqueue(int32_t first, int32_t end);
  void enqueue_row(int32_t row);
  void choose_tokens(int32_t row);
  void take_guesses();
  void set_row(size_t chain, int32_t row);

  // Numbers of a row of guesses: the best of each sequence (id i32, logit, log of the sum of exp), then its
  // candidates, where more than the best are asked for.
  static int64_t row_numbers(int32_t padded, int32_t width) { return padded * (3 + 2 * int64_t{width}); }
  int64_t row_numbers() const { return row_numbers(padded_, width_); }
  float* numbers(int32_t row) { return static_cast<float*>(guesses_.data()) + row * row_numbers(); }

  Device& device_;
  Model& model_;
  SequenceCache& cache_;
  Scheduler& scheduler_;
  Records& records_;
  DrafterOptions options_;
  Mode mode_ = Mode::chains;                   // of this step
  Tensor logits_;                              // of guesses
  std::optional<DraftVocabulary> vocabulary_;  // none: all tokens
  int32_t waited_rounds_ = 0;                  // since its changes were sent last
  int32_t width_ = 0;                          // candidates of a guess; 0: its best alone
  std::vector<Chain> chains_;                  // the deepest first
  int32_t depth_ = 0;                          // of the deepest
  int32_t padded_ = 0;                         // rows of a batch: those of chains_, and padding
  BatchArrays arrays_;
  std::vector<Batch> batches_;  // one for each row of the chains
  Buffer guesses_, guesses_on_host_;
  LatticeReader reader_;
};

}  // namespace braid
