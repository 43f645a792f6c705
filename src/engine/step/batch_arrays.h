// batch_arrays.h -- the arrays of batches (ops/batch.h), filled by the host and sent in one copy.
//
// Several batches may be filled at once, which then run over the same sequences one after the other: they
// share the block tables. Sized once for the largest; begin() lays out no more than what follows needs.
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
    last_position,  // of a draft block, in all of its rows
    cell,
    sequence,
    parent,
    output_row,
    first_row,
    rows,
    certain,
    context,
    slot,
    kArrays
  };
  struct Sizes {
    int32_t rows = 0;
    int32_t sequences = 0;
    int32_t outputs = 0;
  };

  // What the device reads, of allocate() with such sizes.
  static size_t bytes(const Sizes& most, int32_t most_batches, int32_t blocks_per_sequence, int32_t groups);
  // `what` names the memory. Errors: exhausted.
  Status allocate(Device& device, const char* what, const Sizes& most, int32_t most_batches,
                  int32_t blocks_per_sequence, int32_t groups);

  // The device has memory of its own, where padded batches are recorded.
  bool is_sent() const { return memory_.data() != nullptr; }
  int32_t blocks_per_sequence() const { return blocks_per_sequence_; }

  // Empty batches, each with room for so much.
  void begin(const Sizes& room, int32_t batches = 1);
  // The next sequence of a batch; its rows follow. Returns its index.
  int32_t add_sequence(int32_t batch, int32_t state_slot, int32_t certain_rows, int32_t context_cells);
  // The next row, of the sequence that was added last. Returns its index.
  struct Row {
    int32_t token = -1;
    int32_t position = 0;
    int32_t cell = -1;
    int32_t parent = -1;
    int32_t last_position = 0;
  };
  int32_t add_row(int32_t batch, const Row& row);
  // The logits of the row that was added last are wanted.
  void add_output(int32_t batch);
  // The blocks of the index-th sequence of every batch.
  void set_blocks(int32_t index, const Sequence& s);

  int32_t rows_of(int32_t batch) const { return used_[static_cast<size_t>(batch)].rows; }
  // What was filled, in the device's memory, without any promise of the host's. `padded`: as large as the
  // room.
  Batch finish(int32_t batch, bool padded);

  // All of it (always the same bytes for the same room).
  void upload();
  // The tokens of one batch.
  void upload_tokens(int32_t batch);

  // For what is changed after begin().
  int32_t* host(int32_t batch, Array a) { return static_cast<int32_t*>(host_.data()) + offset(batch, a); }
  const int32_t* on_device(int32_t batch, Array a) const { return base_ + offset(batch, a); }
  // Sends count elements of an array from `first` on.
  void upload(int32_t batch, Array a, int32_t first, int32_t count);

 private:
  static int64_t padded_to_line(int64_t count) { return (count + 15) / 16 * 16; }
  static int64_t count_of(const Sizes& sizes, int a) {
    return a < output_row ? sizes.rows : a == output_row ? sizes.outputs : sizes.sequences;
  }
  static int64_t batch_elements(const Sizes& sizes);
  int64_t offset(int32_t batch, Array a) const { return batch * batch_elements_ + offset_[a]; }
  int64_t tables() const { return batches_ * batch_elements_; }
  int64_t group_elements() const { return int64_t{room_.sequences} * blocks_per_sequence_; }
  int32_t* table_of(int32_t group, int32_t index) {
    return static_cast<int32_t*>(host_.data()) + tables() + group * group_elements() +
           int64_t{index} * blocks_per_sequence_;
  }
  void send(int64_t first, int64_t count);
  void fill_table(int32_t group, int32_t index, std::span<const int32_t> blocks);
  void pad(int32_t batch);

  Device* device_ = nullptr;
  Sizes most_;
  int32_t most_batches_ = 0;
  int32_t blocks_per_sequence_ = 0;
  int32_t groups_ = 1;
  Buffer host_;
  Buffer memory_;  // empty where the device reads host memory
  const int32_t* base_ = nullptr;

  Sizes room_;
  int32_t batches_ = 0;
  int32_t with_blocks_ = 0;  // sequences whose blocks are set
  int64_t batch_elements_ = 0;
  int64_t offset_[kArrays] = {};
  std::vector<Sizes> used_;  // [most_batches]
  // [groups][most_.sequences]: entries of a table behind these are 0, for as long as tables stay where they are.
  std::vector<int32_t> filled_;
  int64_t tables_at_ = -1, table_elements_ = -1;
};

}  // namespace braid
