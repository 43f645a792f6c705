// step_batch.cpp -- see step_batch.h.
#include "engine/step_batch.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

StepBatch::StepBatch(int32_t max_rows, int32_t max_sequences, int32_t blocks_per_sequence)
    : max_rows_(max_rows), max_sequences_(max_sequences), blocks_per_sequence_(blocks_per_sequence) {
  for (auto* v : {&token_, &position_, &cell_, &sequence_, &parent_, &output_row_})
    v->reserve(static_cast<size_t>(max_rows));
  for (auto* v : {&first_row_, &rows_, &certain_, &context_, &slot_})
    v->reserve(static_cast<size_t>(max_sequences));
  block_table_.resize(static_cast<size_t>(max_sequences) * static_cast<size_t>(blocks_per_sequence));
}

uint64_t StepBatch::bytes() const {
  return sizeof(int32_t) * (static_cast<uint64_t>(max_rows_) * 6 + static_cast<uint64_t>(max_sequences_) * 5 +
                            block_table_.size());
}

void StepBatch::add_row(int32_t token, int32_t position, int32_t cell, int32_t sequence, int32_t parent) {
  token_.push_back(token);
  position_.push_back(position);
  cell_.push_back(cell);
  sequence_.push_back(sequence);
  parent_.push_back(parent);
}

Batch StepBatch::fill(Plan& plan) {
  for (auto* v : {&token_, &position_, &cell_, &sequence_, &parent_, &output_row_, &first_row_, &rows_,
                  &certain_, &context_, &slot_})
    v->clear();
  has_uncertain_ = false;
  BRAID_CHECK(static_cast<int32_t>(plan.items.size()) <= max_sequences_ && plan.rows() <= max_rows_);

  for (size_t i = 0; i < plan.items.size(); ++i) {
    PlanItem& item = plan.items[i];
    const Sequence& s = *item.sequence;
    const auto index = static_cast<int32_t>(i);
    const int32_t context = s.held + item.certain;
    item.first_row = static_cast<int32_t>(token_.size());
    item.first_output = static_cast<int32_t>(output_row_.size());
    for (int32_t p = s.held; p < context; ++p) {
      const bool scored = s.request.score && p >= s.request.score_from && p < s.prompt_tokens();
      const bool last = p + 1 == context;
      if (scored || (last && item.wants_next)) output_row_.push_back(static_cast<int32_t>(token_.size()));
      add_row(s.tokens[p], p, p, index, -1);
    }
    const auto first_draft_row = static_cast<int32_t>(token_.size());
    for (size_t d = 0; d < item.drafts.size(); ++d) {
      const Draft& draft = item.drafts[d];
      BRAID_CHECK(item.wants_next && draft.parent < static_cast<int32_t>(d));
      const int32_t parent = draft.parent < 0 ? -1 : first_draft_row + draft.parent;
      const int32_t position = (parent < 0 ? context - 1 : position_[parent]) + 1;
      output_row_.push_back(static_cast<int32_t>(token_.size()));
      add_row(draft.token, position, context + static_cast<int32_t>(d), index, parent);
      has_uncertain_ = true;
    }
    item.outputs = static_cast<int32_t>(output_row_.size()) - item.first_output;

    first_row_.push_back(item.first_row);
    rows_.push_back(item.rows());
    certain_.push_back(item.certain);
    context_.push_back(context);
    slot_.push_back(s.slot);
    BRAID_CHECK(static_cast<int32_t>(s.blocks.size()) <= blocks_per_sequence_);
    std::copy(s.blocks.begin(), s.blocks.end(), block_table_.begin() + int64_t{index} * blocks_per_sequence_);
  }

  Batch b;
  b.tokens = static_cast<int32_t>(token_.size());
  b.sequences = static_cast<int32_t>(plan.items.size());
  b.outputs = static_cast<int32_t>(output_row_.size());
  b.token = token_.data();
  b.position = position_.data();
  b.cell = cell_.data();
  b.sequence = sequence_.data();
  b.parent = parent_.data();
  b.first_row = first_row_.data();
  b.rows = rows_.data();
  b.certain = certain_.data();
  b.context = context_.data();
  b.slot = slot_.data();
  b.block_table = block_table_.data();
  b.blocks_per_sequence = blocks_per_sequence_;
  b.output_row = output_row_.data();
  return b;
}

}  // namespace braid
