// attention_decode.cu -- attention of sequences with few rows (decoding): K and V are read once for all heads
// of a group, straight from their blocks into tensor-core fragments.
//
// Per query: s_c = scale q . K[c], o = sum_c softmax(s)_c V[c], times sigmoid(gate).
// Traffic: 4 Dh bytes a cell and KV head (16-bit cache), each byte read once; 27B (4 KV heads of 256): 4 KiB
// a cell and layer, 31 us at 32K cells and 4.3 TB/s. 6 (27B) or 8 (35B-A3B) flops a byte: bandwidth only.
//
// Shape: an item is 8 queries (heads of a group, for one or more tokens) of a KV head over one split of the
// cells; a block of 4 warps takes an item, a warp a quarter of its cells, 16 at a time. Scores are computed
// transposed, S^T = K Q^T with m16n8k16: 16 cells by 8 queries, so that 8 queries fill the tile, and O^T =
// V^T P^T needs 64 registers for 256 dims. The order of the dims inside a product is free, so a lane's
// 16-byte load of K is its own A fragment of two steps (row = cell, 8 consecutive dims), with q loaded in the
// same order; 16-byte loads of V at cells 2c, 2c+1, 2c+8, 2c+9 become fragments of V^T by byte permutation.
// No shared memory for K and V. P changes from accumulator to operand layout by two movmatrix. V of a tile is
// in flight while its scores are computed, K of the next while its softmax and V run. Warps meet in shared
// memory in order, splits in the merge kernel of attention.cu, in position order.
//
// Reached on an H200 (copy 3.9 TB/s), 27B, merge included: 128 sequences of 1K 177 us (78 % of copy), 32 of
// 2K 80 us (86 %), 8 of 8K 76 us (90 %), one of 32K 43 us (80 %), one of 2K 14 us. Tried: splits of 128 cells
// at every length, merged by the last block to finish: 337, 189, 97, 72 and 23 us (a split's fixed costs and
// the merger's chain of loads); queries loaded two bytes at a time; the least L1 cache: 226, 97, 92 and 53
// us.
#include "ops/cuda/attention_common.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kQueries = 8;

template <int kHeadDim>
struct DecodeShared {
  // Queries as fragments are loaded: rows padded so that 8 lanes of a load fall into different banks.
  static constexpr int kQueryStride = kHeadDim + 32;
  alignas(16) uint16_t q[kQueries * kQueryStride];
  alignas(16) float o[kWarps][kQueries][kHeadDim + 4];
  float largest[kWarps][kQueries];
  float total[kWarps][kQueries];
  RowView view[kQueries];
  int scratch[kWarps];
};

__device__ uint4 load_stream(const char* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// A warp's running softmax over 8 queries; this lane's queries are 2c and 2c + 1.
template <int kHeadDim, typename Number>
struct WarpState {
  float o[kHeadDim / 64][4][4];
  float largest[2];
  float total[2];

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < kHeadDim / 64; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][u][i] = 0;
      }
    }
    largest[0] = largest[1] = -INFINITY;
    total[0] = total[1] = 0;
  }

  // Takes the scores (log2 scale, -inf where hidden) of 16 cells and returns P^T as operand.
  __device__ void softmax(float (&s)[4], uint32_t (&p)[2]) {
    float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 4));
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 8));
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 16));
    }
    if (__any_sync(kFullWarp, top[0] > largest[0] || top[1] > largest[1])) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(largest[i], top[i]);
        factor[i] = next == -INFINITY ? 1.0f : exp2f(largest[i] - next);
        largest[i] = next;
        total[i] *= factor[i];
      }
#pragma unroll
      for (int j = 0; j < kHeadDim / 64; ++j) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[j][u][i] *= factor[i % 2];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = s[i] == -INFINITY ? 0.0f : exp2f(s[i] - largest[i % 2]);
      total[i % 2] += s[i];
    }
    p[0] = transpose_matrix(pack(s[0], s[1], Number()));
    p[1] = transpose_matrix(pack(s[2], s[3], Number()));
  }
};

// K of 16 cells as fragments: rows g and g + 8, 8 dims in every 32.
template <int kHeadDim>
struct KeyTile {
  uint4 k[kHeadDim / 32][2];

  __device__ void load(const AttentionArgs& a, int s, int kv_head, int tile) {
    constexpr int kRowBytes = kHeadDim * 2;
    const int lane = threadIdx.x % 32;
    const char* row =
        cell_address(a.kv.k, a, s, tile, kv_head, kRowBytes) + lane / 4 * kRowBytes + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      k[j][0] = load_stream(row + j * 64);
      k[j][1] = load_stream(row + 8 * kRowBytes + j * 64);
    }
  }
};

