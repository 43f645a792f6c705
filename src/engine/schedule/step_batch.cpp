// step_batch.cpp -- see step_batch.h.
#include "engine/schedule/step_batch.h"

#include <algorithm>

#include "base/check.h"
#include "ops/sparse_prefill.h"

namespace braid {
namespace {

bool is_scored(const Sequence& s, int32_t p) {
  return s.request.score && p >= std::max(s.request.score_from, s.scored_tokens) &&
         p < s.prompt_tokens();
}

// The last certain row and all drafts are judged (engine.h).
int32_t outputs_of(const StepItem& item) {
  const Sequence& s = *item.sequence;
  int32_t count = 1 + static_cast<int32_t>(item.drafts.size());
  for (int32_t p = s.computed_tokens; p + 1 < s.computed_tokens + item.certain; ++p)
    count += is_scored(s, p) ? 1 : 0;
  return count;
}

}  // namespace

Status StepBatch::allocate(std::span<Device* const> devices, int32_t max_rows,
                           int32_t max_sequences, int32_t blocks_per_sequence, int32_t groups,
                           float sparse_threshold) {
  max_sequences_ = max_sequences;
  sparse_threshold_ = sparse_threshold;
  return arrays_.allocate(devices, "step", {max_rows, max_sequences, max_rows}, 1,
                          blocks_per_sequence, groups);
}

bool StepBatch::decodes(const StepPlan& plan) {
  return std::all_of(plan.items.begin(), plan.items.end(),
                     [](const StepItem& item) { return item.certain == 1; });
}

void StepBatch::add(StepItem& item, int32_t index, int32_t first_output) {
  const Sequence& s = *item.sequence;
  const int32_t computed_after = s.computed_tokens + item.certain;
  arrays_.set_blocks(index, s);
  arrays_.add_sequence(0, s.slot, item.certain, computed_after);
  item.index = index;
  item.first_row = arrays_.used(0).rows;
  item.first_output = first_output;
  for (int32_t p = s.computed_tokens; p < computed_after; ++p) {
    arrays_.add_row(0, {s.tokens[static_cast<size_t>(p)], p, p});
    if (p + 1 == computed_after || is_scored(s, p)) arrays_.add_output(0);
  }
  const int32_t first_draft_row = arrays_.used(0).rows;
  const int32_t* positions = arrays_.host(0, BatchArrays::position);
  for (size_t d = 0; d < item.drafts.size(); ++d) {
    const Draft& draft = item.drafts[d];
    BRAID_CHECK(item.wants_next && draft.parent < static_cast<int32_t>(d));
    const int32_t parent_row = draft.parent < 0 ? -1 : first_draft_row + draft.parent;
    const int32_t at = (parent_row < 0 ? computed_after - 1 : positions[parent_row]) + 1;
    arrays_.add_row(0, {draft.token, at, computed_after + static_cast<int32_t>(d), parent_row});
    arrays_.add_output(0);
  }
  item.outputs = outputs_of(item);
}

Batch StepBatch::fill(StepPlan& plan, const std::optional<Padding>& padding, int32_t turn) {
  const auto sequences = static_cast<int32_t>(plan.items.size());
  int32_t outputs = 0;
  for (const StepItem& item : plan.items) outputs += outputs_of(item);
  // part() needs a second sequence.
  BatchArrays::Sizes room{plan.rows(), std::max(sequences, std::min(2, max_sequences_)), outputs};
  if (padding) {
    BRAID_CHECK(decodes(plan) && padding->sequences >= sequences && padding->rows >= room.rows);
    room = {padding->rows, padding->sequences, padding->rows};
  }
  arrays_.begin(room);
  arrays_.set_turn(0, turn);
  int32_t first_output = 0;
  for (int32_t index = 0; index < sequences; ++index) {
    StepItem& item = plan.items[static_cast<size_t>(index)];
    add(item, index, first_output);
    first_output += item.outputs;
  }

  Batch b = arrays_.finish(0, padding.has_value());
  b.most_cells = kFewCells;
  for (const StepItem& item : plan.items) {
    if (item.sequence->computed_tokens + item.rows() > kFewCells) b.most_cells = 0;
    b.most_rows = std::max(b.most_rows, item.rows());
    b.most_uncertain = std::max(b.most_uncertain, item.rows() - item.certain);
    b.most_certain = std::max(b.most_certain, item.certain);
  }
  if (b.most_certain >= kSparseRows) b.sparse_threshold = sparse_threshold_;
  if (padding) {
    BRAID_CHECK(padding->most_rows >= b.most_rows);
    b.most_rows = padding->most_rows;
    b.most_uncertain = padding->most_rows - 1;
  }
  return b;
}

Batch StepBatch::unpadded(const Batch& batch) const {
  Batch b = batch;
  const BatchArrays::Sizes& used = arrays_.used(0);
  b.tokens = used.rows;
  b.sequences = used.sequences;
  b.outputs = used.outputs;
  return b;
}

Batch StepBatch::part(const Batch& batch, int32_t first, int32_t count,
                      std::span<const int32_t> devices) {
  BRAID_CHECK(batch.sequences == 1 && max_sequences_ > 1 && batch.most_uncertain == 0);
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= batch.tokens);
  if (count == batch.tokens) return batch;
  using Array = BatchArrays::Array;
  const int32_t held = arrays_.host(0, Array::context)[0] - batch.tokens;
  const int32_t values[] = {0, count, count, held + first + count, arrays_.host(0, Array::slot)[0]};
  const Array arrays[] = {Array::first_row, Array::rows, Array::certain, Array::context,
                          Array::slot};
  for (int i = 0; i < 5; ++i) {
    arrays_.host(0, arrays[i])[1] = values[i];
    for (const int32_t device : devices) arrays_.upload(device, 0, arrays[i], 1, 1);
  }
  Batch b = batch;
  b.tokens = b.most_rows = b.most_certain = count;
  b.outputs = 0;
  b.output_row = nullptr;
  for (const int32_t** row : {&b.token, &b.position, &b.cell, &b.sequence, &b.parent})
    *row += first;
  for (const int32_t** one : {&b.first_row, &b.rows, &b.certain, &b.context, &b.slot}) *one += 1;
  return b;
}

}  // namespace braid
