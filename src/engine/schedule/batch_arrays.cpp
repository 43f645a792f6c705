// batch_arrays.cpp -- see batch_arrays.h.
#include "engine/schedule/batch_arrays.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

int64_t BatchArrays::batch_elements(const Sizes& sizes) {
  int64_t sum = 0;
  for (int a = 0; a < kArrays; ++a) sum += padded_to_line(count_of(sizes, a));
  return sum;
}

size_t BatchArrays::bytes(const Sizes& most, int32_t most_batches, int32_t blocks_per_sequence,
                          int32_t groups) {
  const int64_t elements =
      tables_elements(most, blocks_per_sequence, groups) + most_batches * batch_elements(most);
  return static_cast<size_t>(elements) * sizeof(int32_t);
}

Status BatchArrays::allocate(std::span<Device* const> devices, const char* what, const Sizes& most,
                             int32_t most_batches, int32_t blocks_per_sequence, int32_t groups) {
  devices_.assign(devices.begin(), devices.end());
  most_ = most;
  most_batches_ = most_batches;
  blocks_per_sequence_ = blocks_per_sequence;
  groups_ = groups;
  used_.resize(static_cast<size_t>(most_batches));
  tables_elements_ = tables_elements(most, blocks_per_sequence, groups);
  tables_.assign(static_cast<size_t>(groups) * static_cast<size_t>(most.sequences), {});
  const size_t size = bytes(most, most_batches, blocks_per_sequence, groups);
  BRAID_ASSIGN(host_, devices.back()->allocate_host(size, what));
  const auto address = [](const Buffer& b) { return reinterpret_cast<std::intptr_t>(b.data()); };
  for (Device* device : devices) {
    Buffer& memory = memory_.emplace_back();
    if (device->traits().host_visible) continue;
    BRAID_ASSIGN(memory, device->allocate(size, what));
    is_sent_ = true;
  }
  const auto read_by = [&](size_t device) -> const Buffer& {
    return memory_[device].data() == nullptr ? host_ : memory_[device];
  };
  base_ = static_cast<const int32_t*>(read_by(0).data());
  for (size_t device = 0; device < memory_.size() && is_sent_; ++device)
    device_offset_bytes_.push_back(address(read_by(device)) - address(read_by(0)));
  return {};
}

void BatchArrays::begin(const Sizes& room, int32_t batches) {
  BRAID_CHECK(room.rows <= most_.rows && room.sequences <= most_.sequences &&
              room.outputs <= most_.outputs);
  BRAID_CHECK(batches <= most_batches_);
  room_ = room;
  batches_ = batches;
  with_blocks_ = 0;
  std::fill(used_.begin(), used_.end(), Sizes{});
  batch_elements_ = 0;
  for (int a = 0; a < kArrays; ++a) {
    offset_[a] = batch_elements_;
    batch_elements_ += padded_to_line(count_of(room, a));
  }
}

int32_t BatchArrays::add_sequence(int32_t batch, int32_t state_slot, int32_t certain_rows,
                                  int32_t context_cells) {
  Sizes& used = used_[static_cast<size_t>(batch)];
  BRAID_CHECK(batch < batches_ && used.sequences < room_.sequences);
  const int32_t index = used.sequences++;
  host(batch, first_row)[index] = used.rows;
  host(batch, rows)[index] = 0;
  host(batch, certain)[index] = certain_rows;
  host(batch, context)[index] = context_cells;
  host(batch, slot)[index] = state_slot;
  return index;
}

int32_t BatchArrays::add_row(int32_t batch, const Row& row) {
  Sizes& used = used_[static_cast<size_t>(batch)];
  BRAID_CHECK(used.rows < room_.rows && used.sequences > 0);
  const int32_t index = used.rows++;
  const int32_t of = used.sequences - 1;
  ++host(batch, rows)[of];
  host(batch, token)[index] = row.token;
  host(batch, position)[index] = row.position;
  host(batch, last_position)[index] = row.last_position;
  host(batch, cell)[index] = row.cell;
  host(batch, sequence)[index] = of;
  host(batch, parent)[index] = row.parent;
  return index;
}

void BatchArrays::add_output(int32_t batch) {
  Sizes& used = used_[static_cast<size_t>(batch)];
  BRAID_CHECK(used.outputs < room_.outputs && used.rows > 0);
  host(batch, output_row)[used.outputs++] = used.rows - 1;
}

// For the same sequence as in the step before, full blocks are unchanged.
void BatchArrays::set_blocks(int32_t index, const Sequence& s) {
  BRAID_CHECK(index < room_.sequences);
  with_blocks_ = std::max(with_blocks_, index + 1);
  for (int32_t g = 0; g < groups_; ++g) {
    Table& t = table(g, index);
    const std::span<const int32_t> blocks(s.blocks[g]);
    const auto count = static_cast<int32_t>(blocks.size());
    BRAID_CHECK(count <= blocks_per_sequence_);
    const bool same = s.id != 0 && t.sequence == s.id && t.entry == s.entry;
    if (same) write(g, index, blocks, t.left_behind, std::min(s.left_behind, count));
    write(g, index, blocks, same ? std::min(t.settled, count) : 0, std::max(count, t.filled));
    t.sequence = s.id;
    t.entry = s.entry;
    t.settled = s.computed_tokens / kBlockTokens;
    t.left_behind = s.left_behind;
    t.filled = count;
  }
}

