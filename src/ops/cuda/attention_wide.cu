// attention_wide.cu -- attention of sequences with many rows on compute capability 9.0: what
// attention_tiles.cu does, with the warpgroup matrix instruction and copies by tensor map.
//
// Shape: items of 128 packed queries as there (attention_common.h), 64 cells at a time, two blocks of the
// table. Two warpgroups of 64 queries multiply; of a third, one warp fetches K and V tiles into two rings and
// takes items from a counter, and two prepare the next item (what its rows see, its queries) while the last
// is still multiplied.
//
// Shared memory (head dim 256): Q 2 x 32 KB, K and V 2 x 32 KB each, 16 KB for the way out. Q and K as
// [64 dims of the head][64 rows][64 dims], V as [32 cells][64 dims of the head][cell][64 dims], all with
// 128-byte swizzle (wgmma_shared.cuh). A warpgroup keeps O [64, Dh] and S [64, 64] in registers: the products
// of the next tile's keys and of this tile's values are under way together, and the softmax of the next tile
// runs under the latter. P goes from S to the operand of V without leaving the registers.
//
// Invariant: a row's sums go upwards over tiles of 64 cells counted from position 0, and cells it does not
// see add exact zeros, whatever else its tile of queries holds.
//
// Floor: flops as in attention_tiles.cu; keys and queries of a tile need all that shared memory can give (4
// KB per 32 clocks), so about 650 TFLOP/s. Reached on an H200, 27B: 2048 tokens 155 us (332 TFLOP/s), 2048
// after 6144 632 us (570), 8192 at once 1.66 ms (497); a tree of 22 after 32K 144 us. A tile of cells
// takes 1.7 us (650 TFLOP/s); what is lost is lost between items. Queries found by a division per row in the
// warp that loads them, and outputs that ask for their gates one by one, cost 25 us an item.
//
// Not done: K and V for two blocks at once (cluster), an item's outputs under the next item's products.
#include "ops/cuda/attention_common.h"
#include "ops/cuda/barriers.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/wgmma_shared.cuh"

#if !defined(__HIP_PLATFORM_AMD__)
#include <cuda.h>
#endif

namespace braid::cuda {

#if !defined(__HIP_PLATFORM_AMD__) && CUDART_VERSION >= 12050
namespace {

constexpr int kCells = 64;
constexpr int kGroupRows = 64;  // queries of a warpgroup
constexpr int kThreads = 384;
constexpr int kSpaceDims = 32;  // of O that leave together

// What a warpgroup knows of an item. tiles < 0: there is no more.
struct Prepared {
  TileItem item;
  int begin_cell, end_cell, tiles;
  int2 plain[4];  // of each warp: cells that every query sees
  RowView view[kGroupRows];
};

template <int kHeadDim>
struct WideShared {
  static constexpr int kChunks = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 256 ? 2 : 4;
  static constexpr int kTileBytes = kChunks * 64 * kCells * 2;
  uint8_t q[2][kGroupRows * kHeadDim * 2];
  uint8_t k[kStages][kTileBytes];
  uint8_t v[kStages][kTileBytes];
  float space[8][16 * kSpaceDims];
  Prepared prepared[2][2];  // [item % 2][warpgroup]
  int next[2];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t q_full[2], q_empty[2];
  uint64_t next_full[2], next_empty[2];
};

struct Maps {
  CUtensorMap k, v;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline void fence_shared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ inline void meet_group(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, 128;\n" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;\n" ::: "memory");
  }
}
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int row, int chunk, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];\n" ::"r"(to),
      "l"(&map), "r"(0), "r"(row), "r"(chunk), "r"(barrier)
      : "memory");
}
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Cells of an item's split that some query sees, and how many tiles they are. By a whole warp.
struct Cells {
  int begin, end, tiles;
};
__device__ inline Cells cells_of(const AttentionArgs& a, const TileItem& item) {
  int first = 1 << 30, last = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < item.tokens; i += 32) {
    const RowView v = row_view(a, item.s, item.first_row + item.token0 + i);
    first =
        min(first, v.low + 1 < v.limit ? v.low + 1 : v.context + __ffsll(static_cast<long long>(v.mask)) - 1);
    last = max(last, v.mask == 0 ? v.limit - 1 : v.context + 63 - __clzll(static_cast<long long>(v.mask)));
  }
  first = __reduce_min_sync(kFullWarp, first);
  last = __reduce_max_sync(kFullWarp, last);
  Cells c;
  c.begin = max(static_cast<int>(item.split_begin), first);
  c.end = static_cast<int>(min(static_cast<int64_t>(last) + 1, item.split_end));
  c.tiles = c.end > c.begin ? div_up(c.end - c.begin / kCells * kCells, kCells) : 0;
  return c;
}

