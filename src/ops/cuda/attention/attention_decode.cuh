// attention_decode.cuh -- items, the ring of cells, and the loader warps of attention_decode.cu.
#pragma once

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/barriers.cuh"

namespace braid::cuda {
namespace decode_attention {

inline constexpr int kReaders = 8;
inline constexpr int kLoaders = 4;
inline constexpr int kReaderThreads = 32 * kReaders;
inline constexpr int kWideColumns = kMostDecodeQueries / 8;  // eights of queries of a wide item
inline constexpr int kThreads = 32 * (kReaders + kLoaders);
inline constexpr int kStepCells = 16 * kReaders;
inline constexpr int kStepUnits = kStepCells / kBlockTokens;
// A unit is K or V of one block of cells. The ring is shorter where shared memory is small.
inline constexpr int kMostUnits = 12;
inline constexpr int kFewestUnits = kStepUnits;

// Blocks per run, the first run's first place, places per run and per share (sealed_shares.h).
struct SealedRuns {
  int blocks, start, places, share_length, lanes;
};

struct Sequence {
  int first, rows;                  // in the batch
  int begin, end;                   // cells that some row sees
  int length, splits, split_begin;  // of its splits
  SealedSpan sealed_span;
  SealedRuns sealed;
};

// kColumns: eights of queries per item. 1: at most one fresh row per sequence.
template <int kHeadDim, int kColumns>
struct DecodeShared {
  static constexpr int kQueries = 8 * kColumns;
  static constexpr int kRows = kColumns > 1 ? kMostDecodeRows : 1;
  // Padding puts 8 rows of a matrix into different banks.
  static constexpr int kStride = kHeadDim + 8;
  static constexpr int kWeightStride = kStepCells + 8;
  static constexpr int kUnitBytes = kBlockTokens * kStride * 2;
  alignas(16) uint16_t q[kQueries * kStride];
  alignas(16) uint16_t p[kQueries * kWeightStride];
  alignas(16) float norm[2][kHeadDim];  // weights of the norms of queries and keys
  union {
    struct {  // fresh rows, which are in the ring before `o` uses the space
      alignas(16) uint16_t key[kRows][kHeadDim];
      alignas(16) uint16_t value[kRows][kHeadDim];
    };
    alignas(16) float o[kQueries][kHeadDim + 4];
  };
  alignas(16) float largest[kQueries][kReaders];
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
  int begin, end;   // cells of the split
  int stored;       // end of the split's cells that are in the cache; the rest are fresh
  int fresh_begin;  // cell of the sequence's first row
};

// Eight queries each if the GPU runs all items at once, since norms and outputs cost time per
// query; else as wide as possible. At most one per arrival counter.
template <int kColumns>
__device__ int tiles_of(const AttentionArgs& a, int rows, int splits) {
  const int eights = div_up(rows * a.group, 8);
  if (kColumns == 1) return eights;
  const bool at_once = a.sharing * a.kv_heads * splits * eights <= a.processors;
  return at_once && (splits == 1 || eights <= a.group) ? eights : div_up(eights, kColumns);
}

template <int kColumns>
__device__ Item item_at(const AttentionArgs& a, const Sequence* sequences, const int* starts,
                        int index) {
  Item it;
  it.s = sequence_of(starts, a.batch.sequences, index);
  const Sequence q = sequences[it.s];
  it.first = q.first;
  it.rows = q.rows;
  it.splits = q.splits;
  it.kv_head = index - starts[it.s];
  it.split = it.tile = 0;
  it.queries = q.rows * a.group;
  int width = it.queries;
  if (q.splits > 1 || it.queries > 8) {
    // Tiles over the same cells are consecutive, for the L2 cache.
    const int tiles = tiles_of<kColumns>(a, q.rows, q.splits);
    width = div_up(div_up(it.queries, tiles), 8) * 8;
    const int own = it.kv_head / tiles;
    it.tile = it.kv_head - own * tiles;
    it.kv_head = own / q.splits;
    it.split = own - it.kv_head * q.splits;
  }
  it.query0 = it.tile * width;
  it.queries = min(width, it.queries - it.query0);
  const int split_begin = q.split_begin + it.split * q.length;
  it.begin = max(q.begin, split_begin);
  it.end = split_begin + min(q.length, q.end - split_begin);
  it.fresh_begin = q.end - q.rows;
  it.stored = a.fresh ? max(it.begin, min(it.end, it.fresh_begin)) : it.end;
  return it;
}

struct Ring {
  uint32_t base;  // base, full, empty: addresses in shared memory
  uint32_t full, empty;
  int units;
  int at = 0;
  int parity = 0;

  struct Place {
    int unit, parity;
  };
  __device__ Place ahead(int count) const {
    Place p{at + count, parity};  // wraps at most twice
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

// Cells outside [low, high) become zeros; the block begins at cell `first`.
template <int kHeadDim, int kStride>
__device__ void load_unit(uint32_t to, const std::byte* from, int first, int low, int high) {
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kRows = 32 / kPieces;  // that the warp copies at a time
  const int lane = threadIdx.x % 32;
  const int row = lane / kPieces;
  to += (row * kStride + lane % kPieces * 8) * 2;
  from += (row * kHeadDim + lane % kPieces * 8) * 2;
  if (first >= low && first + kBlockTokens <= high) {
#pragma unroll
    for (int r = 0; r < kBlockTokens; r += kRows)
      copy_async(to + r * kStride * 2, from + r * kHeadDim * 2);
  } else {
#pragma unroll 4
    for (int r = 0; r < kBlockTokens; r += kRows) {
      const int cell = first + r + row;
      const bool wanted = cell >= low && cell < high;
      copy_async_or_zero(to + r * kStride * 2, wanted ? from + r * kHeadDim * 2 : from, wanted);
    }
  }
}

template <int kHeadDim, int kColumns>
__device__ void load_items(const AttentionArgs& a, Ring ring, const Sequence* sequences,
                           const int* starts, int items) {
  using Shared = DecodeShared<kHeadDim, kColumns>;
  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 - kReaders;
  int count = 0;
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const Item it = item_at<kColumns>(a, sequences, starts, index);
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
        load_unit<kHeadDim, Shared::kStride>(ring.base + ring.at * Shared::kUnitBytes,
                                             (key ? a.kv.k : a.kv.v) + row * kHeadDim * 2,
                                             step + unit * kBlockTokens, it.begin, it.stored);
        arrive_after_copies(ring.full + 8 * ring.at);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace decode_attention
}  // namespace braid::cuda
