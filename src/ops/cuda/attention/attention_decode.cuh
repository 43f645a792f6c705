// attention_decode.cuh -- what the warps of attention_decode.cu share: items, the ring in shared memory that
// cells come through, and the warps that fill it.
#pragma once

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/primitives/barriers.cuh"

namespace braid::cuda {
namespace decode_attention {

inline constexpr int kReaders = 8;
inline constexpr int kLoaders = 4;
inline constexpr int kReaderThreads = 32 * kReaders;
inline constexpr int kThreads = 32 * (kReaders + kLoaders);
inline constexpr int kQueries = 8;
inline constexpr int kStepCells = 16 * kReaders;
inline constexpr int kStepUnits = kStepCells / kBlockTokens;
// Units of the ring: K or V of one block of cells. Fewer where shared memory is small.
inline constexpr int kMostUnits = 12;
inline constexpr int kFewestUnits = kStepUnits;

// What all blocks know of a sequence.
struct Sequence {
  int first, rows;                  // of the batch
  int begin, end;                   // cells that some row sees
  int length, splits, split_begin;  // of its splits; where the first would begin
};

template <int kHeadDim>
struct DecodeShared {
  // Rows padded so that 8 rows of a matrix fall into different banks.
  static constexpr int kStride = kHeadDim + 8;
  static constexpr int kWeightStride = kStepCells + 8;
  static constexpr int kUnitBytes = kBlockTokens * kStride * 2;
  alignas(16) uint16_t q[kQueries * kStride];
  alignas(16) uint16_t key[kHeadDim];  // of the fresh row
  alignas(16) uint16_t value[kHeadDim];
  alignas(16) uint16_t p[kQueries * kWeightStride];
  alignas(16) float o[kQueries][kHeadDim + 4];
  alignas(16) float largest[kReaders][kQueries];
  alignas(16) float total[kReaders][kQueries];
  float top[kQueries];
  RowView view[kQueries];
  alignas(8) uint64_t full[kMostUnits];
  uint64_t empty[kMostUnits];
  int scratch[kThreads / 32];
  bool last;
};

struct Item {
  int s, first, rows;
  int kv_head, query0, queries;
  int tile, split, splits;
  int begin, end;  // cells of the split
  int stored;      // those below are in the cache: all, or all but the last
};

__device__ inline Item item_at(const AttentionArgs& a, const Sequence* sequences, const int* starts,
                               int index) {
  Item it;
  it.s = sequence_of(starts, a.batch.sequences, index);
  const Sequence q = sequences[it.s];
  it.first = q.first;
  it.rows = q.rows;
  it.splits = q.splits;
  it.kv_head = index - starts[it.s];
  it.split = it.tile = 0;
  const int queries = q.rows * a.group;
  if (q.splits > 1 || queries > kQueries) {
    const int own = it.kv_head;
    const int tiles = div_up(queries, kQueries);
    it.split = own % q.splits;
    it.tile = own / q.splits % tiles;
    it.kv_head = own / q.splits / tiles;
  }
  it.query0 = it.tile * kQueries;
  it.queries = min(kQueries, queries - it.query0);
  const int split_begin = q.split_begin + it.split * q.length;
  it.begin = max(q.begin, split_begin);
  it.end = split_begin + min(q.length, q.end - split_begin);
  it.stored = min(it.end, a.fresh ? q.end - 1 : q.end);
  return it;
}

// Positions in the ring, in the order in which units come.
struct Ring {
  uint32_t base;  // addresses in shared memory
  uint32_t full, empty;
  int units;
  int at = 0;
  int parity = 0;

  struct Place {
    int unit, parity;
  };
  __device__ Place ahead(int count) const {
    Place p{at + count, parity};  // at most twice around
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (p.unit < units) continue;
      p.unit -= units;
      p.parity ^= 1;
    }
    return p;
  }
  __device__ void advance(int count) {
    const Place p = ahead(count);
    at = p.unit;
    parity = p.parity;
  }
};

// Cells [low, high) of a block of the table; zeros in place of the others. `first`: of the block.
template <int kHeadDim>
__device__ void load_unit(uint32_t to, const std::byte* from, int first, int low, int high) {
  constexpr int kStride = DecodeShared<kHeadDim>::kStride;
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kRows = 32 / kPieces;  // that the warp copies at a time
  const int lane = threadIdx.x % 32;
  const int row = lane / kPieces;
  to += (row * kStride + lane % kPieces * 8) * 2;
  from += (row * kHeadDim + lane % kPieces * 8) * 2;
  if (first >= low && first + kBlockTokens <= high) {
#pragma unroll
    for (int r = 0; r < kBlockTokens; r += kRows) copy_async(to + r * kStride * 2, from + r * kHeadDim * 2);
  } else {
#pragma unroll 4
    for (int r = 0; r < kBlockTokens; r += kRows) {
      const int cell = first + r + row;
      const bool wanted = cell >= low && cell < high;
      copy_async_or_zero(to + r * kStride * 2, wanted ? from + r * kHeadDim * 2 : from, wanted);
    }
  }
}

// A loader warp: every kLoaders'th unit of the block's items.
template <int kHeadDim>
__device__ void load_items(const AttentionArgs& a, Ring ring, const Sequence* sequences, const int* starts,
                           int items) {
  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 - kReaders;
  int count = 0;
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const Item it = item_at(a, sequences, starts, index);
    const int32_t* table = table_of(a, it.s);
    const int base = it.begin / kBlockTokens * kBlockTokens;
    int blocks = 0;
    for (int step = base; step < it.end; step += kStepCells) {
      const int units = min(kStepUnits, div_up(it.end - step, kBlockTokens));
      const int known = (step - base) / kBlockTokens % 32;
      if (known == 0) blocks = table[min(step / kBlockTokens + lane, (it.end - 1) / kBlockTokens)];
      for (int i = 0; i < 2 * units; ++i, ++count, ring.advance(1)) {
        const bool key = i < units;
        const int unit = key ? i : i - units;
        const int64_t block = __shfl_sync(kFullWarp, blocks, known + unit);
        if (count % kLoaders != own) continue;
        wait_barrier(ring.empty + 8 * ring.at, ring.parity ^ 1);
        const int64_t row = pool_cell(a, block, it.kv_head);
        load_unit<kHeadDim>(ring.base + ring.at * DecodeShared<kHeadDim>::kUnitBytes,
                            (key ? a.kv.k : a.kv.v) + row * kHeadDim * 2, step + unit * kBlockTokens,
                            it.begin, it.stored);
        arrive_after_copies(ring.full + 8 * ring.at);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace decode_attention
}  // namespace braid::cuda