// The first warp of the third warpgroup: items from a counter that all blocks share, and their K and V.
template <int kHeadDim>
struct Fetch {
  using Shared = WideShared<kHeadDim>;
  const AttentionArgs& a;
  const Maps& maps;
  Shared& sh;
  Ring<Shared::kStages> k, v;
  int given = 0;  // items

  // Says which item is the next one.
  __device__ void give(int index) {
    wait_barrier(shared_address(sh.next_empty + given % 2), given / 2 % 2 ^ 1);
    sh.next[given % 2] = index;
    arrive(shared_address(sh.next_full + given % 2));
    ++given;
  }
  // K and V of an item, by one lane, and the item after it, which the others learn some tiles before the end.
  __device__ int copy_tiles(const TileItem& item, const Cells& cells) {
    int next = 0;
    const int32_t* table = a.batch.block_table + static_cast<int64_t>(item.s) * a.batch.blocks_per_sequence;
    const int first = cells.begin / kBlockTokens, last = (cells.end - 1) / kBlockTokens;
    const auto row_of = [&](int tile, int half) {
      const int block = (cells.begin / kCells + tile) * (kCells / kBlockTokens) + half;
      return (table[min(max(block, first), last)] * a.kv_heads + item.kv_head) * kBlockTokens;
    };
    // Keys of a tile go before the values of the one before it, as they are wanted.
    int rows[2] = {0, 0}, old_rows[2];
    for (int tile = 0; tile <= cells.tiles; ++tile) {
      if (tile == max(cells.tiles - 2, 0)) {
        next = static_cast<int>(gridDim.x) + atomicAdd(a.arrivals, 1);
        give(next);
      }
      old_rows[0] = rows[0];
      old_rows[1] = rows[1];
      if (tile < cells.tiles) {
        rows[0] = row_of(tile, 0);
        rows[1] = row_of(tile, 1);
        const uint32_t full = shared_address(sh.k_full + k.stage);
        wait_barrier(shared_address(sh.k_empty + k.stage), k.parity ^ 1);
        arrive_expecting(full, Shared::kTileBytes);
#pragma unroll
        for (int box = 0; box < 2 * Shared::kChunks; ++box) {
          copy_box(shared_address(sh.k[k.stage]) + box / 2 * 8192 + box % 2 * 4096, maps.k, rows[box % 2],
                   box / 2, full);
        }
        k.advance();
      }
      if (tile > 0) {
        const uint32_t full = shared_address(sh.v_full + v.stage);
        wait_barrier(shared_address(sh.v_empty + v.stage), v.parity ^ 1);
        arrive_expecting(full, Shared::kTileBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          copy_box(shared_address(sh.v[v.stage]) + half * (Shared::kTileBytes / 2), maps.v, old_rows[half], 0,
                   full);
        }
        v.advance();
      }
    }
    return next;
  }
  __device__ void run(const int* starts, int items) {
    const bool leads = threadIdx.x % 32 == 0;
    int index = static_cast<int>(blockIdx.x);
    if (leads) give(index);
    if (index >= items) {  // nothing for this block, but it asks like the others
      if (leads) index = static_cast<int>(gridDim.x) + atomicAdd(a.arrivals, 1);
    }
    while (index < items) {
      const TileItem item = item_at(a, starts, index);
      const Cells cells = cells_of(a, item);
      if (leads) index = copy_tiles(item, cells);
      __syncwarp();
      index = __shfl_sync(kFullWarp, index, 0);
    }
    // Each block asks once in vain; the last of them all leaves the counter as it was.
    const int asked = max(items - static_cast<int>(gridDim.x), 0) + static_cast<int>(gridDim.x);
    if (leads && index == static_cast<int>(gridDim.x) + asked - 1) *a.arrivals = 0;
  }
};

