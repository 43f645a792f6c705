// step_batch.h -- turns a plan into a Batch (ops/batch.h). Sized once, filled every step.
#pragma once

#include <optional>

#include "base/result.h"
#include "engine/schedule/batch_arrays.h"
#include "engine/schedule/step_plan.h"
#include "ops/batch.h"
#include "ops/device.h"

namespace braid {

class StepBatch {
 public:
  // part() needs room for one more sequence. `sparse_threshold`: of batches that may have chunks of
  // kSparseRows rows (Batch). Errors: exhausted.
  Status allocate(std::span<Device* const> devices, int32_t max_rows, int32_t max_sequences,
                  int32_t blocks_per_sequence, int32_t groups, float sparse_threshold);

  // Every sequence has one certain row, and maybe drafts; all rows are outputs.
  static bool decodes(const StepPlan& plan);
  // Padding lets one CUDA graph serve many steps.
  struct Padding {
    int32_t sequences = 0;
    int32_t rows = 0;
    int32_t most_rows = 0;  // of a sequence, rounded up
  };
  // Also sets the items' output fields. The device's arrays are valid until the next fill().
  // `turn`: Model::next_turn().
  Batch fill(StepPlan& plan, const std::optional<Padding>& padding, int32_t turn);
  // A filled batch without its padding.
  Batch unpadded(const Batch& batch) const;
  // The `count` certain rows from `first` on of a batch of one sequence. Valid until the next
  // part(). Only the devices of a part of the model read it.
  Batch part(const Batch& batch, int32_t first, int32_t count, std::span<const int32_t> devices);
  // Tables are sent before a CUDA graph; the uploads may be part of it.
  void send_tables() { arrays_.send_tables(); }
  void upload(int32_t device) { arrays_.upload(device); }

 private:
  void add(StepItem& item, int32_t index, int32_t first_output);

  int32_t max_sequences_ = 0;
  float sparse_threshold_ = 0;
  BatchArrays arrays_;
};

}  // namespace braid
