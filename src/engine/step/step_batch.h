// step_batch.h -- turns a plan into a Batch (ops/batch.h). Sized once, filled every step.
#pragma once

#include <optional>

#include "base/result.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/batch_arrays.h"
#include "ops/batch.h"
#include "ops/device.h"

namespace braid {

class StepBatch {
 public:
  // part() needs room for one more sequence. Errors: exhausted.
  Status allocate(Device& device, int32_t max_rows, int32_t max_sequences, int32_t blocks_per_sequence,
                  int32_t groups);

  // Every sequence takes one certain row, and drafts: the steps that are repeated most. All of their rows are
  // outputs.
  static bool decodes(const StepPlan& plan);
  // What such a step is padded to, so that one record serves many.
  struct Padding {
    int32_t sequences = 0;
    int32_t rows = 0;
    int32_t most_rows = 0;  // of a sequence: the promise, rounded up
  };
  // Also sets first_row, first_output and outputs of the plan's items. The arrays of the result are in the
  // device's memory. Valid until the next fill().
  Batch fill(StepPlan& plan, const std::optional<Padding>& padding = {});
  // The batch of one sequence's certain rows as if it were the `count` rows from `first` on; the arrays of
  // the sequence then stand behind those of the whole. Valid until the next part().
  Batch part(const Batch& batch, int32_t first, int32_t count);
  // To the device: what has changed in the block tables; and the arrays, a part of the step that can be recorded.
  void send_tables() { arrays_.send_tables(); }
  void upload() { arrays_.upload(); }

 private:
  void add(StepItem& item, int32_t index, int32_t first_output);

  int32_t max_sequences_ = 0;
  BatchArrays arrays_;
};

}  // namespace braid
