// batch.h -- everything that changes from step to step, in device memory.
//
// A batch is T rows (tokens) of S sequences. The rows of one sequence stand together, in this order:
//   certain rows    consecutive positions that follow what the sequence's slot and cells hold; they are kept
//   uncertain rows  drafted tokens, a forest: `parent` is the row (inside the batch) of the token before it,
//                   or -1 when it follows the last certain row (without those: what the slot holds)
// Parents come before children. In a chain each uncertain row's parent is the row before it.
//
// A row writes its K and V to its `cell`, an index into the sequence's cells: cell c lives in block
// block_table[s][c / kBlockTokens] at c % kBlockTokens. A certain row's cell is its position. Uncertain rows
// get the cells after `context[s]`, in row order, since siblings share a position. A certain row sees cells 0
// .. position. An uncertain row sees cells 0 .. context[s] - 1, its ancestors and itself. In a layer with a
// window a row sees of these only positions above its own - window. A block behind the windows of all rows
// may have been given back: then its entry of the block table is -1, and no op reads that entry.
//
// A draft block is rows of a sequence that all see each other: certain rows, but attention() gets the batch
// with the position of the last of them in all, so that each sees cells 0 .. last (in a layer with a window
// those above last - window). All other ops get the rows' own positions.
//
// A batch may be padded to a bucket, so that a recorded step fits many batches: rows, sequences and outputs
// at the end that are none. A padded row has token, cell, sequence and parent -1 and position 0; a padded
// sequence has rows and certain 0, first_row, context and slot 0, and any block table; a padded output has
// row -1. Ops write finite numbers or nothing for padded rows (embed writes zeros), and read and write no
// cell and no slot for them. `tokens`, `sequences` and `outputs` count them. The reference and the CPU take
// unpadded batches only.
//
// A sequence whose first row is certain with position 0 starts from the zero state: nobody clears slots.
// All arrays belong to the engine and stay unchanged while the step runs.
#pragma once

#include <cstdint>

namespace braid {

inline constexpr int32_t kBlockTokens = 32;
inline constexpr int32_t kKvGroups = 2;  // state.h
inline constexpr int32_t kFewCells = 4096;

struct Batch {
  int32_t tokens = 0;     // T
  int32_t sequences = 0;  // S
  int32_t outputs = 0;    // rows whose logits are wanted
  // A promise of the host, part of the bucket: no sequence has more rows than this. 0: none made. With 1
  // (plain decoding) a device leaves out the kernels that take many rows of a sequence.
  int32_t most_rows = 0;
  // The same of uncertain rows. 0: there are none.
  int32_t most_uncertain = 0;
  // The same of certain rows. 0: no promise made. With 1 (plain decoding and verification) a device leaves
  // out the kernels that take runs of certain rows.
  int32_t most_certain = 0;
  // The same of the cells that a row may see: kFewCells, or 0: no promise made.
  int32_t most_cells = 0;

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
  // Cells below the first uncertain row: positions held after the certain rows.
  const int32_t* context = nullptr;
  const int32_t* slot = nullptr;  // recurrent-state slot

  // [S, blocks_per_sequence]: physical block of each logical block. Each KV group (state.h) has a table: ops
  // get the batch with that of their layer's group, everybody else the one with group 0's.
  const int32_t* block_table = nullptr;
  int32_t blocks_per_sequence = 0;
  int64_t group_stride = 0;  // from one group's table to the next one's
  // Group 0's table whatever the group: where a layer's sealed blocks are (state.h).
  const int32_t* cold_table = nullptr;

  // [outputs]: batch rows, ascending
  const int32_t* output_row = nullptr;

  // Of the batch with group 0's table: what the layers of `group` get.
  Batch of_group(int32_t group) const {
    Batch b = *this;
    b.block_table += group * group_stride;
    return b;
  }

  // The row inside the batch that row t follows; -1: the position before t's is held, or there is none.
  int32_t row_before(int32_t t) const {
    const int32_t s = sequence[t];
    const int32_t own = t - first_row[s];
    if (own < certain[s]) return own > 0 ? t - 1 : -1;
    if (parent[t] >= 0) return parent[t];
    return certain[s] > 0 ? first_row[s] + certain[s] - 1 : -1;
  }
  // The blocks of a sequence whose last cell its certain rows write: the first, and the one after the last.
  struct Filled {
    int32_t begin;
    int32_t end;
  };
  Filled filled_blocks(int32_t s) const {
    return {(context[s] - certain[s]) / kBlockTokens, context[s] / kBlockTokens};
  }
  // After the cells that a sequence's rows write.
  int32_t cell_end(int32_t s) const { return context[s] + rows[s] - certain[s]; }

  const int32_t* blocks_of(int32_t s) const { return block_table + int64_t{s} * blocks_per_sequence; }
  const int32_t* cold_blocks_of(int32_t s) const { return cold_table + int64_t{s} * blocks_per_sequence; }
};

}  // namespace braid
