// attention_tiles.cu -- attention of sequences with many rows (prompts, trees): 128 queries against 64 cells
// at a time on tensor cores.
//
// Flops 4 Dh per query head and visible cell; 2048 new tokens of 27B (24 heads of 256): 51 GFLOP a layer, 65
// us at 790 TFLOP/s; bytes are small beside it (K and V of a tile serve 128 queries).
//
// Shape: queries of a KV head are packed token by token (query = token * group + head), so a K/V tile serves
// the whole group and a short run still fills the tile. 8 warps of 16 queries; O [16, Dh] and S [16, 64] in
// registers as m16n8k16 accumulators, P goes from one to the other's operand without leaving them. K and V
// tiles of 64 cells (two blocks of the table) come by cp.async: V of a tile while its scores are computed, K
// of the next while V is used. Tiles that every query sees skip the mask; late tiles of a prompt start first.
// Few rows over a long context are cut into splits like decoding (attention_common.h).
//
// Not done: wgmma (this is the mma.sync form, about half of Hopper's rate), K/V multicast over a cluster.
#include "ops/cuda/attention_common.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 128;
constexpr int kCells = 64;
constexpr int kLeastSplit = 256;

template <int kHeadDim>
struct TileShared {
  static constexpr int kStride = kHeadDim + 8;
  alignas(16) uint16_t q[kRows * kStride];
  alignas(16) uint16_t k[kCells * kStride];
  alignas(16) uint16_t v[kCells * kStride];
  RowView view[kRows];  // by token of the tile
  int scratch[kWarps];
  int plain_begin, plain_end;  // cells that every query sees
  int first_cell, last_cell;   // that some query sees
  int flag;
};

