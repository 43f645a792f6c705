// model_drafter.h -- drafts from the model's own head (MTP), chains or trees, for all decoding
// sequences.
//
// Before a step the head runs the step's token with the preceding hidden row, then its own guesses.
// For greedy answers ids stay on the device, and the host waits once. For sampled ones the host
// picks each guess by the answer's noise and waits after each row. In a tree the other candidates
// become siblings. The head's output matrix takes most of the time, so only recently seen tokens
// are guessed (draft_vocabulary.h). The head's inputs belong to the sequences (model.h).
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_vocabulary.h"
#include "engine/draft/drafter_options.h"
#include "engine/draft/lattice_reader.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/batch_arrays.h"
#include "engine/schedule/records.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Device& device, Model& model, SequenceCache& cache, Scheduler& scheduler,
               Records& records)
      : device_(device), model_(model), cache_(cache), scheduler_(scheduler), records_(records) {}
  // Device memory of its arrays, without logits.
  static size_t bytes(const DrafterOptions& options);
  Status allocate(const DrafterOptions& options);

  DraftSource source() const override { return DraftSource::mtp; }
  void set_oracle(Oracle* oracle) override { reader_.set_oracle(oracle); }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  struct Chain {
    StepItem* item;
    int32_t depth;
    int32_t most;
  };
  // How guesses become the next row's tokens.
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

  // Per sequence: the best (id i32, logit, log of the sum of exp), then `width` candidates.
  static int64_t row_numbers(int32_t padded, int32_t width) {
    return padded * (3 + 2 * int64_t{width});
  }
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
  int32_t waited_rounds_ = 0;                  // since changes were last sent
  int32_t width_ = 0;                          // candidates of a guess; 0: only the best
  std::vector<Chain> chains_;                  // the deepest first
  int32_t depth_ = 0;                          // of the deepest
  int32_t padded_ = 0;                         // rows of a batch, with padding
  BatchArrays arrays_;
  std::vector<Batch> batches_;  // one per row of the chains
  Buffer guesses_, guesses_on_host_;
  LatticeReader reader_;
};

}  // namespace braid
