// attention_wgmma.cu -- attention_tiles.cu for compute capability 9.0, with wgmma and tensor maps.
//
// - Two warpgroups of 64 queries multiply, 64 cells at a time. In a third, one warp copies K and V
//   tiles into two rings and takes items from a counter; two prepare the next item (visible cells,
//   queries).
// - Shared memory: Q and K are [64 dims of the head][64 rows][64 dims], V is [32 cells][64 dims of
//   the head][cell][64 dims], with 128-byte swizzle (wgmma.cuh).
// - O, S and P stay in registers. Products of the next tile's keys and of this tile's values run
//   together; the next tile's softmax overlaps the latter.
//
// Invariant: a row's sums go upwards over tiles of 64 cells counted from position 0. Invisible
// cells add exact zeros, so a result does not depend on the other queries of the tile.
//
// Keys and queries take all shared memory bandwidth (4 KB per 32 clocks). Preparing row views
// earlier or prefetching gates gains nothing (docs/design/cuda-kernels.md).
#include <cuda.h>

#include "ops/cuda/attention/attention_wgmma.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {

#if CUDART_VERSION >= 12050
namespace {

using namespace wgmma_attention;

constexpr int kThreads = 384;

struct Maps {
  CUtensorMap k, v;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int row, int chunk,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4}], "
      "[%5];\n" ::"r"(to),
      "l"(&map), "r"(0), "r"(row), "r"(chunk), "r"(barrier)
      : "memory");
}

// Visible cells of an item's split, and their tiles. A whole warp calls cells_of.
struct Cells {
  int begin, end, tiles;
  CellRoute route;
};
__device__ inline Cells cells_of(const AttentionArgs& a, const TileItem& item) {
  int first = 1 << 30, last = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < item.tokens; i += 32) {
    const RowView v = row_view(a, item.s, item.first_row + item.token0 + i);
    first = min(first, first_seen(v));
    last = max(last, last_seen(v));
  }
  first = __reduce_min_sync(kFullWarp, first);
  last = __reduce_max_sync(kFullWarp, last);
  const Span seen = seen_cells(item, first, last);
  const CellRoute route = route_of(a, item, seen.begin, kTileCells);
  const int tiles =
      seen.end > seen.begin ? route.listed + div_up(seen.end - route.from, kTileCells) : 0;
  return {seen.begin, seen.end, tiles, route};
}

template <int kHeadDim>
struct Fetch {
  using Shared = WgmmaShared<kHeadDim>;
  const AttentionArgs& a;
  const Maps& maps;
  Shared& sh;
  StagePlace k, v;
  int given = 0;  // items handed out

  __device__ void give(int index) {
    wait_barrier(shared_address(sh.next_empty + given % 2), given / 2 % 2 ^ 1);
    sh.next[given % 2] = index;
    arrive(shared_address(sh.next_full + given % 2));
    ++given;
  }
  // By one lane. Publishes the next item some tiles before the end, and returns it.
  __device__ int copy_tiles(const TileItem& item, const Cells& cells) {
    int next = 0;
    const int32_t* table = table_of(a, item.s);
    const int first = cells.begin / kBlockTokens, last = (cells.end - 1) / kBlockTokens;
    const auto row_of = [&](int tile, int half) {
      const int block = cells.route.first_cell(tile, kTileCells) / kBlockTokens + half;
      return (table[min(max(block, first), last)] * a.kv_heads + item.kv_head) * kBlockTokens;
    };
    // In the order of use: keys of a tile before the values of the previous one.
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
          copy_box(shared_address(sh.k[k.stage]) + box / 2 * 8192 + box % 2 * 4096, maps.k,
                   rows[box % 2], box / 2, full);
        }
        k.advance(Shared::kStages);
      }
      if (tile > 0) {
        const uint32_t full = shared_address(sh.v_full + v.stage);
        wait_barrier(shared_address(sh.v_empty + v.stage), v.parity ^ 1);
        arrive_expecting(full, Shared::kTileBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          copy_box(shared_address(sh.v[v.stage]) + half * (Shared::kTileBytes / 2), maps.v,
                   old_rows[half], 0, full);
        }
        v.advance(Shared::kStages);
      }
    }
    return next;
  }
  __device__ void run(const int* starts, int items) {
    const bool leads = threadIdx.x % 32 == 0;
    int index = static_cast<int>(blockIdx.x);
    if (leads) give(index);
    if (index >= items) {  // a block without an item also makes its request
      if (leads) index = static_cast<int>(gridDim.x) + atomicAdd(a.arrivals, 1);
    }
    while (index < items) {
      const TileItem item = item_at(a, starts, index);
      const Cells cells = cells_of(a, item);
      if (leads) index = copy_tiles(item, cells);
      __syncwarp();
      index = __shfl_sync(kFullWarp, index, 0);
    }
    // Each block makes one extra request; the very last request resets the counter.
    const int asked = max(items - static_cast<int>(gridDim.x), 0) + static_cast<int>(gridDim.x);
    if (leads && index == static_cast<int>(gridDim.x) + asked - 1) *a.arrivals = 0;
  }
};