// Cells [begin, end) of a warp; [plain_begin, plain_end) are those that every query sees, `first_cell` the
// first that any does.
struct Cells {
  int first_cell, begin, end, plain_begin, plain_end;
};

// One warp over its cells; K of the first tile is under way.
template <int kHeadDim, typename Number>
__device__ void run_cells(const AttentionArgs& a, const DecodeShared<kHeadDim>& sh,
                          WarpState<kHeadDim, Number>& w, int s, int kv_head, const Cells& cells,
                          KeyTile<kHeadDim>& key) {
  constexpr int kRowBytes = kHeadDim * 2;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  auto& k = key.k;
  const int end = cells.end;
  for (int tile = cells.begin; tile < end; tile += 16) {
    uint4 v[kHeadDim / 64][4];  // cells 2c, 2c + 1, 2c + 8, 2c + 9
    {
      const char* row = cell_address(a.kv.v, a, s, tile, kv_head, kRowBytes) + 2 * c * kRowBytes + g * 16;
#pragma unroll
      for (int j = 0; j < kHeadDim / 64; ++j) {
        v[j][0] = load_stream(row + j * 128);
        v[j][1] = load_stream(row + kRowBytes + j * 128);
        v[j][2] = load_stream(row + 8 * kRowBytes + j * 128);
        v[j][3] = load_stream(row + 9 * kRowBytes + j * 128);
      }
    }
    float scores[2][4] = {};
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      const uint4 q =
          *reinterpret_cast<const uint4*>(sh.q + g * DecodeShared<kHeadDim>::kQueryStride + j * 32 + c * 8);
      const uint32_t first[4] = {k[j][0].x, k[j][1].x, k[j][0].y, k[j][1].y};
      const uint32_t second[4] = {k[j][0].z, k[j][1].z, k[j][0].w, k[j][1].w};
      mma(scores[0], first, q.x, q.y, Number());
      mma(scores[1], second, q.z, q.w, Number());
    }
    if (tile + 16 < end) key.load(a, s, kv_head, tile + 16);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (scores[0][i] + scores[1][i]) * a.scale;
    if (tile < cells.plain_begin || tile + 16 > cells.plain_end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!sees(sh.view[2 * c + i % 2], tile + g + i / 2 * 8)) x[i] = -INFINITY;
      }
      // Cells that nobody sees may hold anything, also NaN.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int cell = tile + 2 * c + i % 2 + i / 2 * 8;
        if (cell >= cells.first_cell && cell < end) continue;
#pragma unroll
        for (int j = 0; j < kHeadDim / 64; ++j) v[j][i] = {0, 0, 0, 0};
      }
    }
    uint32_t p[2];
    w.softmax(x, p);
#pragma unroll
    for (int j = 0; j < kHeadDim / 64; ++j) {
      const uint32_t* row[4] = {&v[j][0].x, &v[j][1].x, &v[j][2].x, &v[j][3].x};
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const uint32_t fragment[4] = {
            __byte_perm(row[0][u], row[1][u], 0x5410), __byte_perm(row[0][u], row[1][u], 0x7632),
            __byte_perm(row[2][u], row[3][u], 0x5410), __byte_perm(row[2][u], row[3][u], 0x7632)};
        mma(w.o[j][u], fragment, p[0], p[1], Number());
      }
    }
  }
}

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(32 * kWarps, 2) void decode_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<DecodeShared<kHeadDim>*>(memory);
  int* starts = reinterpret_cast<int*>(memory + sizeof(DecodeShared<kHeadDim>));
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int items = list_items(a, starts, sh.scratch, [&](int s) -> int2 {
    if (!few_rows(a, s)) return {0, 0};
    return {div_up(a.batch.rows[s] * a.group, kQueries), splits_of(a, s).count};
  });
  wait_for_previous();
  let_next_start();
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const int s = sequence_of(starts, a.batch.sequences, index);
    const int rows = a.batch.rows[s];
    const int first = a.batch.first_row[s];
    const Span span = span_of(a, s);
    const auto [length, splits] = splits_of(a, s);
    const int tiles = div_up(rows * a.group, kQueries);
    const int own = index - starts[s];
    const int split = own % splits;
    const int tile = own / splits % tiles;
    const int kv_head = own / splits / tiles;
    const int query0 = tile * kQueries;
    const int queries = min(kQueries, rows * a.group - query0);

    Cells cells;
    const int split_begin = (span.begin / length + split) * length;
    const int quarter = min(length, 1 << 28) / kWarps;
    cells.first_cell = span.begin;
    cells.begin = max(span.begin / 16 * 16, split_begin + warp * quarter);
    cells.end = min(span.end, split_begin + (warp + 1) * quarter);
    KeyTile<kHeadDim> key;
    if (cells.begin < cells.end) key.load(a, s, kv_head, cells.begin);

    __syncthreads();  // shared memory of the item before
    if (threadIdx.x < kQueries) {
      // Queries that are not there see nothing.
      sh.view[threadIdx.x] = {0, 1 << 30, 1 << 30, 0};
      if (static_cast<int>(threadIdx.x) < queries) {
        sh.view[threadIdx.x] = row_view(a, s, first + (query0 + static_cast<int>(threadIdx.x)) / a.group);
      }
    }