// Queries of a warpgroup in the type of the cache; by one warp. Each lane finds two rows, all then copy them.
template <int kHeadDim, typename Number>
__device__ void load_queries(const AttentionArgs& a, const TileItem& item, int group, uint8_t* q) {
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kTogether = 32 / kPieces;  // rows
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kPieces;
  int64_t from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = item.query0 + min(group * kGroupRows + half * 32 + lane, item.queries - 1);
    from[half] = (item.first_row + query / a.group) * a.q.stride +
                 static_cast<int64_t>(item.kv_head * a.group + query % a.group) * kHeadDim;
  }
  const Act* rows = static_cast<const Act*>(a.q.data) + piece * 8;
  uint8_t* to = q + piece / 8 * (kGroupRows * 128);
  const int valid_rows = item.queries - group * kGroupRows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 8
    for (int first = 0; first < 32; first += kTogether) {
      const int row = half * 32 + first + lane / kPieces;
      const Act* at = rows + __shfl_sync(kFullWarp, from[half], row % 32);
      uint8_t* out = to + row * 128 + (piece % 8 ^ row % 8) * 16;
      if constexpr (std::is_same_v<Number, __half>) {
        copy16(shared_address(out), at, row < valid_rows);
      } else {
        uint4 x = {0, 0, 0, 0};
        if (row < valid_rows) x = *reinterpret_cast<const uint4*>(at);
        *reinterpret_cast<uint4*>(out) = convert(x, Number());
      }
    }
  }
  commit_copies();
  wait_copies<0>();
  fence_shared();
}

// A warp for each warpgroup that multiplies: what it needs to know of the next item, and its queries.
template <int kHeadDim, typename Number>
__device__ void prepare(const AttentionArgs& a, WideShared<kHeadDim>& sh, const int* starts, int items,
                        int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int n = 0;; ++n) {
    wait_barrier(shared_address(sh.next_full + n % 2), n / 2 % 2);
    const int index = sh.next[n % 2];
    __syncwarp();
    if (lane == 0) arrive(shared_address(sh.next_empty + n % 2));
    Prepared& to = sh.prepared[n % 2][group];
    TileItem item = {};
    Cells cells = {0, 0, -1};
    if (index < items) {
      item = item_at(a, starts, index);
      cells = cells_of(a, item);
    }
    // The item before has no more use for its queries, and the one before that is done.
    wait_barrier(shared_address(sh.q_empty + group), n % 2 ^ 1);
    if (lane == 0) {
      to.item = item;
      to.begin_cell = cells.begin;
      to.end_cell = cells.end;
      to.tiles = cells.tiles;
    }
    if (index < items) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = group * kGroupRows + half * 32 + lane;
        const int token = (item.query0 + min(own, item.queries - 1)) / a.group;
        const RowView v = row_view(a, item.s, item.first_row + token);
        to.view[half * 32 + lane] = v;
        const unsigned mask = lane < 16 ? 0xffffu : 0xffff0000u;
        const int begin = __reduce_max_sync(mask, v.low + 1);
        const int end = __reduce_min_sync(mask, v.limit);
        if (lane % 16 == 0) to.plain[half * 2 + lane / 16] = {begin, end};
      }
      load_queries<kHeadDim, Number>(a, item, group, sh.q[group]);
    }
    __syncwarp();
    if (lane == 0) arrive(shared_address(sh.q_full + group));
    if (index >= items) return;
  }
}