// 64 cells of K or V; cells outside [begin, end) become zeros.
template <int kHeadDim>
__device__ void load_cells(uint16_t* to, const void* pool, const AttentionArgs& a, int s, int kv_head,
                           int tile, int begin, int end) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = threadIdx.x; i < kCells * kPieces; i += 32 * kWarps) {
    const int cell = tile + i / kPieces;
    const bool valid = cell >= begin && cell < end;
    const char* from =
        cell_address(pool, a, s, valid ? cell : begin, kv_head, kHeadDim * 2) + i % kPieces * 16;
    copy16(shared_address(to + i / kPieces * TileShared<kHeadDim>::kStride + i % kPieces * 8), from, valid);
  }
}

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(32 * kWarps, 1) void tile_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kStride = TileShared<kHeadDim>::kStride;
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<TileShared<kHeadDim>*>(memory);
  int* starts = reinterpret_cast<int*>(memory + sizeof(TileShared<kHeadDim>));
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int items = list_items(a, starts, sh.scratch, [&](int s) -> int2 {
    if (few_rows(a, s)) return {0, 0};
    const int rows = a.batch.rows[s];
    const Span span = span_of(a, s);
    return {div_up(rows * a.group, kRows),
            split_count(span, split_length(span, kLeastSplit, split_limit(a, rows)))};
  });
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const int s = sequence_of(starts, a.batch.sequences, index);
    const int rows = a.batch.rows[s];
    const int first = a.batch.first_row[s];
    const Span span = span_of(a, s);
    const int length = split_length(span, kLeastSplit, split_limit(a, rows));
    const int splits = split_count(span, length);
    const int tiles = div_up(rows * a.group, kRows);
    const int own = index - starts[s];
    const int split = own % splits;
    const int kv_head = own / splits % a.kv_heads;
    const int tile = tiles - 1 - own / splits / a.kv_heads;  // late tiles see most cells: they start first
    const int query0 = tile * kRows;
    const int queries = min(kRows, rows * a.group - query0);
    const int token0 = query0 / a.group;
    const int tokens = (query0 + queries - 1) / a.group - token0 + 1;

    __syncthreads();  // shared memory of the item before
    if (threadIdx.x == 0) {
      sh.plain_begin = 0;
      sh.plain_end = 1 << 30;
      sh.first_cell = 1 << 30;
      sh.last_cell = 0;
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < tokens) {
      const RowView v = row_view(a, s, first + token0 + static_cast<int>(threadIdx.x));
      sh.view[threadIdx.x] = v;
      atomicMax(&sh.plain_begin, v.low + 1);
      atomicMin(&sh.plain_end, v.limit);
      atomicMin(&sh.first_cell,
                v.low + 1 < v.limit ? v.low + 1 : v.context + __ffsll(static_cast<long long>(v.mask)) - 1);
      atomicMax(&sh.last_cell,
                v.mask == 0 ? v.limit - 1 : v.context + 63 - __clzll(static_cast<long long>(v.mask)));
    }
    for (int i = threadIdx.x; i < kRows * kHeadDim / 4; i += 32 * kWarps) {
      const int query = i / (kHeadDim / 4);
      const int dim = i % (kHeadDim / 4) * 4;
      float x[4] = {};
      if (query < queries) {
        const int64_t at = (first + (query0 + query) / a.group) * a.q.stride +
                           (static_cast<int64_t>(kv_head) * a.group + (query0 + query) % a.group) * kHeadDim +
                           dim;
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = load_as(a.q.data, a.q.type, at + j);
      }
      *reinterpret_cast<uint2*>(&sh.q[query * kStride + dim]) =
          uint2{pack(x[0], x[1], Number()), pack(x[2], x[3], Number())};
    }
    __syncthreads();

    const int split_begin = split == 0 ? 0 : (span.begin / length + split) * length;
    const int begin_cell = max(split_begin, sh.first_cell);
    const int end_cell = static_cast<int>(min(
        static_cast<int64_t>(sh.last_cell) + 1,
        splits == 1 ? int64_t{1} << 40 : (static_cast<int64_t>(span.begin / length) + split + 1) * length));

    float o[kHeadDim / 8][4];
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
    }
    float largest[2] = {-INFINITY, -INFINITY};
    float total[2] = {0, 0};
    const int query[2] = {min(warp * 16 + g, queries - 1), min(warp * 16 + g + 8, queries - 1)};
    const int token[2] = {(query0 + query[0]) / a.group - token0, (query0 + query[1]) / a.group - token0};
    const uint32_t q_base = shared_address(sh.q) + ((warp * 16 + lane % 16) * kStride + lane / 16 * 8) * 2;
    const uint32_t k_base =
        shared_address(sh.k) + ((lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8) * 2;
    const uint32_t v_base =
        shared_address(sh.v) + ((lane / 8 % 2 * 8 + lane % 8) * kStride + lane / 16 * 8) * 2;

    const int first_cells = begin_cell / kCells * kCells;
    if (first_cells < end_cell)
      load_cells<kHeadDim>(sh.k, a.kv.k, a, s, kv_head, first_cells, begin_cell, end_cell);
    commit_copies();
    for (int cells = first_cells; cells < end_cell; cells += kCells) {
      load_cells<kHeadDim>(sh.v, a.kv.v, a, s, kv_head, cells, begin_cell, end_cell);
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      float x[kCells / 8][4];
#pragma unroll
      for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[n][i] = 0;
      }
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        uint32_t q[4];
        load_matrices(q, q_base + step * 32);
#pragma unroll
        for (int n = 0; n < kCells / 16; ++n) {
          uint32_t k[4];
          load_matrices(k, k_base + n * 16 * kStride * 2 + step * 32);
          mma(x[2 * n], q, k[0], k[1], Number());
          mma(x[2 * n + 1], q, k[2], k[3], Number());
        }
      }
      __syncthreads();  // K is free
      if (cells + kCells < end_cell) {
        load_cells<kHeadDim>(sh.k, a.kv.k, a, s, kv_head, cells + kCells, begin_cell, end_cell);
      }
      commit_copies();

      const bool plain = cells >= sh.plain_begin && cells + kCells <= sh.plain_end && cells >= begin_cell &&
                         cells + kCells <= end_cell;
      if (!plain) {
        RowView view = sh.view[token[0]];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i == 2) view = sh.view[token[1]];
