// batch.h -- everything that changes from step to step, in device memory.
//
// A batch is T rows (tokens) of S sequences. The rows of a sequence are contiguous, in this order:
// - certain rows: consecutive positions after the content of the slot and cells. They are kept.
// - uncertain rows: speculative tokens, a forest. `parent` is the batch row of the previous token,
//   or -1 after the last certain row or the slot's content. Parents precede their children.
//
// A row writes its K and V to its `cell`: token c % kBlockTokens of block block_table[s][c /
// kBlockTokens]. A certain row's cell is its position; it sees cells 0 .. position. Uncertain rows
// get the cells from context[s] on, in row order, because siblings share a position. They see cells
// 0 .. context[s] - 1, their ancestors and themselves. With a window, rows see only positions above
// own - window. A block below all windows may be freed: its table entry is then -1.
//
// The rows of a draft block all see each other. They are certain rows, but attention() gets a batch
// in which all have the last one's position (windows count from it). Other ops get the real
// positions.
//
// A batch may be padded to a bucket, so that a recorded step fits many batches. Padding comes last
// and is counted in `tokens`, `sequences` and `outputs`. Padded rows have token, cell, sequence and
// parent -1 and position 0. Padded sequences have rows, certain, first_row, context and slot 0.
// Padded outputs have row -1. For padded rows, ops write finite numbers or nothing (embed: zeros)
// and access no cell or slot. The reference and the CPU take unpadded batches only.
//
// A sequence whose first row is certain with position 0 starts from the zero state, so slots are
// never cleared. All arrays belong to the engine and stay unchanged while the step runs.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace braid {

inline constexpr int32_t kBlockTokens = 32;
inline constexpr int32_t kKvGroups = 2;  // state.h
inline constexpr int32_t kFewCells = 4096;

struct Batch {
  int32_t tokens = 0;     // T
  int32_t sequences = 0;  // S
  int32_t outputs = 0;    // rows whose logits are wanted
  // Upper bounds, part of the bucket. Most rows of a sequence; 0: no bound. With 1 (plain decoding)
  // a device omits the kernels for many rows of a sequence.
  int32_t most_rows = 0;
  // Most uncertain rows; 0: the batch has none.
  int32_t most_uncertain = 0;
  // Most certain rows; 0: no bound. With 1 (decoding, verification) a device omits some kernels.
  int32_t most_certain = 0;
  // Most cells that a row sees: kFewCells, or 0: no bound.
  int32_t most_cells = 0;
  // Block-sparse attention of prompts (sparse_prefill.h); 0: full attention.
  float sparse_threshold = 0;

  // [T]
  const int32_t* token = nullptr;
  const int32_t* position = nullptr;
  const int32_t* cell = nullptr;
  const int32_t* sequence = nullptr;  // index into the arrays of [S]
  const int32_t* parent = nullptr;    // -1 in certain rows and roots

  // [S]
  const int32_t* first_row = nullptr;
  const int32_t* rows = nullptr;     // all rows of the sequence in this batch
  const int32_t* certain = nullptr;  // how many of them are certain
  // Cells below the first uncertain row.
  const int32_t* context = nullptr;
  const int32_t* slot = nullptr;  // recurrent-state slot

  // [S, blocks_per_sequence]: physical block of each logical block. Each KV group (state.h) has a
  // table. Ops get the batch with the table of their group, other code that of group 0.
  const int32_t* block_table = nullptr;
  int32_t blocks_per_sequence = 0;
  int64_t group_stride = 0;  // from one group's table to the next
  // Always group 0's table: it locates a layer's sealed blocks (state.h).
  const int32_t* cold_table = nullptr;

  // [outputs]: batch rows, ascending
  const int32_t* output_row = nullptr;

  // [1]: of letters between ranks (letter.h); null: the batch has none.
  const int32_t* turn = nullptr;

  // For the batch with group 0's table.
  Batch of_group(int32_t group) const {
    Batch b = *this;
    b.block_table += group * group_stride;
    return b;
  }

  // Where the arrays lie in the memory of the other devices of a model (devices.h): so many bytes
  // after those of the first. [devices]; null: all read the same memory.
  const std::intptr_t* device_offset_bytes = nullptr;
  Batch on_device(int32_t device) const {
    if (device_offset_bytes == nullptr || device_offset_bytes[device] == 0) return *this;
    Batch b = *this;
    for (const int32_t** array :
         {&b.token, &b.position, &b.cell, &b.sequence, &b.parent, &b.first_row, &b.rows, &b.certain,
          &b.context, &b.slot, &b.block_table, &b.cold_table, &b.output_row, &b.turn})
      if (*array != nullptr)
        *array = reinterpret_cast<const int32_t*>(reinterpret_cast<std::intptr_t>(*array) +
                                                  device_offset_bytes[device]);
    return b;
  }

  // The batch row before row t; -1: the slot and cells have that position, or t is at position 0.
  int32_t row_before(int32_t t) const {
    const int32_t s = sequence[t];
    const int32_t own = t - first_row[s];
    if (own < certain[s]) return own > 0 ? t - 1 : -1;
    if (parent[t] >= 0) return parent[t];
    return certain[s] > 0 ? first_row[s] + certain[s] - 1 : -1;
  }
  // The half-open range of blocks whose last cell the sequence's certain rows write.
  struct Filled {
    int32_t begin;
    int32_t end;
  };
  Filled filled_blocks(int32_t s) const {
    return {(context[s] - certain[s]) / kBlockTokens, context[s] / kBlockTokens};
  }
  int32_t cell_end(int32_t s) const { return context[s] + rows[s] - certain[s]; }

  const int32_t* blocks_of(int32_t s) const {
    return block_table + int64_t{s} * blocks_per_sequence;
  }
  const int32_t* cold_blocks_of(int32_t s) const {
    return cold_table + int64_t{s} * blocks_per_sequence;
  }
};

}  // namespace braid