#pragma unroll
    for (int i = threadIdx.x; i < kQueries * kHeadDim / 8; i += 32 * kWarps) {
      const int query = i / (kHeadDim / 8);
      const int dim = i % (kHeadDim / 8) * 8;
      uint4 x = {0, 0, 0, 0};
      if (query < queries) {
        const int token = (query0 + query) / a.group;
        const int64_t head = kv_head * a.group + (query0 + query) % a.group;
        x = *reinterpret_cast<const uint4*>(static_cast<const Act*>(a.q.data) + (first + token) * a.q.stride +
                                            head * kHeadDim + dim);
      }
      *reinterpret_cast<uint4*>(sh.q + query * DecodeShared<kHeadDim>::kQueryStride + dim) =
          convert(x, Number());
    }
    __syncthreads();
    // Cells that all queries see need no mask.
    cells.plain_begin = 0;
    cells.plain_end = 1 << 30;
    for (int i = 0; i < queries; ++i) {
      cells.plain_begin = max(cells.plain_begin, sh.view[i].low + 1);
      cells.plain_end = min(cells.plain_end, sh.view[i].limit);
    }
    WarpState<kHeadDim, Number> w;
    w.clear();
    if (cells.begin < cells.end) run_cells<kHeadDim, Number>(a, sh, w, s, kv_head, cells, key);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w.total[i] += __shfl_xor_sync(kFullWarp, w.total[i], 4);
      w.total[i] += __shfl_xor_sync(kFullWarp, w.total[i], 8);
      w.total[i] += __shfl_xor_sync(kFullWarp, w.total[i], 16);
    }
    const int g = lane / 4;
    const int c = lane % 4;
#pragma unroll
    for (int j = 0; j < kHeadDim / 64; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // Elements i and i + 2: dims 2 u and 2 u + 1 of the lane's eight.
          *reinterpret_cast<float2*>(&sh.o[warp][2 * c + i][j * 64 + g * 8 + 2 * u]) = {w.o[j][u][i],
                                                                                        w.o[j][u][i + 2]};
        }
      }
    }
    if (g == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sh.largest[warp][2 * c + i] = w.largest[i];
        sh.total[warp][2 * c + i] = w.total[i];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < queries * kHeadDim / 4; i += 32 * kWarps) {
      const int query = i / (kHeadDim / 4);
      const int dim = i % (kHeadDim / 4) * 4;
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kWarps; ++j) largest = fmaxf(largest, sh.largest[j][query]);
      float4 sum = {0, 0, 0, 0};
      float total = 0;
#pragma unroll
      for (int j = 0; j < kWarps; ++j) {
        const float weight = sh.largest[j][query] == -INFINITY ? 0.0f : exp2f(sh.largest[j][query] - largest);
        const float4 o = *reinterpret_cast<const float4*>(&sh.o[j][query][dim]);
        total = fmaf(weight, sh.total[j][query], total);
        sum = {fmaf(weight, o.x, sum.x), fmaf(weight, o.y, sum.y), fmaf(weight, o.z, sum.z),
               fmaf(weight, o.w, sum.w)};
      }
      const int token = (query0 + query) / a.group;
      const int head = kv_head * a.group + (query0 + query) % a.group;
      if (splits == 1) {
        const float inverse = 1.0f / total;
        store_output(a, first + token, head, dim,
                     {sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse});
        continue;
      }
      const int64_t row = partial_index(a, s, head, split * rows + token);
      __stcg(reinterpret_cast<float4*>(a.partials + row * kHeadDim + dim), sum);
      if (dim == 0) __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * row), float2{largest, total});
    }
  }
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  const int64_t most =
      int64_t{args.batch.sequences} * args.kv_heads * div_up(args.group, kQueries) * kMostSplits;
  const int64_t blocks = most < 2 * context.processors ? most : 2 * context.processors;
  const size_t shared = sizeof(DecodeShared<kHeadDim>) + (args.batch.sequences + 1) * sizeof(int);
  launch_loads(context, decode_kernel<kHeadDim, Number>, dim3(static_cast<unsigned>(blocks)), 32 * kWarps,
               shared, args);
  return true;
}

}  // namespace

bool attention_decode(Context& context, const AttentionArgs& args) {
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
