// attention_tiles.cu -- attention of sequences with many rows by mma.sync, for GPUs without wgmma,
// within 99 KB of shared memory.
//
// - Items are 128 packed queries (attention_tile_items.h), 8 warps of 16. Queries, O [16, Dh], S
//   [16, cells] and P stay in registers. Late tiles of a prompt see most cells and start first.
// - Two stages each of keys and values, of 32 cells (head dim 256) or 64. Barriers per stage let
//   warps drift apart by up to a tile: one warp's softmax overlaps another's products.
//
// Tried and slower: queries in shared memory with a block barrier per tile; one stage with three
// barriers; outputs stored from fragments. More: docs/design/cuda-kernels.md.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/attention/attention_tile_items.h"
#include "ops/cuda/barriers.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

template <int kHeadDim>
struct TileShared {
  static constexpr int kCells = kHeadDim == 256 ? 32 : 64;
  static constexpr int kStride = kHeadDim + 8;  // 8 rows cover all banks
  static constexpr int kStageBytes = kCells * kStride * 2;
  static constexpr int kSpaceStride = 128 + 4;  // of outputs, 128 dims at a time
  // Queries and outputs (16 rows per warp) reuse the memory of the stages.
  static constexpr int kQueryBytes = 16 * kStride * 2;
  static constexpr int kSpaceBytes = 16 * kSpaceStride * 4;
  static constexpr int kBytes =
      std::max(4 * kStageBytes, kWarps* std::max(kQueryBytes, kSpaceBytes));
  alignas(16) uint8_t memory[kBytes];  // two tiles of keys, two of values
  RowView view[kTileRows];             // per query
  uint64_t k_full[2], k_empty[2], v_full[2], v_empty[2];
  int2 plain[kWarps];  // cells of the span that all queries of a warp see
  int2 seen[kWarps];   // first and last cell that some query of a warp sees
  Span span[kWarps];   // visible cells of the item; each warp has its own copy
  int scratch[kWarps];
  int next;       // index of the next item
  TileItem item;  // here to save registers
};

// Cells outside [begin, end) become zeros.
template <int kHeadDim>
__device__ inline void copy_cells(uint32_t to, const std::byte* pool, const AttentionArgs& a,
                                  const TileItem& item, int tile, Span seen) {
  using Shared = TileShared<kHeadDim>;
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kStep = kThreads / kPieces;  // cells that the block copies at a time
  const int32_t* table = table_of(a, item.s);
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
  for (int half = 0; half < Shared::kCells / kBlockTokens; ++half) {
    const int base = tile + half * kBlockTokens;
    const int64_t block = table[min(max(base, seen.begin), seen.end - 1) / kBlockTokens];
    const std::byte* from =
        pool + ((pool_cell(a, block, item.kv_head) + first) * kPieces + piece) * int64_t{16};
#pragma unroll
    for (int r = 0; r < kBlockTokens; r += kStep) {
      const int cell = base + r + first;
      copy_async_or_zero(to + ((half * kBlockTokens + r + first) * Shared::kStride + piece * 8) * 2,
                         from + r * kHeadDim * 2, cell >= seen.begin && cell < seen.end);
    }
  }
}

// Bits [from, to) of 64; either may lie outside.
__device__ inline uint64_t bits_between(int from, int to) {
  const uint64_t below_to = to >= 64 ? ~uint64_t{0} : to <= 0 ? 0 : (uint64_t{1} << to) - 1;
  return from >= 64 ? 0 : from <= 0 ? below_to : below_to >> from << from;
}
// Of the 64 cells from `first` on (sees(), attention_common.h).
__device__ inline uint64_t seen_of_tile(const RowView& row, Span span, int first) {
  const int node = first - row.context;  // node of cell `first`
  uint64_t nodes = 0;
  if (node > -64 && node < 64) nodes = node >= 0 ? row.mask >> node : row.mask << -node;
  const uint64_t certain = bits_between(row.low + 1 - first, row.limit - first) &
                           ~bits_between(row.hole - first, row.hole + kBlockTokens - first);
  return (certain | nodes) & bits_between(span.begin - first, span.end - first);
}

