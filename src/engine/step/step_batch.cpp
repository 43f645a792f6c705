// step_batch.cpp -- see step_batch.h.
#include "engine/step/step_batch.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

Status StepBatch::allocate(Device& device, int32_t max_rows, int32_t max_sequences,
                           int32_t blocks_per_sequence, int32_t groups) {
  device_ = &device;
  max_rows_ = max_rows;
  max_sequences_ = max_sequences;
  blocks_per_sequence_ = blocks_per_sequence;
  groups_ = groups;
  int64_t elements = 0;
  for (int a = 0; a < kArrays; ++a) {
    offset_[a] = elements;
    int64_t count = a <= output_row ? max_rows : max_sequences;
    if (a >= table) count = a < table + groups ? int64_t{max_sequences} * blocks_per_sequence : 0;
    elements += (count + 15) / 16 * 16;
  }
  const size_t bytes = static_cast<size_t>(elements) * sizeof(int32_t);
  BRAID_ASSIGN(host_, device.allocate_host(bytes, "step"));
  if (!device.computes_in_host_memory()) {
    BRAID_ASSIGN(memory_, device.allocate(bytes, "step"));
  }
  device_base_ = static_cast<const int32_t*>(memory_.data() != nullptr ? memory_.data() : host_.data());
  return {};
}

void StepBatch::add_row(int32_t token_id, int32_t at, int32_t cell_index, int32_t sequence_index,
                        int32_t parent_row) {
  const int32_t row = rows_used_++;
  host(token)[row] = token_id;
  host(position)[row] = at;
  host(cell)[row] = cell_index;
  host(sequence)[row] = sequence_index;
  host(parent)[row] = parent_row;
}

Batch StepBatch::fill(StepPlan& plan) {
  rows_used_ = 0;
  int32_t outputs = 0;
  const auto sequences = static_cast<int32_t>(plan.items.size());
  BRAID_CHECK(sequences <= max_sequences_ && plan.rows() <= max_rows_);

  for (int32_t index = 0; index < sequences; ++index) {
    StepItem& item = plan.items[index];
    const Sequence& s = *item.sequence;
    const int32_t computed_after = s.computed_tokens + item.certain;
    item.first_row = rows_used_;
    item.first_output = outputs;
    for (int32_t p = s.computed_tokens; p < computed_after; ++p) {
      const bool scored =
          s.request.score && p >= std::max(s.request.score_from, s.scored_tokens) && p < s.prompt_tokens();
      const bool last = p + 1 == computed_after;
      if (scored || last) host(output_row)[outputs++] = rows_used_;  // the last: it is judged (engine.h)
      add_row(s.tokens[p], p, p, index, -1);
    }
    const int32_t first_draft_row = rows_used_;
    for (size_t d = 0; d < item.drafts.size(); ++d) {
      const Draft& draft = item.drafts[d];
      BRAID_CHECK(item.wants_next && draft.parent < static_cast<int32_t>(d));
      const int32_t parent_row = draft.parent < 0 ? -1 : first_draft_row + draft.parent;
      const int32_t at = (parent_row < 0 ? computed_after - 1 : host(position)[parent_row]) + 1;
      host(output_row)[outputs++] = rows_used_;
      add_row(draft.token, at, computed_after + static_cast<int32_t>(d), index, parent_row);
    }
    item.outputs = outputs - item.first_output;

    host(first_row)[index] = item.first_row;
    host(rows)[index] = item.rows();
    host(certain)[index] = item.certain;
    host(context)[index] = computed_after;
    host(slot)[index] = s.slot;
    for (int32_t g = 0; g < groups_; ++g) {
      BRAID_CHECK(static_cast<int32_t>(s.blocks[g].size()) <= blocks_per_sequence_);
      std::copy(s.blocks[g].begin(), s.blocks[g].end(), table_of(g, index));
    }
  }
  decodes_ = outputs == rows_used_ && std::all_of(plan.items.begin(), plan.items.end(),
                                                  [](const auto& item) { return item.certain == 1; });

  Batch b;
  b.most_cells = kFewCells;
  for (const StepItem& item : plan.items) {
    if (item.sequence->computed_tokens + item.rows() > kFewCells) b.most_cells = 0;
    b.most_rows = std::max(b.most_rows, item.rows());
    b.most_uncertain = std::max(b.most_uncertain, item.rows() - item.certain);
    b.most_certain = std::max(b.most_certain, item.certain);
  }
  b.tokens = rows_used_;
  b.sequences = sequences;
  b.outputs = outputs;
  b.token = on_device(token);
  b.position = on_device(position);
  b.cell = on_device(cell);
  b.sequence = on_device(sequence);
  b.parent = on_device(parent);
  b.first_row = on_device(first_row);
  b.rows = on_device(rows);
  b.certain = on_device(certain);
  b.context = on_device(context);
  b.slot = on_device(slot);
  b.block_table = on_device(table);
  b.blocks_per_sequence = blocks_per_sequence_;
  b.group_stride = offset_[table + 1] - offset_[table];
  b.output_row = on_device(output_row);
  return b;
}