// This lane's of two rows: g and g + 8 of the warp's.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};

  // Scores become exp2 of their distance to the largest so far; `factor` brings what was summed up before to
  // the same scale.
  __device__ void take(float (&x)[kCells / 8][4], float scale, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) {
        top[n % 2] = fmaxf(top[n % 2], fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      }
      top[0] = fmaxf(top[0], top[1]);
      top[0] = fmaxf(top[0], __shfl_xor_sync(kFullWarp, top[0], 1));
      top[0] = fmaxf(top[0], __shfl_xor_sync(kFullWarp, top[0], 2));
      const float next = fmaxf(largest[r], top[0] * scale);
      factor[r] = largest[r] == next ? 1.0f : exp2_fast(largest[r] - next);
      largest[r] = next;
      const float shift = next == -INFINITY ? 0.0f : next;
      float sum[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& p = x[n][2 * r + i];
          p = exp2_fast(fmaf(p, scale, -shift));
          sum[i] += p;
        }
      }
      total[r] = fmaf(total[r], factor[r], sum[0] + sum[1]);
    }
  }
};

// What a warpgroup holds while it walks over an item's tiles of cells.
template <int kHeadDim, typename Number>
struct Walk {
  using Shared = WideShared<kHeadDim>;
  const AttentionArgs& a;
  Shared& sh;
  const Prepared& it;
  const int group;
  Ring<Shared::kStages>& k;
  Ring<Shared::kStages>& v;
  float (&o)[kHeadDim / 8][4];
  Softmax& sum;
  float x[kCells / 8][4];
  uint32_t p[kCells / 16][4];

  __device__ void release(uint64_t* barrier) const {
    if (threadIdx.x % 32 == 0) arrive(shared_address(barrier));
  }
  __device__ int first_of(int tile) const { return (it.begin_cell / kCells + tile) * kCells; }
  __device__ bool whole(int first) const { return first >= it.begin_cell && first + kCells <= it.end_cell; }