template <int kHeadDim>
struct Softmax {
  static constexpr int kCells = TileShared<kHeadDim>::kCells;
  float o[kHeadDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};

  // Scores become exp2 of their distance to the largest so far; sums are rescaled.
  __device__ void take(float (&x)[kCells / 8][4], float scale) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) top = fmaxf(top, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
      const float next = fmaxf(largest[r], top * scale);
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
    rescale(o, factor);
  }
};

// 128 dims at a time through the warp's part of shared memory.
template <int kHeadDim>
__device__ void write_outputs(const AttentionArgs& a, const Softmax<kHeadDim>& sum, float* space,
                              const TileItem& item) {
  constexpr int kStride = TileShared<kHeadDim>::kSpaceStride;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int rows = a.batch.rows[item.s];
  const bool whole = item.splits == 1;
  float factor[2] = {whole ? 1.0f / sum.total[0] : 1.0f, whole ? 1.0f / sum.total[1] : 1.0f};
  if (whole && a.gates.per_head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = min(warp * 16 + g + 8 * r, item.queries - 1);
      const auto [token, head] = place_of(a, item, item.query0 + own);
      factor[r] *= head_factor(a.gates, item.first_row + token, head);
    }
  }
#pragma unroll
  for (int part = 0; part < kHeadDim / 128; ++part) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<float2*>(space + (g + 8 * r) * kStride + n * 8 + 2 * c) = {
            sum.o[part * 16 + n][2 * r] * factor[r], sum.o[part * 16 + n][2 * r + 1] * factor[r]};
      }
    }
    __syncwarp();
#pragma unroll 4
    for (int row = 0; row < 16; ++row) {
      const int query = item.query0 + warp * 16 + row;
      if (warp * 16 + row >= item.queries) break;
      const auto [token, head] = place_of(a, item, query);
      const float4 x = *reinterpret_cast<const float4*>(space + row * kStride + 4 * lane);
      if (whole) {
        if (stores_row(a, item.s, item.first_row + token))
          store_output(a, item.first_row + token, head, part * 128 + 4 * lane, x);
      } else {
        const int64_t at = partial_index(a, item.s, head, item.split * rows + token);
        __stcg(reinterpret_cast<float4*>(a.partials + at * kHeadDim + part * 128 + 4 * lane), x);
      }
    }
  }
  if (whole) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = item.query0 + warp * 16 + g + 8 * r;
    if (warp * 16 + g + 8 * r >= item.queries || c != 0) continue;
    keep_sum(a, item, rows, query, sum.largest[r], sum.total[r]);
  }
}

template <int kHeadDim, typename Number>
struct Tiles {
  using Shared = TileShared<kHeadDim>;
  static constexpr int kCells = Shared::kCells;
  static constexpr int kStride = Shared::kStride;
  const AttentionArgs& a;
  Shared& sh;
  int warp, lane;
  uint32_t tiles = 0;  // tiles of cells that this block has processed in all its items

  __device__ uint32_t stage(int which) const {
    return shared_address(sh.memory) + which * Shared::kStageBytes;
  }
  __device__ void release(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(shared_address(barrier));
  }

  __device__ void ask() const {
    if (threadIdx.x == 0) sh.next = static_cast<int>(gridDim.x) + atomicAdd(a.arrivals, 1);
  }

