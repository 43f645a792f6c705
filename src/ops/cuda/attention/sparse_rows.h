// sparse_rows.h -- numbers of sparse attention that kernels derive from a batch (sparse_choice.h).
#pragma once

#include "ops/cuda/attention/row_bands.h"
#include "ops/sparse_prefill.h"

namespace braid::cuda {

// The rows of whole sequences, and their choice. Without lists no row takes part.
struct SparseArgs {
  const uint16_t* lists = nullptr;
  const int32_t* lengths = nullptr;
  int blocks = 0;  // from list to list
  const int32_t* position = nullptr;
  const int32_t* first_row = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* certain = nullptr;
  const int32_t* of_sequence = nullptr;  // of a band, -1 if it is empty; null: no bands
  int sequences = 0;
};

BRAID_BOTH inline bool takes_part(int32_t rows, int32_t certain) {
  return rows >= kSparseRows && rows == certain;
}
BRAID_BOTH inline bool takes_part(const SparseArgs& a, int32_t s) {
  if (a.lists == nullptr) return false;
  if (a.of_sequence != nullptr) s = a.of_sequence[s];
  return s >= 0 && takes_part(a.rows[s], a.certain[s]);
}

// Sequences that take part have different slots, as each has at least kSparseRows rows.
BRAID_BOTH inline int32_t sparse_slot(int32_t first_row) { return first_row / kSparseRows; }
// The number of a sequence's first query block. A sequence of r rows has at most r / 128 + 2 query
// blocks, and the next one's rows begin at least r later: its slot is greater, too.
BRAID_BOTH inline int32_t first_query_block(int32_t first_row) {
  return first_row / kSparseBlock + 2 * sparse_slot(first_row);
}
constexpr int32_t most_sparse_slots(int32_t tokens, int32_t sequences) {
  return sequences == 1 ? 1 : tokens / kSparseRows;
}
constexpr int32_t most_query_blocks(int32_t tokens) {
  return tokens / kSparseBlock + 2 * (tokens / kSparseRows) + 2;
}

// Key blocks from here on are read (sparse_window_start). `seals`: whether the layer seals blocks.
BRAID_BOTH inline int32_t window_start(int32_t m, bool seals, const KvTail& tail) {
  int32_t start = m - kSparseNear;
  if (seals) {
    start = lesser(start, border_of(tail, m * kSparseBlock) / (kSparseBlock / kBlockTokens));
  }
  return greater(start, 0);
}

}  // namespace braid::cuda
