// attention_tile_items.h -- items and sums of the two kernels for sequences with many rows.
//
// A tile is 128 packed queries of a KV head, 16 per warp, against 64 cells at a time. Scores and
// outputs are C fragments of m16n8k16 (mma.h): lane = 4 g + c has rows g and g + 8.
#pragma once

#include "ops/cuda/attention/attention_common.h"

namespace braid::cuda {

inline constexpr int kTileRows = 128;  // packed queries per tile
inline constexpr int kTileCells = 64;

struct TileItem {
  int s, kv_head;
  int first_row;        // of the sequence
  int query0, queries;  // of the tile
  int token0, tokens;   // tokens of these queries
  int split, splits;
  int64_t split_begin, split_end;  // cells; all cells if the row is not split
};

// Tiles of a sequence or band that takes part in sparse attention begin at its query blocks: the
// packed queries that the first tile lacks.
__device__ inline int tile_shift(const AttentionArgs& a, int s) {
  if (!takes_part(a.sparse, s)) return 0;
  return a.batch.position[a.batch.first_row[s]] % kSparseBlock * a.group % kTileRows;
}
__device__ inline int tiles_of(const AttentionArgs& a, int s, int rows) {
  return div_up(tile_shift(a, s) + rows * a.group, kTileRows);
}

__device__ inline int list_tile_items(const AttentionArgs& a, int* starts, int* scratch) {
  return list_items(a, starts, scratch, [&](int s) -> int2 {
    const int rows = a.batch.rows[s];
    const Span span = span_of(a, s);
    if (rows <= 0 || decodes(a, form_rows_of(a, s), span.end - span.begin)) return {0, 0};
    return {tiles_of(a, s, rows), splits_of(a, s, rows, span).count};
  });
}

__device__ inline TileItem item_at(const AttentionArgs& a, const int* starts, int index) {
  TileItem item;
  item.s = sequence_of(starts, a.batch.sequences, index);
  item.first_row = a.batch.first_row[item.s];
  const int rows = a.batch.rows[item.s];
  const Span span = span_of(a, item.s);
  const auto [length, splits] = splits_of(a, item.s, rows, span);
  const int tiles = tiles_of(a, item.s, rows);
  const int own = index - starts[item.s];
  item.splits = splits;
  item.split = own % splits;
  item.kv_head = own / splits % a.kv_heads;
  const int tile = tiles - 1 - own / splits / a.kv_heads;  // late tiles see most cells
  const int shift = tile_shift(a, item.s);
  item.query0 = max(0, tile * kTileRows - shift);
  item.queries = min((tile + 1) * kTileRows - shift, rows * a.group) - item.query0;
  item.token0 = item.query0 / a.group;
  item.tokens = (item.query0 + item.queries - 1) / a.group - item.token0 + 1;
  const int64_t cut = span.begin / length + item.split;
  item.split_begin = item.split == 0 ? 0 : cut * length;
  item.split_end = splits == 1 ? int64_t{1} << 40 : (cut + 1) * length;
  return item;
}

struct QueryPlace {
  int token, head;
};
__device__ inline QueryPlace place_of(const AttentionArgs& a, const TileItem& item, int query) {
  return {query / a.group, item.kv_head * a.group + query % a.group};
}

// `first`, `last`: the cells that some query sees.
__device__ inline Span seen_cells(const TileItem& item, int first, int last) {
  return {max(static_cast<int>(item.split_begin), first),
          static_cast<int>(min(static_cast<int64_t>(last) + 1, item.split_end))};
}

// The cells that an item reads: `listed` tiles of the key blocks in `list`, then all cells from
// `from` on, a multiple of the tile's cells. Every row sees all listed cells.
struct CellRoute {
  const uint16_t* list;
  int listed, from;
  __device__ int first_cell(int tile, int tile_cells) const {
    if (tile >= listed) return from + (tile - listed) * tile_cells;
    const int per_block = kSparseBlock / tile_cells;
    return list[tile / per_block] * kSparseBlock + tile % per_block * tile_cells;
  }
};
// `begin`: the first cell that some row of the item sees.
__device__ inline CellRoute route_of(const AttentionArgs& a, const TileItem& item, int begin,
                                     int tile_cells) {
  if (!takes_part(a.sparse, item.s)) return {nullptr, 0, begin / tile_cells * tile_cells};
  const int s = a.sparse.of_sequence == nullptr ? item.s : a.sparse.of_sequence[item.s];
  const int first = a.sparse.first_row[s];
  const int m = a.batch.position[item.first_row + item.token0] / kSparseBlock;
  const int64_t list =
      int64_t{first_query_block(first) + m - a.sparse.position[first] / kSparseBlock} * a.kv_heads +
      item.kv_head;
  return {a.sparse.lists + list * a.sparse.blocks,
          a.sparse.lengths[list] * (kSparseBlock / tile_cells),
          window_start(m, a.exact_from != nullptr, a.tail) * kSparseBlock};
}

// Rows g and g + 8 times their factors.
template <int kCount>
__device__ inline void rescale(float (&o)[kCount][4], const float (&factor)[2]) {
  if (!__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    o[n][0] *= factor[0];
    o[n][1] *= factor[0];
    o[n][2] *= factor[1];
    o[n][3] *= factor[1];
  }
}

__device__ inline void add_lanes(float (&total)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(kFullWarp, total[r], 1);
    total[r] += __shfl_xor_sync(kFullWarp, total[r], 2);
  }
}

// `rows`: of the sequence.
__device__ inline void keep_sum(const AttentionArgs& a, const TileItem& item, int rows, int query,
                                float largest, float total) {
  const QueryPlace place = place_of(a, item, query);
  const int64_t at = partial_index(a, item.s, place.head, item.split * rows + place.token);
  __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * at), float2{largest, total});
}

inline unsigned tile_blocks(const Context& context, const AttentionArgs& args) {
  // Without splits; below, the most that splits can add.
  const int64_t whole =
      (int64_t{args.batch.tokens} * args.group / kTileRows + args.batch.sequences) * args.kv_heads;
  const int64_t most = whole * kMostSplits;
  return static_cast<unsigned>(most < context.processors ? most : context.processors);
}

}  // namespace braid::cuda
