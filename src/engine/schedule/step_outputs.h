// step_outputs.h -- logits of a step's output rows, and the best of each row.
//
// Logits are computed on demand, at most most_rows() rows at a time. A device with its own memory
// sends the best of every row, and whole rows if these do not decide. In host memory, rows of long
// drafts are computed a few at a time: those after the first rejected one are not read. Engine
// thread only; only allocate() allocates.
#pragma once

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
  Status allocate(Device& device, Model& model, int32_t rows, int32_t best_rows);

  int32_t most_rows() const { return static_cast<int32_t>(logits_.rows); }
  // Free for other uses between two steps.
  Tensor memory() const { return logits_; }

  // Without requested logits, rows that are only judged need no product with the output matrix.
  void begin(const StepPlan& plan, int32_t outputs);
  // If true, queue_best() is part of the step's work.
  bool finds_best() const { return best_rows_ > 0; }
  // Number of outputs of the (padded) batch.
  void lay_out(int32_t outputs) { laid_out_ = outputs; }
  // Logits and best of all outputs, in groups of a few hundred rows, and their copy to the host.
  void queue_best();

  // Call the following when the device has finished. Empty: the device has not found the best.
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
  Status allocate_best(int64_t rows);
  bool holds(int32_t first, int32_t count) const;
  void compute(int32_t output, int32_t together);

  Device* device_ = nullptr;
  Model* model_ = nullptr;
  Buffer logits_memory_;
  Tensor logits_;             // [rows, V]
  int32_t outputs_ = 0;       // of the current step
  int32_t logits_first_ = 0;  // output rows in logits_
  int32_t logits_count_ = 0;
  bool few_at_once_ = false;  // for this step's rows

  bool wanted_ = false;  // want() is in use

  // For a device with its own memory: [laid_out_, best], [.., best] i32, [.., 1].
  Buffer best_memory_;
  int32_t best_count_ = 0;
  int32_t most_best_rows_ = 0;
  int32_t laid_out_ = 0;
  int32_t best_rows_ = 0;  // rows in best_on_host_ for the current step
  Buffer best_on_host_;
  Buffer rows_on_host_;           // logits, or hidden rows
  std::vector<int32_t> fetched_;  // output rows in rows_on_host_
  bool fetching_ = false;

 public:
  // Host memory for a device with its own memory.
  static uint64_t host_bytes(int32_t rows, int64_t vocabulary, int64_t width);
};

}  // namespace braid
