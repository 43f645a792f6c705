// attention_tiles.cu -- attention of sequences with many rows (prompts, trees): 128 queries against 64 cells
// at a time on tensor cores.
//
// Flops 4 Dh per query head and visible cell; 2048 new tokens of 27B (24 heads of 256): 51 GFLOP a layer, 65
// us at 790 TFLOP/s; bytes are small beside it (K and V of a tile serve 128 queries).
//
// Shape: queries of a KV head are packed token by token (query = token * group + head), so a K/V tile serves
// the whole group and a short run still fills the tile. 8 warps of 16 queries; O [16, Dh] and S [16, 64] in
// registers as m16n8k16 accumulators, P goes from one to the other's operand without leaving them. K and V
// tiles of 64 cells (two blocks of the table) come by cp.async in two stages, one ahead. Tiles that every
// query sees skip the mask; late tiles of a prompt start first. Few rows over a long context are cut into
// splits like decoding (attention_common.h).
//
// Compute capability 9.0 has a form of its own for the same items, attention_wgmma.cu, which is tried first.
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#include "ops/cuda/attention/attention_tile_items.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;

template <int kHeadDim>
struct TileShared {
  static constexpr int kStride = kHeadDim + 8;
  alignas(16) uint16_t q[kTileRows * kStride];
  struct Stage {
    alignas(16) uint16_t k[kTileCells * kStride];
    alignas(16) uint16_t v[kTileCells * kStride];
  };
  Stage stage[2];
  RowView view[kTileRows];  // by token of the tile
  int scratch[kWarps];
  int plain_begin, plain_end;  // cells that every query sees
  int first_cell, last_cell;   // that some query sees
};

// K and V of 64 cells; cells outside [begin, end) become zeros.
template <int kHeadDim>
__device__ void load_cells(typename TileShared<kHeadDim>::Stage& to, const AttentionArgs& a, int s,
                           int kv_head, int tile, int begin, int end) {
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kStep = 32 * kWarps / kPieces;  // rows that the block copies at a time
  const int32_t* table = table_of(a, s);
  const int row0 = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
  for (int half = 0; half < kTileCells / kBlockTokens; ++half) {
    const int first = tile + half * kBlockTokens;
    const int64_t block = table[min(max(first, begin), end - 1) / kBlockTokens];
    const int64_t base = pool_cell(a, block, kv_head) * kHeadDim * 2 + piece * 16;
#pragma unroll
    for (int r = 0; r < kBlockTokens; r += kStep) {
      const int row = r + row0;
      const bool valid = first + row >= begin && first + row < end;
      const int64_t from = base + (valid ? row : 0) * kHeadDim * 2;
      const int at = (half * kBlockTokens + row) * TileShared<kHeadDim>::kStride + piece * 8;
      copy_async_or_zero(shared_address(to.k + at), a.kv.k + from, valid);
      copy_async_or_zero(shared_address(to.v + at), a.kv.v + from, valid);
    }
  }
}

// What the tile's tokens see, and their queries, to shared memory. By the whole block, which then waits.
template <int kHeadDim, typename Number>
__device__ void load_queries(const AttentionArgs& a, const TileItem& item, TileShared<kHeadDim>& sh) {
  __syncthreads();  // shared memory of the item before
  if (threadIdx.x == 0) {
    sh.plain_begin = 0;
    sh.plain_end = 1 << 30;
    sh.first_cell = 1 << 30;
    sh.last_cell = 0;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < item.tokens) {
    const RowView v = row_view(a, item.s, item.first_row + item.token0 + static_cast<int>(threadIdx.x));
    sh.view[threadIdx.x] = v;
    atomicMax(&sh.plain_begin, v.low + 1);
    atomicMin(&sh.plain_end, v.limit);
    atomicMin(&sh.first_cell, first_seen(v));
    atomicMax(&sh.last_cell, last_seen(v));
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < kTileRows * kHeadDim / 8; i += 32 * kWarps) {
    const int own = i / (kHeadDim / 8);
    const int dim = i % (kHeadDim / 8) * 8;
    uint4 x = {0, 0, 0, 0};
    if (own < item.queries) {
      const auto [token, head] = place_of(a, item, item.query0 + own);
      x = *reinterpret_cast<const uint4*>(static_cast<const Act*>(a.q.data) +
                                          (item.first_row + token) * a.q.stride + int64_t{head} * kHeadDim +
                                          dim);
    }
    *reinterpret_cast<uint4*>(&sh.q[own * TileShared<kHeadDim>::kStride + dim]) = convert(x, Number());
  }
  __syncthreads();
}

