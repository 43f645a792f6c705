// step_outputs.h -- logits of a step's output rows, and the best of each row.
//
// Logits are computed on demand, at most most_rows() rows at a time. A device with its own memory
// sends the best of every row, and whole rows if these do not decide. In host memory, rows of long
// drafts are computed a few at a time: those after the first rejected one are not read.
//
// Several steps may run; each has a slot (StepSizes). begin() and select() choose the one that the
// other functions mean. The slots share the memory of logits, so rows of one may have to be
// computed again after another has begun. Engine thread only; only allocate() allocates.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "engine/schedule/step_plan.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class StepOutputs {
 public:
  // All decoding rows if they fit some hundred megabytes (at least one per sequence), and others up
  // to a few megabytes.
  static int32_t rows_for(int32_t sequences, int32_t decoding_rows, int32_t max_rows,
                          int64_t vocabulary);

  static uint64_t bytes(int32_t rows, int64_t vocabulary);
  // `best_rows`: of the largest step with best logits. Errors: exhausted.
  Status allocate(Device& device, Model& model, int32_t rows, int32_t best_rows, int32_t slots);

  int32_t most_rows() const { return static_cast<int32_t>(logits_.rows); }
  // Free for other uses while no step runs.
  Tensor memory() const { return logits_; }

  // Without requested logits, rows that are only judged need no product with the output matrix.
  void begin(const StepPlan& plan, int32_t outputs, int32_t slot);
  bool finds_best() const { return now().best_rows > 0; }
  // Number of outputs of the (padded) batch.
  void lay_out(int32_t outputs) { now().laid_out = outputs; }
  // The last part of a step's work, on devices with their own memory: logits and best of all
  // outputs, in groups of a few hundred rows, and their copy to the host; or one of hidden rows.
  void queue();

  void select(int32_t slot) { slot_ = slot; }
  // Call the following when the step has ended. Empty: the device has not found the best.
  std::optional<Scores> best_of(int32_t output) const;
  int32_t best_count() const { return best_count_; }
  // Whole rows. want() adds an output; its sequence's `count` rows from `first` on may be computed
  // with it. False: no room. After wait_wanted(), rows are valid until release_wanted(), row() or
  // is_sound(), which make room for at least one.
  bool want(int32_t output, int32_t first, int32_t count);
  void wait_wanted();
  std::span<const float> wanted(int32_t output) const;
  void release_wanted();
  // Valid until the next call of any function here.
  std::span<const float> row(int32_t output);
  // Whether the row is finite: as found by the device, or by its hidden row.
  bool is_sound(int32_t output);

 private:
  // What is known of a slot's step.
  struct Slot {
    int32_t outputs = 0;
    bool few_at_once = false;  // rows of logits
    int32_t laid_out = 0;
    // For a device with its own memory: [laid_out, best], [.., best] i32, [.., 1].
    Buffer best_memory, best_on_host;
    int32_t best_rows = 0;  // rows in best_on_host
    Buffer hidden_on_host;
    int32_t hidden_rows = 0;  // rows in it
  };
  // The interleaved step has the first slot's place: no other step runs when it ends.
  Slot& now() { return slots_[static_cast<size_t>(std::max(slot_, 0))]; }
  const Slot& now() const { return slots_[static_cast<size_t>(std::max(slot_, 0))]; }
  Status allocate_best(int64_t rows);
  bool holds(int32_t first, int32_t count) const;
  void compute(int32_t output, int32_t together);

  Device* device_ = nullptr;
  Model* model_ = nullptr;
  Buffer logits_memory_;
  Tensor logits_;  // [rows, V]
  int32_t slot_ = 0;
  std::vector<Slot> slots_;
  int32_t logits_slot_ = 0;  // whose output rows are in logits_
  int32_t logits_first_ = 0;
  int32_t logits_count_ = 0;

  bool wanted_ = false;  // want() is in use

  int32_t best_count_ = 0;
  int32_t most_best_rows_ = 0;
  Buffer rows_on_host_;           // logits, or hidden rows
  std::vector<int32_t> fetched_;  // output rows in rows_on_host_
  bool fetching_ = false;

 public:
  // Host memory for a device with its own memory.
  static uint64_t host_bytes(int32_t rows, int64_t vocabulary, int64_t width, int32_t slots);
};

}  // namespace braid
