// ref_hidden.cpp -- hidden rows of previous positions, and their ring: the reference.
#include <algorithm>

#include "ops/ref_ops.h"

namespace braid {

void RefOps::hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) {
  BRAID_CHECK(y.cols == ring.width && y.rows >= batch.tokens && (!x || x.cols == y.cols));
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const int32_t before = x ? batch.row_before(t) : -1;
    const int32_t held = batch.position[t] - 1;
    if (before >= 0) {
      std::copy_n(x.f32(before), y.cols, y.f32(t));
    } else if (held >= 0) {
      std::copy_n(ring.row(batch.slot[batch.sequence[t]], held), y.cols, y.f32(t));
    } else {
      std::fill_n(y.f32(t), y.cols, 0.0f);
    }
  }
}

void RefOps::hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) {
  BRAID_CHECK(x.cols == ring.width && x.rows >= batch.tokens);
  for (int32_t t = 0; t < batch.tokens; ++t)  // cells of a sequence ascend
    std::copy_n(x.f32(t), x.cols, ring.row(batch.slot[batch.sequence[t]], batch.cell[t]));
}

void RefOps::hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                         const Batch& batch) {
  for (const CellMove& move : moves) {
    BRAID_CHECK(move.from > move.to && move.to >= 0);
    const int32_t slot = batch.slot[move.sequence];
    std::copy_n(ring.row(slot, move.from), ring.width, ring.row(slot, move.to));
  }
}

}  // namespace braid