// What a warp keeps of its 16 queries: this lane's of rows g and g + 8.
template <int kHeadDim>
struct Softmax {
  float o[kHeadDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};

  // Scores of 64 cells become exp2 of their distance to the largest so far, and what was summed up before is
  // brought to the same scale. The Softmax of attention_wgmma.cuh is another on purpose: it adds up in
  // another order and takes the fast exp2, so one for both would round differently than one of them does now.
  __device__ void take(float (&x)[kTileCells / 8][4], float scale) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTileCells / 8; ++n) top = fmaxf(top, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
      const float next = fmaxf(largest[r], top * scale);
      factor[r] = largest[r] == next ? 1.0f : exp2f(largest[r] - next);
      largest[r] = next;
      total[r] *= factor[r];
      const float shift = next == -INFINITY ? 0.0f : next;
#pragma unroll
      for (int n = 0; n < kTileCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& p = x[n][2 * r + i];
          p = exp2f(fmaf(p, scale, -shift));
          total[r] += p;
        }
      }
    }
    rescale(o, factor);
  }
};

// O of a warp's 16 queries, by 128 dims through its part of shared memory: divided, gated and stored in rows,
// or kept as partial results.
template <int kHeadDim>
__device__ void write_outputs(const AttentionArgs& a, const Softmax<kHeadDim>& sum, float* space,
                              const TileItem& item) {
  constexpr int kStride = 128 + 4;
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

// Scores of a warp's queries and 64 cells.
template <int kHeadDim, typename Number>
__device__ inline void multiply_keys(float (&x)[kTileCells / 8][4], uint32_t q_base, uint32_t k_base) {
  constexpr int kStride = TileShared<kHeadDim>::kStride;
#pragma unroll
  for (int n = 0; n < kTileCells / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t q[4];
    load_matrices(q, q_base + step * 32);
#pragma unroll
    for (int n = 0; n < kTileCells / 16; ++n) {
      uint32_t k[4];
      load_matrices(k, k_base + n * 16 * kStride * 2 + step * 32);
      mma(x[2 * n], q, k[0], k[1], Number());
      mma(x[2 * n + 1], q, k[2], k[3], Number());
    }
  }
}

template <int kHeadDim, typename Number>
__device__ inline void add_values(float (&o)[kHeadDim / 8][4], const float (&x)[kTileCells / 8][4],
                                  uint32_t v_base) {
  constexpr int kStride = TileShared<kHeadDim>::kStride;
#pragma unroll
  for (int step = 0; step < kTileCells / 16; ++step) {
    const uint32_t p[4] = {pack(x[2 * step][0], x[2 * step][1], Number()),
                           pack(x[2 * step][2], x[2 * step][3], Number()),
                           pack(x[2 * step + 1][0], x[2 * step + 1][1], Number()),
                           pack(x[2 * step + 1][2], x[2 * step + 1][3], Number())};
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      uint32_t v[4];
      load_matrices_transposed(v, v_base + (step * 16 * kStride + n * 16) * 2);
      mma(o[2 * n], p, v[0], v[1], Number());
      mma(o[2 * n + 1], p, v[2], v[3], Number());
    }
  }
}

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(32 * kWarps, 1) void tile_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kStride = TileShared<kHeadDim>::kStride;
  constexpr uint32_t kStageBytes = sizeof(typename TileShared<kHeadDim>::Stage);
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<TileShared<kHeadDim>*>(memory);
  int* starts = reinterpret_cast<int*>(memory + sizeof(TileShared<kHeadDim>));
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int items = list_tile_items(a, starts, sh.scratch);
  for (int begin = 0; begin < items; begin += gridDim.x) {
    // To and fro, so that who starts with a long item ends with a short one.
    const int turn = begin / static_cast<int>(gridDim.x) % 2;
    const int index = begin + static_cast<int>(turn == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    if (index >= items) continue;
    const TileItem item = item_at(a, starts, index);
    load_queries<kHeadDim, Number>(a, item, sh);

    const Span seen = seen_cells(item, sh.first_cell, sh.last_cell);
    Softmax<kHeadDim> sum;
    const auto token_of = [&](int row) {
      return (item.query0 + min(warp * 16 + row, item.queries - 1)) / a.group - item.token0;
    };
    const int token[2] = {token_of(lane / 4), token_of(lane / 4 + 8)};
    const uint32_t q_base = shared_address(sh.q) + ((warp * 16 + lane % 16) * kStride + lane / 16 * 8) * 2;
    const uint32_t k_base =
        shared_address(sh.stage[0].k) + ((lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8) * 2;
    const uint32_t v_base =
        shared_address(sh.stage[0].v) + ((lane / 8 % 2 * 8 + lane % 8) * kStride + lane / 16 * 8) * 2;

    const int first_cells = seen.begin / kTileCells * kTileCells;
    uint32_t stage = 0;  // byte offset of the tile's stage
    const auto load = [&](int index, int cells) {
      if (cells < seen.end)
        load_cells<kHeadDim>(sh.stage[index], a, item.s, item.kv_head, cells, seen.begin, seen.end);
      commit_copies();
    };
    load(0, first_cells);
    for (int cells = first_cells; cells < seen.end; cells += kTileCells, stage ^= kStageBytes) {
      wait_copies<0>();
      __syncthreads();  // this tile is there, and nobody is at the one before
      load(stage == 0 ? 1 : 0, cells + kTileCells);
      float x[kTileCells / 8][4];
      multiply_keys<kHeadDim, Number>(x, q_base, k_base + stage);
      const bool plain = cells >= sh.plain_begin && cells + kTileCells <= sh.plain_end &&
                         cells >= seen.begin && cells + kTileCells <= seen.end;
      if (!plain) {
        RowView view = sh.view[token[0]];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i == 2) view = sh.view[token[1]];
#pragma unroll
          for (int n = 0; n < kTileCells / 8; ++n) {
            const int cell = cells + n * 8 + lane % 4 * 2 + i % 2;
            if (cell < seen.begin || cell >= seen.end || !sees(view, cell)) x[n][i] = -INFINITY;
          }
        }
      }
      sum.take(x, a.scale);
      add_values<kHeadDim, Number>(sum.o, x, v_base + stage);
    }
    wait_copies<0>();
    __syncthreads();  // the stages are free
    add_lanes(sum.total);
    static_assert(kWarps * 16 * 132 * sizeof(float) <= sizeof(sh.stage));
    write_outputs<kHeadDim>(a, sum, reinterpret_cast<float*>(sh.stage) + warp * 16 * 132, item);
  }
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  const size_t shared = sizeof(TileShared<kHeadDim>) + (args.batch.sequences + 1) * sizeof(int);
  if (shared > context.shared_bytes_per_block) return false;
  context.note(cudaFuncSetAttribute(tile_kernel<kHeadDim, Number>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
               "attention_tiles");
  tile_kernel<kHeadDim, Number><<<tile_blocks(context, args), 32 * kWarps, shared, context.stream>>>(args);
  context.launched("attention_tiles");
  return true;
}

}  // namespace

bool attention_tiles(Context& context, const AttentionArgs& args) {
  if (attention_wgmma(context, args)) return true;
  return launch_instance(
      args, [&]<int kHeadDim, typename Number>() { return launch<kHeadDim, Number>(context, args); });
}

}  // namespace braid::cuda