#pragma unroll
          for (int n = 0; n < kCells / 8; ++n) {
            const int cell = cells + n * 8 + 2 * c + i % 2;
            if (cell < begin_cell || cell >= end_cell || !sees(view, cell)) x[n][i] = -INFINITY;
          }
        }
      }
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < kCells / 8; ++n) top = fmaxf(top, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
        const float next = fmaxf(largest[r], top * a.scale);
        factor[r] = largest[r] == next ? 1.0f : exp2f(largest[r] - next);
        largest[r] = next;
        total[r] *= factor[r];
        const float shift = next == -INFINITY ? 0.0f : next;
#pragma unroll
        for (int n = 0; n < kCells / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& p = x[n][2 * r + i];
            p = exp2f(fmaf(p, a.scale, -shift));
            total[r] += p;
          }
        }
      }
      if (__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          o[n][0] *= factor[0];
          o[n][1] *= factor[0];
          o[n][2] *= factor[1];
          o[n][3] *= factor[1];
        }
      }
      wait_copies<1>();
      __syncthreads();  // V is there
#pragma unroll
      for (int step = 0; step < kCells / 16; ++step) {
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
      __syncthreads();  // V is free
    }
    wait_copies<0>();

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(kFullWarp, total[r], 1);
      total[r] += __shfl_xor_sync(kFullWarp, total[r], 2);
      if (warp * 16 + g + 8 * r >= queries) continue;
      const int head = kv_head * a.group + (query0 + query[r]) % a.group;
      const int t = first + token0 + token[r];
      const float inverse = 1.0f / total[r];
      const int64_t partial = partial_index(a, s, head, split * rows + token0 + token[r]);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        const int dim = n * 8 + 2 * c;
        if (splits > 1) {
          __stcg(reinterpret_cast<float2*>(a.partials + partial * kHeadDim + dim),
                 float2{o[n][2 * r], o[n][2 * r + 1]});
          continue;
        }
        float y[2] = {o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse};
        if (a.gated) {
          const int64_t gate = t * a.qg.stride + (2 * static_cast<int64_t>(head) + 1) * kHeadDim + dim;
          y[0] *= 1.0f / (1.0f + expf(-load_as(a.qg.data, a.qg.type, gate)));
          y[1] *= 1.0f / (1.0f + expf(-load_as(a.qg.data, a.qg.type, gate + 1)));
        }
        const int64_t at = t * a.o.stride + static_cast<int64_t>(head) * kHeadDim + dim;
        store_as(a.o.data, a.o.type, at, y[0]);
        store_as(a.o.data, a.o.type, at + 1, y[1]);
      }
      if (splits > 1 && c == 0) {
        __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * partial), float2{largest[r], total[r]});
      }
    }
    if (splits > 1) {
      const int counter = (s * a.kv_heads + kv_head) * div_up(kPartialRows * a.group, kRows) + tile;
      merge_splits<kHeadDim>(a, s, kv_head, counter, query0, queries, splits, &sh.flag);
    }
  }
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  // Items of a batch without splits, and what splits can add.
  const int64_t whole =
      (int64_t{args.batch.tokens} * args.group / kRows + args.batch.sequences) * args.kv_heads;
  const int64_t most = whole * args.most_splits;
  const int64_t blocks = most < context.processors ? most : context.processors;
  const size_t shared = sizeof(TileShared<kHeadDim>) + (args.batch.sequences + 1) * sizeof(int);
  if (shared > context.shared_bytes_per_block) return false;
  context.note(cudaFuncSetAttribute(tile_kernel<kHeadDim, Number>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
               "attention_tiles");
  tile_kernel<kHeadDim, Number><<<static_cast<unsigned>(blocks), 32 * kWarps, shared, context.stream>>>(args);
  context.launched("attention_tiles");
  return true;
}

}  // namespace

bool attention_tiles(Context& context, const AttentionArgs& args) {
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

}  // namespace braid::cuda