  // Ends with a block barrier, after which the stages are free for keys and values.
  __device__ void begin(const TileItem& item, uint32_t (&q)[kHeadDim / 16][4]) const {
    constexpr int kPieces = kHeadDim / 8;
    const uint32_t space = shared_address(sh.memory) + warp * Shared::kQueryBytes;
#pragma unroll 4
    for (int i = lane; i < 16 * kPieces; i += 32) {
      const int row = i / kPieces;
      const int own = warp * 16 + row;
      const auto [token, head] = place_of(a, item, item.query0 + min(own, item.queries - 1));
      const Act* from = static_cast<const Act*>(a.q.data) + (item.first_row + token) * a.q.stride +
                        int64_t{head} * kHeadDim + i % kPieces * 8;
      copy_async_or_zero(space + row * kStride * 2 + i % kPieces * 16, from, own < item.queries);
    }
    commit_copies();
    ask();
    const int query = item.query0 + min(warp * 16 + lane % 16, item.queries - 1);
    const RowView v = row_view(a, item.s, item.first_row + query / a.group);
    if (lane < 16) sh.view[warp * 16 + lane] = v;
    const int2 plain = {__reduce_max_sync(kFullWarp, v.low + 1),
                        __reduce_min_sync(kFullWarp, v.plain_end())};
    const int2 seen = {__reduce_min_sync(kFullWarp, first_seen(v)),
                       __reduce_max_sync(kFullWarp, last_seen(v))};
    if (threadIdx.x == 0) sh.item = item;
    if (lane == 0) sh.seen[warp] = seen;
    wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      load_matrices(q[step], space + (lane % 16 * kStride + lane / 16 * 8) * 2 + step * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (!std::is_same_v<Number, __half>) {
          const float2 pair = unpack(q[step][i], __half());
          q[step][i] = pack(pair.x, pair.y, Number());
        }
      }
    }
    __syncthreads();
    int first = 1 << 30, last = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      first = min(first, sh.seen[w].x);
      last = max(last, sh.seen[w].y);
    }
    if (lane == 0) {
      const Span span = seen_cells(item, first, last);
      sh.span[warp] = span;
      sh.plain[warp] = {max(plain.x, span.begin), min(plain.y, span.end)};
    }
    __syncwarp();
  }

  __device__ void copy_keys(uint32_t tile, int cells) const {
    wait_barrier(shared_address(sh.k_empty + tile % 2), tile / 2 % 2 ^ 1);
    copy_cells<kHeadDim>(stage(tile % 2), a.kv.k, a, sh.item, cells, sh.span[warp]);
    arrive_after_copies(shared_address(sh.k_full + tile % 2));
  }
  __device__ void copy_values(uint32_t tile, int cells) const {
    wait_barrier(shared_address(sh.v_empty + tile % 2), tile / 2 % 2 ^ 1);
    copy_cells<kHeadDim>(stage(2 + tile % 2), a.kv.v, a, sh.item, cells, sh.span[warp]);
    arrive_after_copies(shared_address(sh.v_full + tile % 2));
  }

  __device__ void multiply_keys(float (&x)[kCells / 8][4],
                                const uint32_t (&q)[kHeadDim / 16][4]) const {
    const uint32_t from =
        stage(tiles % 2) + ((lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kCells / 16; ++n) {
        uint32_t k[4];
        load_matrices(k, from + n * 16 * kStride * 2 + step * 32);
        mma(x[2 * n], q[step], k[0], k[1], Number());
        mma(x[2 * n + 1], q[step], k[2], k[3], Number());
      }
    }
  }
  __device__ void add_values(float (&o)[kHeadDim / 8][4],
                             const uint32_t (&p)[kCells / 16][4]) const {
    const uint32_t from =
        stage(2 + tiles % 2) + ((lane / 8 % 2 * 8 + lane % 8) * kStride + lane / 16 * 8) * 2;
#pragma unroll
    for (int step = 0; step < kCells / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t v[4];
        load_matrices_transposed(v, from + (step * 16 * kStride + n * 16) * 2);
        mma(o[2 * n], p[step], v[0], v[1], Number());
        mma(o[2 * n + 1], p[step], v[2], v[3], Number());
      }
    }
  }
  __device__ void mask(float (&x)[kCells / 8][4], int cells) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint64_t seen =
          seen_of_tile(sh.view[warp * 16 + lane / 4 + 8 * r], sh.span[warp], cells) >> lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if ((seen >> (n * 8 + i) & 1) == 0) x[n][2 * r + i] = -INFINITY;
      }
    }
  }

  __device__ void run(const TileItem& item) {
    uint32_t q[kHeadDim / 16][4];
    begin(item, q);
    Softmax<kHeadDim> sum;
    const CellRoute route = route_of(a, sh.item, sh.span[warp].begin, kCells);
    const int end = sh.span[warp].end;
    const int count = route.listed + max(div_up(end - route.from, kCells), 0);
    int cells = route.first_cell(0, kCells), next = 0;
    if (count > 0) {
      copy_keys(tiles, cells);
      copy_values(tiles, cells);
    }
    for (int tile = 0; tile < count; ++tile, ++tiles, cells = next) {
      const bool more = tile + 1 < count;
      if (more) {
        next = route.first_cell(tile + 1, kCells);
        copy_keys(tiles + 1, next);
      }
      wait_barrier(shared_address(sh.k_full + tiles % 2), tiles / 2 % 2);
      float x[kCells / 8][4];
      multiply_keys(x, q);
      release(sh.k_empty + tiles % 2);
      if (const int2 plain = sh.plain[warp]; cells < plain.x || cells + kCells > plain.y)
        mask(x, cells);
      sum.take(x, a.scale);
      uint32_t p[kCells / 16][4];
#pragma unroll
      for (int step = 0; step < kCells / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[step][i] =
              pack(x[2 * step + i / 2][i % 2 * 2], x[2 * step + i / 2][i % 2 * 2 + 1], Number());
      }
      if (more) copy_values(tiles + 1, next);
      wait_barrier(shared_address(sh.v_full + tiles % 2), tiles / 2 % 2);
      add_values(sum.o, p);
      release(sh.v_empty + tiles % 2);
    }
    __syncthreads();
    add_lanes(sum.total);
    write_outputs<kHeadDim>(
        a, sum, reinterpret_cast<float*>(sh.memory + warp * Shared::kSpaceBytes), sh.item);
  }
};

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(kThreads,
                             1) void tile_kernel(const __grid_constant__ AttentionArgs a) {
  using Shared = TileShared<kHeadDim>;
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<Shared*>(memory);
  int* starts = reinterpret_cast<int*>(&sh + 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared_address(sh.k_full + i), kThreads);
      init_barrier(shared_address(sh.v_full + i), kThreads);
      init_barrier(shared_address(sh.k_empty + i), kWarps * kWarpArrivals);
      init_barrier(shared_address(sh.v_empty + i), kWarps * kWarpArrivals);
    }
    publish_barriers();
  }
  wait_for_previous();
  const int items = list_tile_items(a, starts, sh.scratch);
  Tiles<kHeadDim, Number> tiles{a, sh, static_cast<int>(threadIdx.x) / 32,
                                static_cast<int>(threadIdx.x) % 32};
  const auto blocks = static_cast<int>(gridDim.x);
  int index = static_cast<int>(blockIdx.x);
  do {
    if (index < items) {
      tiles.run(item_at(a, starts, index));
    } else {
      tiles.ask();
    }
    __syncthreads();
    index = sh.next;
    __syncthreads();
  } while (index < items);
  // Each block makes one extra request; the very last request resets the counter.
  if (threadIdx.x == 0 && index == blocks + max(items, blocks) - 1) *a.arrivals = 0;
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  const size_t shared = sizeof(TileShared<kHeadDim>) + (args.batch.sequences + 1) * sizeof(int);
  if (shared > context.shared_bytes_per_block) return false;
  launch_early(context, tile_kernel<kHeadDim, Number>, dim3(tile_blocks(context, args)), kThreads,
               shared, args);
  return true;
}

}  // namespace

bool attention_tiles(Context& context, const AttentionArgs& args) {
  if (attention_wgmma(context, args)) return true;
  return launch_instance(args, [&]<int kHeadDim, typename Number>() {
    return launch<kHeadDim, Number>(context, args);
  });
}

}  // namespace braid::cuda