  __device__ void start_keys() {
    wait_barrier(shared_address(sh.k_full + k.stage), k.parity);
    fence_wide();
    const uint64_t q_at = wide_operand(shared_address(sh.q[group]));
    const uint64_t k_at = wide_operand(shared_address(sh.k[k.stage]));
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t offset = step / 4 * 8192 + step % 4 * 32;
      if (step == 0) {
        multiply_shared<0>(x, q_at, k_at, Number());
      } else {
        multiply_shared<1>(x, wide_operand_at(q_at, offset), wide_operand_at(k_at, offset), Number());
      }
    }
    commit_wide();
  }
  __device__ void start_values(int tile) {
    wait_barrier(shared_address(sh.v_full + v.stage), v.parity);
    const uint32_t from = shared_address(sh.v[v.stage]);
    const int first = first_of(tile);
    if (!whole(first)) clear_cells(sh.v[v.stage], first);
    fence_wide();
    const uint64_t v_at = wide_rows_operand(from, 4096);
#pragma unroll
    for (int step = 0; step < kCells / 16; ++step) {
      multiply_rows(o, p[step], wide_operand_at(v_at, step / 2 * (Shared::kTileBytes / 2) + step % 2 * 2048),
                    Number());
    }
    commit_wide();
  }
  // Values of cells that nobody sees may be anything, also no numbers. Both warpgroups write the same zeros.
  __device__ void clear_cells(uint8_t* values, int first) const {
    for (int i = static_cast<int>(threadIdx.x) % 128; i < kCells * Shared::kChunks * 8; i += 128) {
      const int piece = i % 8, cell = i / 8 % kCells, chunk = i / 8 / kCells;
      if (first + cell >= it.begin_cell && first + cell < it.end_cell) continue;
      *reinterpret_cast<uint4*>(values + cell / 32 * (Shared::kTileBytes / 2) + chunk * 4096 +
                                cell % 32 * 128 + piece * 16) = {0, 0, 0, 0};
    }
    fence_shared();
    meet_group(group);
  }

  // The keys of tile `tile` are multiplied: scores to weights.
  __device__ void take_scores(int tile, float (&factor)[2]) {
    hold_wide(x);
    release(sh.k_empty + k.stage);
    k.advance();
    if (tile == it.tiles - 1) release(sh.q_empty + group);
    const int first = first_of(tile);
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int2 plain = it.plain[warp];
    if (!(whole(first) && first >= plain.x && first + kCells <= plain.y)) mask_scores(first);
    sum.take(x, a.scale, factor);
  }
  __device__ void mask_scores(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowView view = it.view[row + 8 * r];
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int cell = first + n * 8 + lane % 4 * 2 + i;
          if (cell < it.begin_cell || cell >= it.end_cell || !sees(view, cell)) x[n][2 * r + i] = -INFINITY;
        }
      }
    }
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < kCells / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[step][i] = pack(x[2 * step + i / 2][i % 2 * 2], x[2 * step + i / 2][i % 2 * 2 + 1], Number());
    }
  }
  __device__ void finish_values() {
    wait_wide<0>();
    hold_wide(o);
    hold_wide(p);
    release(sh.v_empty + v.stage);
    v.advance();
  }

  __device__ void run() {
    float factor[2];
#pragma unroll
    for (int n = 0; n < kCells / 8; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;  // dead between items
    start_keys();
    wait_wide<0>();
    take_scores(0, factor);
    pack_weights();
    for (int tile = 1; tile < it.tiles; ++tile) {
      start_keys();
      start_values(tile - 1);
      wait_wide<1>();
      take_scores(tile, factor);
      finish_values();
      if (__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          o[n][0] *= factor[0];
          o[n][1] *= factor[0];
          o[n][2] *= factor[1];
          o[n][3] *= factor[1];
        }
      }
      pack_weights();
    }
    start_values(it.tiles - 1);
    finish_values();
  }
  // Nothing to do with any of them.
  __device__ void pass_by() {
    release(sh.q_empty + group);
    for (int tile = 0; tile < it.tiles; ++tile) {
      wait_barrier(shared_address(sh.k_full + k.stage), k.parity);
      release(sh.k_empty + k.stage);
      k.advance();
      wait_barrier(shared_address(sh.v_full + v.stage), v.parity);
      release(sh.v_empty + v.stage);
      v.advance();
    }
  }
};

// Where four rows of this lane leave to: a lane takes four dims of every fourth row.
struct Targets {
  const Act* gates[4];
  char* out[4];  // null: no such row
};
template <int kHeadDim>
__device__ inline Targets targets_of(const AttentionArgs& a, const TileItem& item, int row0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = lane % 8 * 4;
  const bool whole = item.splits == 1;
  const int size = !whole || a.o.type == DType::f32 ? 4 : 2;
  Targets t;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + 4 * i + lane / 8;
    const int query = item.query0 + min(row, item.queries - 1);
    const int token = query / a.group;
    const int head = item.kv_head * a.group + query - token * a.group;
    const int64_t to_row = item.first_row + token;
    // Without gates something that can be read.
    t.gates[i] =
        static_cast<const Act*>(a.gated ? a.qg.data : a.q.data) + dim +
        (a.gated ? to_row * a.qg.stride + (2 * head + 1) * kHeadDim : to_row * a.q.stride + head * kHeadDim);
    char* base = static_cast<char*>(a.o.data);
    int64_t at = to_row * a.o.stride + head * kHeadDim + dim;
    if (!whole) {
      base = reinterpret_cast<char*>(a.partials);
      at = partial_index(a, item.s, head, item.split * a.batch.rows[item.s] + token) * kHeadDim + dim;
    }
    t.out[i] = row < item.queries ? base + at * size : nullptr;
  }
  return t;
}

__device__ inline float4 gated(float4 x, uint2 gates, bool wanted) {
  const float2 low = unpack(gates.x, __half());
  const float2 high = unpack(gates.y, __half());
  const auto gate = [&](float g) {
    const float factor = __fdividef(1.0f, 1.0f + exp2_fast(-1.44269504f * g));
    return wanted ? factor : 1.0f;
  };
  return {x.x * gate(low.x), x.y * gate(low.y), x.z * gate(high.x), x.w * gate(high.y)};
}

