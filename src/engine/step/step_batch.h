// step_batch.h -- turns a plan into the arrays of a Batch (ops/batch.h). Sized once, filled every step.
#pragma once

#include "base/result.h"
#include "engine/schedule/step_plan.h"
#include "ops/batch.h"
#include "ops/device.h"

namespace braid {

class StepBatch {
 public:
  // part() needs room for one more sequence. Errors: exhausted.
  Status allocate(Device& device, int32_t max_rows, int32_t max_sequences, int32_t blocks_per_sequence,
                  int32_t groups);

  // Also sets first_row, first_output and outputs of the plan's items. The arrays of the result are in the
  // device's memory. Valid until the next fill().
  Batch fill(StepPlan& plan);
  // The batch of one sequence's certain rows as if it were the `count` rows from `first` on; the arrays of
  // the sequence then stand behind those of the whole. Valid until the next part().
  Batch part(const Batch& batch, int32_t first, int32_t count);
  // Sends the arrays to the device (a part of the step that can be recorded: always the same bytes).
  void upload(const Batch& batch);
  // Every sequence takes one certain row, and drafts: the steps that are repeated most.
  bool decodes() const { return decodes_; }
  // Pads such a step to `sequences` and `rows`, so that one record serves many, and rounds its promise up to
  // `most_rows` of a sequence.
  void pad(Batch& batch, int32_t sequences, int32_t rows, int32_t most_rows);

 private:
  // Where each array lies in the one stretch that goes to the device in one copy.
  enum Array {
    token,
    position,
    cell,
    sequence,
    parent,
    output_row,
    first_row,
    rows,
    certain,
    context,
    slot,
    table,  // of KV group 0; the other groups' follow
    kArrays = table + kKvGroups
  };
  int32_t* host(Array a) { return static_cast<int32_t*>(host_.data()) + offset_[a]; }
  int32_t* table_of(int32_t group, int32_t sequence) {
    return host(static_cast<Array>(table + group)) + int64_t{sequence} * blocks_per_sequence_;
  }
  const int32_t* on_device(Array a) const { return device_base_ + offset_[a]; }
  void add_row(int32_t token, int32_t position, int32_t cell, int32_t sequence, int32_t parent);

  Device* device_ = nullptr;
  int32_t max_rows_ = 0;
  int32_t max_sequences_ = 0;
  int32_t blocks_per_sequence_ = 0;
  int32_t groups_ = 1;
  bool decodes_ = false;
  int32_t rows_used_ = 0;
  int64_t offset_[kArrays] = {};
  Buffer host_;
  Buffer memory_;  // empty where the device reads host memory
  const int32_t* device_base_ = nullptr;
};

}  // namespace braid