// By one warp: each lane locates two rows, then all lanes copy each row.
template <int kHeadDim, typename Number>
__device__ void load_queries(const AttentionArgs& a, const TileItem& item, int group, uint8_t* q) {
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kTogether = 32 / kPieces;  // rows at a time
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kPieces;
  int64_t from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = item.query0 + min(group * kGroupRows + half * 32 + lane, item.queries - 1);
    const auto [token, head] = place_of(a, item, query);
    from[half] = (item.first_row + token) * a.q.stride + int64_t{head} * kHeadDim;
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
        copy_async_or_zero(shared_address(out), at, row < valid_rows);
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

template <int kHeadDim, typename Number>
__device__ void prepare(const AttentionArgs& a, WgmmaShared<kHeadDim>& sh, const int* starts,
                        int items, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int n = 0;; ++n) {
    wait_barrier(shared_address(sh.next_full + n % 2), n / 2 % 2);
    const int index = sh.next[n % 2];
    __syncwarp();
    if (lane == 0) arrive(shared_address(sh.next_empty + n % 2));
    Prepared& to = sh.prepared[n % 2][group];
    TileItem item = {};
    Cells cells = {0, 0, -1, {}};
    if (index < items) {
      item = item_at(a, starts, index);
      cells = cells_of(a, item);
    }
    // The previous item has finished with its queries, the one before it with `prepared`.
    wait_barrier(shared_address(sh.q_empty + group), n % 2 ^ 1);
    if (lane == 0) {
      to.item = item;
      to.begin_cell = cells.begin;
      to.end_cell = cells.end;
      to.tiles = cells.tiles;
      to.listed = cells.route.listed;
      to.from = cells.route.from;
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
        const int end = __reduce_min_sync(mask, v.plain_end());
        if (lane % 16 == 0) to.plain[half * 2 + lane / 16] = {begin, end};
      }
      load_queries<kHeadDim, Number>(a, item, group, sh.q[group]);
    }
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(shared_address(sh.q_full + group));
    if (index >= items) return;
  }
}

#endif

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(kThreads,
                             1) void attention_wgmma_kernel(const __grid_constant__ AttentionArgs a,
                                                            const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WgmmaShared<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  uint8_t* memory = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto& sh = *reinterpret_cast<Shared*>(memory);
  int* starts = reinterpret_cast<int*>(memory + sizeof(Shared));
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      init_barrier(shared_address(sh.k_full + i), 1);
      init_barrier(shared_address(sh.v_full + i), 1);
      init_barrier(shared_address(sh.k_empty + i), 8 * kWarpArrivals);
      init_barrier(shared_address(sh.v_empty + i), 8 * kWarpArrivals);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared_address(sh.q_full + i), kWarpArrivals);
      init_barrier(shared_address(sh.q_empty + i), 4 * kWarpArrivals);
      init_barrier(shared_address(sh.next_full + i), 1);
      init_barrier(shared_address(sh.next_empty + i), 2);
    }
    publish_barriers();
  }
  wait_for_previous();
  const int items = list_tile_items(a, starts, sh.next);
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

// Null if the driver has no tensor maps.
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

// [64 dims of the head][cell of a block and head][64 dims], by `chunks` x 32 cells.
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
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<std::byte*>(cells), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  const size_t shared =
      sizeof(WgmmaShared<kHeadDim>) + 1024 + (args.batch.sequences + 1) * sizeof(int);
  Maps maps;
  if (shared > context.shared_bytes_per_block || !describe(maps.k, args.kv.k, args.kv, 1) ||
      !describe(maps.v, args.kv.v, args.kv, kHeadDim / 64))
    return false;
  launch_early(context, attention_wgmma_kernel<kHeadDim, Number>, dim3(tile_blocks(context, args)),
               kThreads, shared, args, maps);
  return true;
}

}  // namespace

bool attention_wgmma(Context& context, const AttentionArgs& args) {
  if (!context.has_wgmma) return false;
  return launch_instance(args, [&]<int kHeadDim, typename Number>() {
    return launch<kHeadDim, Number>(context, args);
  });
}

#else

bool attention_wgmma(Context&, const AttentionArgs&) { return false; }

#endif

}  // namespace braid::cuda
