// sparse_prefill.h -- block-sparse attention of prompts: an approximation, off by default.
//
// Positions are cut into blocks of 128. A query block reads the first key blocks, the nearest ones,
// and of the others those whose keys promise much attention. This is FlashPrefill (arXiv
// 2603.06199) with scores that keep their common scale, chosen for the heads of a KV head together.
//
// A row takes part if its layer has neither window nor first_cell and its sequence has at least
// kSparseRows rows in the batch, all certain. Let m be the query block of its position, n a key
// block, start(m) = sparse_window_start(m, tail), and over the rows i of this batch in m
//   mean[n]      = mean of the 128 keys of n, as the sequence's last row reads them
//   mass[h][m,n] = sum_i exp(scale * q_i[h] . mean[n])          for n < m
// The row sees the positions of n < m up to its own only if
//   n < kSparseSinks  or  n >= start(m)  or
//   mass[h][m,n] >= threshold * max over n' < m of mass[h][m,n']   for a head h of its KV head.
// A tiny threshold gives full attention, and on a CPU its bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/batch.h"
#include "ops/kv/kv_tail.h"

namespace braid {

inline constexpr int32_t kSparseBlock = 128;  // positions
inline constexpr int32_t kSparseSinks = 2;    // first key blocks, always read
inline constexpr int32_t kSparseNear = 3;     // key blocks before the own one, always read
// Fewer rows than this attend to everything: they gain little, and a prompt's last rows matter.
inline constexpr int32_t kSparseRows = 512;

// The key blocks from here on are read. `tail`: of a layer that seals blocks (state.h), else null:
// blocks that some row of m reads exactly are not chosen.
constexpr int32_t sparse_window_start(int32_t m, const KvTail* tail) {
  int32_t start = m - kSparseNear;
  if (tail != nullptr) start = std::min(start, tail->exact_from(m * kSparseBlock) / kSparseBlock);
  return std::max(start, 0);
}

// Whether the rows of sequence `s` take part in layers that have neither window nor first_cell.
inline bool sparse_sequence(const Batch& batch, int32_t s) {
  return batch.sparse_threshold > 0 && batch.rows[s] >= kSparseRows &&
         batch.certain[s] == batch.rows[s];
}

// Key blocks of 128 positions that query blocks have read, per KV head and layer, and those that
// they would have read without a threshold. Rows that take no part do not count.
struct SparseCounts {
  uint64_t read = 0;
  uint64_t all = 0;
};

}  // namespace braid
