// copy.cpp -- ops that only move bytes: rows, cells, slots, blocks.

#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"

namespace braid {
namespace {

constexpr double kNsPerByte = 0.1;

}  // namespace

void CpuOps::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  BRAID_CHECK(y.cols == x.cols && y.rows >= count);
  const size_t row_bytes = static_cast<size_t>(x.cols) * sizeof(float);
  split(count, kNsPerByte * static_cast<double>(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t row = rows == nullptr ? i : rows[i];
      BRAID_CHECK(row >= 0 && row < x.rows);
      std::memcpy(y.f32(i), x.f32(row), row_bytes);
    }
  });
}

// Moves run in the given order: a move may overwrite a cell that an earlier move has read.
void CpuOps::kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) {
  const size_t k_bytes = static_cast<size_t>(kv_row_bytes(kv.shape.k_format, kv.shape.head_dim));
  const size_t v_bytes = static_cast<size_t>(kv_row_bytes(kv.shape.v_format, kv.shape.head_dim));
  for (const CellMove& move : moves) {
    BRAID_CHECK(move.from > move.to && move.to >= 0 &&
                move.from / kBlockTokens < batch.blocks_per_sequence);
    const int32_t* blocks = batch.blocks_of(move.sequence);
    const int32_t from = blocks[move.from / kBlockTokens], to = blocks[move.to / kBlockTokens];
    BRAID_CHECK(from >= 0 && from < kv.blocks && to >= 0 && to < kv.blocks);
    for (int32_t h = 0; h < kv.shape.kv_heads; h++) {
      std::memcpy(kv.k_row(to, h, move.to % kBlockTokens),
                  kv.k_row(from, h, move.from % kBlockTokens), k_bytes);
      std::memcpy(kv.v_row(to, h, move.to % kBlockTokens),
                  kv.v_row(from, h, move.from % kBlockTokens), v_bytes);
    }
  }
}

void CpuOps::hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) {
  BRAID_CHECK(y.cols == ring.width && y.rows >= batch.tokens && (!x || x.cols == y.cols));
  const size_t row_bytes = static_cast<size_t>(y.cols) * sizeof(float);
  split(batch.tokens, kNsPerByte * static_cast<double>(row_bytes), [&](int64_t begin, int64_t end) {
    for (auto t = static_cast<int32_t>(begin); t < end; t++) {
      const int32_t before = x ? batch.row_before(t) : -1, held = batch.position[t] - 1;
      if (before < 0 && held < 0) {
        std::memset(y.f32(t), 0, row_bytes);
      } else {
        std::memcpy(y.f32(t),
                    before >= 0 ? x.f32(before) : ring.row(batch.slot[batch.sequence[t]], held),
                    row_bytes);
      }
    }
  });
}

void CpuOps::hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) {
  BRAID_CHECK(x.cols == ring.width && x.rows >= batch.tokens);
  for (int32_t t = 0; t < batch.tokens; t++) {
    const int32_t s = batch.sequence[t];
    if (batch.cell[t] + ring.cells < batch.cell_end(s)) continue;  // a later row uses its place
    std::memcpy(ring.row(batch.slot[s], batch.cell[t]), x.f32(t),
                static_cast<size_t>(x.cols) * sizeof(float));
  }
}

void CpuOps::hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                         const Batch& batch) {
  for (const CellMove& move : moves) {
    BRAID_CHECK(move.from > move.to && move.to >= 0);
    const int32_t slot = batch.slot[move.sequence];
    std::memcpy(ring.row(slot, move.to), ring.row(slot, move.from),
                static_cast<size_t>(ring.width) * sizeof(float));
  }
}

void CpuOps::state_copy(float* to, const float* from, int64_t elements) {
  if (to == from) return;
  constexpr int64_t kPiece = 4096;
  split((elements + kPiece - 1) / kPiece, kNsPerByte * kPiece * sizeof(float),
        [&](int64_t begin, int64_t end) {
          const int64_t first = begin * kPiece, last = std::min(elements, end * kPiece);
          std::memcpy(to + first, from + first, static_cast<size_t>(last - first) * sizeof(float));
        });
}

void CpuOps::block_copy(const KvLayer& kv, int32_t dst, int32_t src) {
  BRAID_CHECK(dst >= 0 && dst < kv.blocks && src >= 0 && src < kv.blocks);
  if (dst == src) return;
  const int64_t k_bytes = kv.shape.k_block_bytes(), v_bytes = kv.shape.v_block_bytes();
  std::memcpy(kv.k + dst * k_bytes, kv.k + src * k_bytes, static_cast<size_t>(k_bytes));
  std::memcpy(kv.v + dst * v_bytes, kv.v + src * v_bytes, static_cast<size_t>(v_bytes));
}

}  // namespace braid
