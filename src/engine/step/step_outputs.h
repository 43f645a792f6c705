// step_outputs.h -- what a step leaves to judge: logits of its output rows, and the best of each.
//
// Logits are computed where somebody wants them, at most rows() of them at a time. A device with memory of
// its own finds the best of every row and sends those; whole rows come to the host, a few at once, when the best
// do not decide. In host memory rows of long drafts are computed a few at a time: nobody reads those behind
// the first wrong one. Engine thread only; allocate() once, then nothing is allocated.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request/sampler.h"
#include "engine/schedule/step_plan.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class StepOutputs {
 public:
  // Rows of logits that are there at once, where a step has at most so many of sequences that decode, and max_rows in
  // all: those that decode as far as some hundred megabytes hold them, but one of each sequence at least, and as many
  // more as a few megabytes hold.
  static int32_t rows_for(int32_t sequences, int32_t decoding_rows, int32_t max_rows, int64_t vocabulary);

  // Bytes of `rows` rows of logits.
  static uint64_t bytes(int32_t rows, int64_t vocabulary);
  // `best_rows`: of the largest step whose best are found. Errors: exhausted.
  Status allocate(Device& device, Model& model, int32_t rows, int32_t best_rows);

  int32_t most_rows() const { return static_cast<int32_t>(logits_.rows); }
  // Their memory, which is free for others between two steps.
  Tensor memory() const { return logits_; }

  // A step with so many outputs begins. Where no row's logits are wanted, rows that are only to be judged
  // need no product with the output matrix.
  void begin(const StepPlan& plan, int32_t outputs);
  // The device finds the best logits of this step's rows: queue_best() belongs to its work.
  bool finds_best() const { return best_rows_ > 0; }
  // The step's batch, padded perhaps, has so many outputs.
  void lay_out(int32_t outputs) { laid_out_ = outputs; }
  // Logits of all these, a few hundred rows after the other, their best, and those to the host.
  void queue_best();

  // After the device was waited for:
  // The best of an output row, if the device has found them.
  std::optional<Scores> best_of(int32_t output) const;
  int32_t best_count() const { return best_count_; }
  // Whole rows of logits, several at once. want(): brings an output's, beside those wanted before; some of
  // `count` rows from `first` on, its sequence's, may be wanted next, and are computed together where rows are
  // not computed a few at a time. False: there is no room. wanted(): one of them, after wait_wanted().
  // Valid until release_wanted(), row() or is_sound(); then there is room for one at least.
  bool want(int32_t output, int32_t first, int32_t count);
  void wait_wanted();
  std::span<const float> wanted(int32_t output) const;
  void release_wanted();
  // The logits of one output row. Valid until the next call of anything here.
  std::span<const float> row(int32_t output);
  // Whether the logits of this row are numbers: as the device found them, or from the hidden row they are
  // made of.
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
  int32_t logits_first_ = 0;  // output rows that logits_ holds now
  int32_t logits_count_ = 0;
  bool few_at_once_ = false;  // this step's rows

  bool wanted_ = false;  // rows of these

  // Where the host cannot read the device's memory: the best logits of each row, and a few whole rows.
  // [laid_out_, best], [.., best] i32, [.., 1], one behind the other.
  Buffer best_memory_;
  int32_t best_count_ = 0;
  int32_t most_best_rows_ = 0;
  int32_t laid_out_ = 0;
  int32_t best_rows_ = 0;  // that best_on_host_ holds for the current step
  Buffer best_on_host_;
  Buffer rows_on_host_;           // of logits, or of what they are made of
  std::vector<int32_t> fetched_;  // output rows in rows_on_host_
  bool fetching_ = false;

 public:
  // Of best_on_host_ and rows_on_host_: host memory, beside a device that has its own.
  static uint64_t host_bytes(int32_t rows, int64_t vocabulary, int64_t width);
};

}  // namespace braid