// O of a warp's 16 queries, by 32 dims through `space` [16][32], pieces of four exchanged by row: divided,
// gated and stored, or kept as partial results.
template <int kHeadDim>
__device__ void write_outputs(const AttentionArgs& a, const TileItem& item, int row0,
                              const float (&o)[kHeadDim / 8][4], const Softmax& sum, float* space) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const bool whole = item.splits == 1;
  const bool with_gates = whole && a.gated;
  const bool floats = !whole || a.o.type == DType::f32;
  const float factor[2] = {whole ? __fdividef(1.0f, sum.total[0]) : 1.0f,
                           whole ? __fdividef(1.0f, sum.total[1]) : 1.0f};
  const Targets targets = targets_of<kHeadDim>(a, item, row0);
#pragma unroll
  for (int half = 0; half < kHeadDim / 64; ++half) {
    uint2 gates[2][4];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gates[part][i] = *reinterpret_cast<const uint2*>(targets.gates[i] + half * 64 + part * 32);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float* from = o[(half * 2 + part) * 4 + n] + 2 * r;
          *reinterpret_cast<float2*>(space + (g + 8 * r) * kSpaceDims + (2 * n + c / 2 ^ 2 * g % 8) * 4 +
                                     c % 2 * 2) = {from[0] * factor[r], from[1] * factor[r]};
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8;
        if (targets.out[i] == nullptr) continue;
        float4 y =
            *reinterpret_cast<const float4*>(space + row * kSpaceDims + (lane % 8 ^ 2 * (row % 8) % 8) * 4);
        y = gated(y, gates[part][i], with_gates);
        const int dim = half * 64 + part * 32;
        if (floats) {
          __stcg(reinterpret_cast<float4*>(targets.out[i] + dim * 4), y);
        } else {
          const Act out[4] = {to_act(y.x), to_act(y.y), to_act(y.z), to_act(y.w)};
          *reinterpret_cast<uint2*>(targets.out[i] + dim * 2) = *reinterpret_cast<const uint2*>(out);
        }
      }
    }
  }
  if (whole || c != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row0 + g + 8 * r >= item.queries) continue;
    const int query = item.query0 + row0 + g + 8 * r;
    const int64_t at = partial_index(a, item.s, item.kv_head * a.group + query % a.group,
                                     item.split * a.batch.rows[item.s] + query / a.group);
    __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * at), float2{sum.largest[r], sum.total[r]});
  }
}

// A warpgroup of 64 queries.
template <int kHeadDim, typename Number>
__device__ void multiply(const AttentionArgs& a, WideShared<kHeadDim>& sh, int group) {
  using Shared = WideShared<kHeadDim>;
  Ring<Shared::kStages> k, v;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp * 16;
  for (int n = 0;; ++n) {
    wait_barrier(shared_address(sh.q_full + group), n % 2);
    const Prepared& it = sh.prepared[n % 2][group];
    if (it.tiles < 0) return;
    float o[kHeadDim / 8][4];
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    Softmax sum;
    Walk<kHeadDim, Number> walk{a, sh, it, group, k, v, o, sum};
    if (it.tiles == 0 || group * kGroupRows >= it.item.queries) {
      walk.pass_by();
    } else {
      walk.run();
    }
    if (row0 >= it.item.queries) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum.total[r] += __shfl_xor_sync(kFullWarp, sum.total[r], 1);
      sum.total[r] += __shfl_xor_sync(kFullWarp, sum.total[r], 2);
    }
    write_outputs<kHeadDim>(a, it.item, row0, o, sum, sh.space[warp]);
  }
}

