// step_batch.h -- turns a plan into the arrays of a Batch (ops/batch.h). Sized once, filled every step.
#pragma once

#include <vector>

#include "engine/sequence.h"
#include "ops/batch.h"

namespace braid {

class StepBatch {
 public:
  StepBatch(int32_t max_rows, int32_t max_sequences, int32_t blocks_per_sequence);

  // Also sets first_row, first_output and outputs of the plan's items. Valid until the next fill().
  Batch fill(Plan& plan);
  bool has_uncertain() const { return has_uncertain_; }
  uint64_t bytes() const;

 private:
  void add_row(int32_t token, int32_t position, int32_t cell, int32_t sequence, int32_t parent);

  int32_t max_rows_;
  int32_t max_sequences_;
  int32_t blocks_per_sequence_;
  bool has_uncertain_ = false;
  std::vector<int32_t> token_, position_, cell_, sequence_, parent_, output_row_;
  std::vector<int32_t> first_row_, rows_, certain_, context_, slot_, block_table_;
};

}  // namespace braid