Batch StepBatch::part(const Batch& batch, int32_t first, int32_t count) {
  BRAID_CHECK(batch.sequences == 1 && max_sequences_ > 1 && batch.most_uncertain == 0);
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= batch.tokens);
  if (count == batch.tokens) return batch;
  const int32_t values[] = {0, count, count, host(context)[0] - batch.tokens + first + count, host(slot)[0]};
  const Array arrays[] = {first_row, rows, certain, context, slot};
  for (int i = 0; i < 5; ++i) {
    int32_t* value = host(arrays[i]) + 1;
    *value = values[i];
    if (memory_.data() != nullptr)
      device_->to_device(static_cast<int32_t*>(memory_.data()) + offset_[arrays[i]] + 1, value,
                         sizeof *value);
  }
  Batch b = batch;
  b.tokens = b.most_rows = b.most_certain = count;
  b.outputs = 0;
  b.output_row = nullptr;
  for (const int32_t** row : {&b.token, &b.position, &b.cell, &b.sequence, &b.parent}) *row += first;
  for (const int32_t** one : {&b.first_row, &b.rows, &b.certain, &b.context, &b.slot}) *one += 1;
  return b;
}

void StepBatch::upload(const Batch& batch) {
  if (memory_.data() == nullptr) return;
  const int64_t used = int64_t{batch.sequences} * blocks_per_sequence_;
  const auto send = [&](int64_t first, int64_t end) {
    device_->to_device(static_cast<int32_t*>(memory_.data()) + first,
                       static_cast<int32_t*>(host_.data()) + first,
                       static_cast<size_t>(end - first) * sizeof(int32_t));
  };
  send(0, offset_[table] + used);
  for (int32_t g = 1; g < groups_; ++g) send(offset_[table + g], offset_[table + g] + used);
}

void StepBatch::pad(Batch& batch, int32_t sequences, int32_t row_count, int32_t most_rows) {
  BRAID_CHECK(decodes_ && batch.outputs == batch.tokens && most_rows >= batch.most_rows);
  BRAID_CHECK(sequences >= batch.sequences && sequences <= max_sequences_);
  BRAID_CHECK(row_count >= batch.tokens && row_count <= max_rows_);
  for (int32_t i = batch.tokens; i < row_count; ++i) {
    for (const Array a : {token, cell, sequence, parent, output_row}) host(a)[i] = -1;
    host(position)[i] = 0;
  }
  for (int32_t i = batch.sequences; i < sequences; ++i) {
    for (const Array a : {first_row, rows, certain, context, slot}) host(a)[i] = 0;
    for (int32_t g = 0; g < groups_; ++g) std::fill_n(table_of(g, i), blocks_per_sequence_, 0);
  }
  batch.sequences = sequences;
  batch.tokens = batch.outputs = row_count;
  batch.most_rows = most_rows;
  batch.most_uncertain = most_rows - 1;
}

}  // namespace braid