#endif

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(kThreads, 1) void wide_attention_kernel(const __grid_constant__ AttentionArgs a,
                                                                     const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WideShared<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  uint8_t* memory = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto& sh = *reinterpret_cast<Shared*>(memory);
  int* starts = reinterpret_cast<int*>(memory + sizeof(Shared));
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      init_barrier(shared_address(sh.k_full + i), 1);
      init_barrier(shared_address(sh.v_full + i), 1);
      init_barrier(shared_address(sh.k_empty + i), 8);
      init_barrier(shared_address(sh.v_empty + i), 8);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared_address(sh.q_full + i), 1);
      init_barrier(shared_address(sh.q_empty + i), 4);
      init_barrier(shared_address(sh.next_full + i), 1);
      init_barrier(shared_address(sh.next_empty + i), 2);
    }
    publish_barriers();
  }
  wait_for_previous();
  const int items = list_items(a, starts, sh.next, [&](int s) -> int2 {
    const int rows = a.batch.rows[s];
    if (rows <= 0 || few_rows(a, rows)) return {0, 0};
    return {div_up(rows * a.group, kTileRows), splits_of(a, rows, span_of(a, s)).count};
  });
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (warp == 8) Fetch<kHeadDim>{a, maps, sh}.run(starts, items);
    if (warp == 9 || warp == 10) prepare<kHeadDim, Number>(a, sh, starts, items, warp - 9);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    multiply<kHeadDim, Number>(a, sh, warp / 4);
  }
#endif
}

// The driver's function that describes a tensor to the copy engine; null if there is none.
using Encode = decltype(&cuTensorMapEncodeTiled);
Encode encode_function() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const bool ok = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &result) == cudaSuccess &&
                    result == cudaDriverEntryPointSuccess;
    if (!ok) cudaGetLastError();
    return ok ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return found;
}

// Cells of a pool as [64 dims of the head][cell of a block and head][64 dims], copied `chunks` x 32 cells at
// a time.
bool describe(CUtensorMap& map, const std::byte* cells, const KvLayer& kv, int chunks) {
  const Encode encode = encode_function();
  if (encode == nullptr) return false;
  const auto head_dim = static_cast<uint64_t>(kv.shape.head_dim);
  const uint64_t rows =
      static_cast<uint64_t>(kv.blocks) * static_cast<uint64_t>(kv.shape.kv_heads) * kBlockTokens;
  const uint64_t sizes[3] = {64, rows, head_dim / 64};
  const uint64_t strides[2] = {head_dim * 2, 128};
  const uint32_t box[3] = {64, kBlockTokens, static_cast<uint32_t>(chunks)};
  const uint32_t steps[3] = {1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<std::byte*>(cells), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  const size_t shared = sizeof(WideShared<kHeadDim>) + 1024 + (args.batch.sequences + 1) * sizeof(int);
  Maps maps;
  if (shared > context.shared_bytes_per_block || !describe(maps.k, args.kv.k, args.kv, 1) ||
      !describe(maps.v, args.kv.v, args.kv, kHeadDim / 64))
    return false;
  // Items of a batch without splits, and what splits can add.
  const int64_t whole =
      (int64_t{args.batch.tokens} * args.group / kTileRows + args.batch.sequences) * args.kv_heads;
  const int64_t most = whole * kMostSplits;
  const int64_t blocks = most < context.processors ? most : context.processors;
  launch_early(context, wide_attention_kernel<kHeadDim, Number>, dim3(static_cast<unsigned>(blocks)),
               kThreads, shared, args, maps);
  return true;
}

}  // namespace

bool attention_wide(Context& context, const AttentionArgs& args) {
  if (context.capability != 90) return false;
  const bool half = args.kv.shape.k_format == KvFormat::f16;
  switch (args.head_dim) {
    case 256:
      return half ? launch<256, __half>(context, args) : launch<256, __nv_bfloat16>(context, args);
    case 128:
      return half ? launch<128, __half>(context, args) : launch<128, __nv_bfloat16>(context, args);
    default:
      return false;
  }
}

#else

bool attention_wide(Context&, const AttentionArgs&) { return false; }

#endif

}  // namespace braid::cuda