void BatchArrays::write(int32_t group, int32_t index, std::span<const int32_t> blocks, int32_t from,
                        int32_t to) {
  int32_t* const entries = static_cast<int32_t*>(host_.data()) + table_offset(group, index);
  const auto wanted = [&](int32_t i) {
    return i < static_cast<int32_t>(blocks.size()) ? blocks[static_cast<size_t>(i)] : 0;
  };
  while (from < to && entries[from] == wanted(from)) ++from;
  while (from < to && entries[to - 1] == wanted(to - 1)) --to;
  if (from >= to) return;
  for (int32_t i = from; i < to; ++i) entries[i] = wanted(i);
  Table& t = table(group, index);
  const bool first = t.changed_from == t.changed_to;
  t.changed_from = first ? from : std::min(t.changed_from, from);
  t.changed_to = first ? to : std::max(t.changed_to, to);
}

void BatchArrays::clear_table(int32_t group, int32_t index) {
  Table& t = table(group, index);
  write(group, index, {}, 0, t.filled);
  t.sequence = 0;
  t.filled = 0;
}

void BatchArrays::pad(int32_t batch) {
  const Sizes& used = used_[static_cast<size_t>(batch)];
  for (int32_t i = used.rows; i < room_.rows; ++i) {
    for (const Array a : {token, cell, sequence, parent}) host(batch, a)[i] = -1;
    for (const Array a : {position, last_position}) host(batch, a)[i] = 0;
  }
  for (int32_t i = used.outputs; i < room_.outputs; ++i) host(batch, output_row)[i] = -1;
  for (int32_t i = used.sequences; i < room_.sequences; ++i)
    for (const Array a : {first_row, rows, certain, context, slot}) host(batch, a)[i] = 0;
  for (int32_t g = 0; g < groups_; ++g)
    for (int32_t i = with_blocks_; i < room_.sequences; ++i) clear_table(g, i);
}

Batch BatchArrays::finish(int32_t batch, bool padded) {
  if (padded) pad(batch);
  const Sizes& sizes = padded ? room_ : used_[static_cast<size_t>(batch)];
  Batch b;
  b.tokens = sizes.rows;
  b.sequences = sizes.sequences;
  b.outputs = sizes.outputs;
  b.token = on_device(batch, token);
  b.position = on_device(batch, position);
  b.cell = on_device(batch, cell);
  b.sequence = on_device(batch, sequence);
  b.parent = on_device(batch, parent);
  b.first_row = on_device(batch, first_row);
  b.rows = on_device(batch, rows);
  b.certain = on_device(batch, certain);
  b.context = on_device(batch, context);
  b.slot = on_device(batch, slot);
  b.block_table = b.cold_table = base_;
  b.blocks_per_sequence = blocks_per_sequence_;
  b.group_stride = group_elements();
  b.output_row = on_device(batch, output_row);
  b.turn = on_device(batch, turn);
  if (device_offset_bytes_.size() > 1) b.device_offset_bytes = device_offset_bytes_.data();
  return b;
}

void BatchArrays::send(int32_t device, int64_t first, int64_t count) {
  const auto at = static_cast<size_t>(device);
  if (memory_[at].data() == nullptr) return;
  devices_[at]->to_device(static_cast<int32_t*>(memory_[at].data()) + first,
                          static_cast<const int32_t*>(host_.data()) + first,
                          static_cast<size_t>(count) * sizeof(int32_t));
}

void BatchArrays::upload(int32_t device) {
  send(device, tables_elements_, batches_ * batch_elements_);
}

void BatchArrays::send_tables() {
  for (int32_t g = 0; is_sent() && g < groups_; ++g) send_tables_of(g);
}

// Adjacent tables are sent in one copy if the entries between them cost less than another copy.
void BatchArrays::send_tables_of(int32_t group) {
  constexpr int64_t kEntriesPerCopy = 8 << 10;  // sent in the time of queueing a copy
  struct Run {
    int32_t first = 0, last = -1, from = 0, to = 0;
    int64_t changed = 0;
    int64_t between() const { return int64_t{last - first + 1} * (to - from) - changed; }
  };
  const auto send = [&](const Run& run) {
    if (run.last < run.first) return;
    const size_t pitch = static_cast<size_t>(blocks_per_sequence_) * sizeof(int32_t);
    const int64_t at = table_offset(group, run.first) + run.from;
    for (size_t device = 0; device < devices_.size(); ++device)
      if (memory_[device].data() != nullptr)
        devices_[device]->rows_to_device({static_cast<int32_t*>(memory_[device].data()) + at,
                                          static_cast<const int32_t*>(host_.data()) + at,
                                          static_cast<size_t>(run.to - run.from) * sizeof(int32_t),
                                          run.last - run.first + 1, pitch, pitch});
  };
  Run run;
  for (int32_t i = 0; i < room_.sequences; ++i) {
    Table& t = table(group, i);
    if (t.changed_from == t.changed_to) continue;
    const Run alone{i, i, t.changed_from, t.changed_to, t.changed_to - t.changed_from};
    const Run more{run.first, i, std::min(run.from, alone.from), std::max(run.to, alone.to),
                   run.changed + alone.changed};
    if (run.last >= 0 && more.between() <= kEntriesPerCopy) {
      run = more;
    } else {
      send(run);
      run = alone;
    }
    t.changed_from = t.changed_to = 0;
  }
  send(run);
}

void BatchArrays::upload(int32_t device, int32_t batch, Array a, int32_t first, int32_t count) {
  send(device, offset(batch, a) + first, count);
}

void BatchArrays::upload_tokens(int32_t batch) { upload(0, batch, token, 0, room_.rows); }

}  // namespace braid
