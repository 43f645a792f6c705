// batch_arrays.h -- the arrays of batches (ops/batch.h), filled by the host and sent in one copy.
//
// Each of a model's devices (ops/devices.h) gets its own copy.
//
// Several batches may share the block tables. These stay on the device; send_tables() sends changes
// before a CUDA graph runs. upload() is part of the graph: it copies the same bytes for the same
// room.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/schedule/sequence.h"
#include "ops/batch.h"
#include "ops/device.h"

namespace braid {

class BatchArrays {
 public:
  enum Array {
    token,
    position,
    last_position,  // of a draft block, in all its rows
    cell,
    sequence,
    parent,
    output_row,
    first_row,
    rows,
    certain,
    context,
    slot,
    turn,  // one number
    kArrays
  };
  struct Sizes {
    int32_t rows = 0;
    int32_t sequences = 0;
    int32_t outputs = 0;
  };

  // Device memory of allocate() with such sizes.
  static size_t bytes(const Sizes& most, int32_t most_batches, int32_t blocks_per_sequence,
                      int32_t groups);
  // `what` names the memory. Errors: exhausted.
  Status allocate(std::span<Device* const> devices, const char* what, const Sizes& most,
                  int32_t most_batches, int32_t blocks_per_sequence, int32_t groups);

  // For one device.
  Status allocate(Device& device, const char* what, const Sizes& most, int32_t most_batches,
                  int32_t blocks_per_sequence, int32_t groups) {
    Device* const one[] = {&device};
    return allocate(one, what, most, most_batches, blocks_per_sequence, groups);
  }

  // Some of the devices do not read host memory.
  bool is_sent() const { return is_sent_; }
  int32_t blocks_per_sequence() const { return blocks_per_sequence_; }

  void begin(const Sizes& room, int32_t batches = 1);
  // Returns its index; its rows follow.
  int32_t add_sequence(int32_t batch, int32_t state_slot, int32_t certain_rows,
                       int32_t context_cells);
  struct Row {
    int32_t token = -1;
    int32_t position = 0;
    int32_t cell = -1;
    int32_t parent = -1;
    int32_t last_position = 0;
  };
  int32_t add_row(int32_t batch, const Row& row);
  // Requests the logits of the last row.
  void add_output(int32_t batch);
  // Batch::turn.
  void set_turn(int32_t batch, int32_t value) { host(batch, turn)[0] = value; }
  // The same in every batch.
  void set_blocks(int32_t index, const Sequence& s);

  const Sizes& used(int32_t batch) const { return used_[static_cast<size_t>(batch)]; }
  // In the first device's memory (Batch::on_device). `padded`: as large as the room.
  Batch finish(int32_t batch, bool padded);

  void send_tables();
  // All but the block tables, to one device.
  void upload(int32_t device = 0);
  void upload_tokens(int32_t batch);

  // To change values after begin().
  int32_t* host(int32_t batch, Array a) {
    return static_cast<int32_t*>(host_.data()) + offset(batch, a);
  }
  const int32_t* on_device(int32_t batch, Array a) const { return base_ + offset(batch, a); }
  void upload(int32_t device, int32_t batch, Array a, int32_t first, int32_t count);

 private:
  static int64_t padded_to_line(int64_t count) { return (count + 15) / 16 * 16; }
  static int64_t count_of(const Sizes& sizes, int a) {
    if (a == turn) return 1;
    return a < output_row ? sizes.rows : a == output_row ? sizes.outputs : sizes.sequences;
  }
  static int64_t batch_elements(const Sizes& sizes);
  int64_t offset(int32_t batch, Array a) const {
    return tables_elements_ + batch * batch_elements_ + offset_[a];
  }
  int64_t group_elements() const { return int64_t{most_.sequences} * blocks_per_sequence_; }
  static int64_t tables_elements(const Sizes& most, int32_t blocks_per_sequence, int32_t groups) {
    return padded_to_line(int64_t{groups} * most.sequences * blocks_per_sequence);
  }
  int64_t table_offset(int32_t group, int32_t index) const {
    return group * group_elements() + int64_t{index} * blocks_per_sequence_;
  }
  struct Table {
    RequestId sequence = 0;  // 0: no reusable content
    uint64_t entry = 0;      // of that sequence
    int32_t settled = 0;     // blocks that only change when they are released
    int32_t left_behind = 0;
    int32_t filled = 0;  // entries after these are 0
    int32_t changed_from = 0, changed_to = 0;
  };
  Table& table(int32_t group, int32_t index) {
    return tables_[static_cast<size_t>(group) * static_cast<size_t>(most_.sequences) +
                   static_cast<size_t>(index)];
  }
  void send(int32_t device, int64_t first, int64_t count);
  void send_tables_of(int32_t group);
  void write(int32_t group, int32_t index, std::span<const int32_t> blocks, int32_t from,
             int32_t to);
  void clear_table(int32_t group, int32_t index);
  void pad(int32_t batch);

  std::vector<Device*> devices_;
  Sizes most_;
  int32_t most_batches_ = 0;
  int32_t blocks_per_sequence_ = 0;
  int32_t groups_ = 1;
  Buffer host_;
  std::vector<Buffer> memory_;  // [devices]; empty where host memory is read
  bool is_sent_ = false;
  std::vector<std::intptr_t> device_offset_bytes_;  // Batch::device_offset_bytes
  const int32_t* base_ = nullptr;

  Sizes room_;
  int32_t batches_ = 0;
  int32_t with_blocks_ = 0;  // sequences with blocks set
  int64_t batch_elements_ = 0;
  int64_t offset_[kArrays] = {};
  std::vector<Sizes> used_;  // [most_batches]
  int64_t tables_elements_ = 0;
  std::vector<Table> tables_;  // [groups][most_.sequences]
};

}  // namespace braid
