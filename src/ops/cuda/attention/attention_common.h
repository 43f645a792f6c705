// attention_common.h -- visible cells of a row, work items of a step, and partial results.
//
// Queries of a KV head are packed: query = token * group + head, where token counts from the
// sequence's first row. Cells are cut into splits at multiples of a length, and the splits are
// merged in position order.
#pragma once

#include "ops/cuda/attention/attention_gate.h"
#include "ops/cuda/attention/row_bands.h"
#include "ops/cuda/attention/sealed_shares.h"
#include "ops/cuda/attention/sparse_rows.h"
#include "ops/cuda/context.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/mma.h"
#include "ops/cuda/workspace.h"

namespace braid::cuda {

inline constexpr int kMaxUncertain = 64;
inline constexpr int kMostSplits = 64;  // per row
// A KV head never has more items over the same cells than heads: one arrival counter per head.
inline constexpr int kMostDecodeRows = 24;
inline constexpr int kMostDecodeQueries = 24;
inline constexpr int kMostPartialRows = 512;  // per sequence
// Cells of a split: of an uncut span, the minimum, and the maximum for many sequences.
inline constexpr int kSplitCells = 256;
inline constexpr int kFewestSplitCells = 128;
inline constexpr int kLongSplitCells = 2048;
// For units read in place, once per eight queries. Beyond these limits reading an image is faster.
inline constexpr int kMostTailBlocks = 32;
inline constexpr int kMostUnitQueries = 80;

struct AttentionArgs {
  Tensor o, q;
  OutputGates gates;
  KvLayer kv;
  Batch batch;
  int heads, kv_heads, group, head_dim;
  int group_inverse;  // 2^16 / group, rounded up; exact for the few queries of a decode item
  float scale;        // includes log2(e)
  int window;
  int first_cell;
  int processors;
  int sharing;         // sequences that share the multiprocessors
  bool deterministic;  // see context.h
  int decode_rows;     // most rows of a sequence that takes the decode kernel
  int partial_rows;    // workspace per sequence: tokens x splits
  float* partials;
  float* partial_sums;
  int* arrivals;  // [S][H] counts finished splits; zero between launches
  // For bands of rows (row_bands.h), else null: rows of the whole sequence; border of stored rows.
  const int32_t* form_rows;
  const int32_t* exact_from;
  KvTail tail;
  // All rows take the decode kernel, with exact cells only, after the splits of
  // attention_sealed.cu.
  bool units;
  // The sequence whose workspace a band uses; null: its own. A split sequence then has one band.
  const int32_t* partial_of;
  // Rows are not in the cache yet (store_attend). The decode kernel prepares and stores them.
  bool fresh;
  int query_stride;  // elements of qg from head to head
  Tensor qg, k, v, rope;
  AttentionWeights w;
  SparseArgs sparse;
};

// Whether a sequence takes the decode kernel. The tile kernel reads cells once for more queries.
__host__ __device__ inline bool decodes(const AttentionArgs& a, int rows, int64_t cells) {
  return rows == 1 || a.units ||
         (rows <= a.decode_rows && (rows * a.group <= kMostDecodeQueries || cells <= kFewCells));
}

__device__ inline int form_rows_of(const AttentionArgs& a, int s) {
  return a.form_rows == nullptr ? a.batch.rows[s] : a.form_rows[s];
}
// Whether sequence (or band) s stores the outputs of its row t.
__device__ inline bool stores_row(const AttentionArgs& a, int s, int64_t t) {
  return a.exact_from == nullptr || is_pair(a.exact_from[s]) ||
         border_of(a.tail, a.batch.position[t]) * kBlockTokens == a.exact_from[s];
}

struct Span {
  int begin, end;
};
__device__ inline Span span_of(const AttentionArgs& a, int s) {
  const int certain = a.batch.certain[s];
  const int context = a.batch.context[s];
  const int end = context + a.batch.rows[s] - certain;
  const int first = min(a.first_cell, context - certain);
  const int begin = a.window > 0 ? max(first, context - certain - a.window + 1) : first;
  return {begin, end};
}

// Few splits leave a lone sequence without enough blocks, many cost partial results: the length
// grows with the square root of the span. If the result may depend on the batch, decoding rows
// start from shorter splits, and many sequences, which fill the GPU anyway, get longer ones.
struct Splits {
  int length, count;
};
__device__ inline Splits splits_of(const AttentionArgs& a, int s, int rows, Span span) {
  const int form_rows = form_rows_of(a, s);
  if (takes_part(a.sparse, s)) return {1 << 30, 1};
  // A row's bytes must not depend on where a piece of its prompt ends.
  if (a.deterministic && form_rows > 1) return {1 << 30, 1};
  if (span.begin == 0 && span.end <= kSplitCells) return {kSplitCells, 1};
  const int most = rows > a.partial_rows ? 1 : min(kMostSplits, a.partial_rows / rows);
  if (most < 2) return {1 << 30, 1};
  const int64_t cells = span.end - span.begin;
  const bool adapts = decodes(a, form_rows, cells) && !a.deterministic;
  int length = adapts ? kFewestSplitCells : kSplitCells;
  while (int64_t{length} * length < 4 * a.kv_heads * cells || int64_t{length} * (most - 1) < cells)
    length *= 2;
  if (adapts) {
    const int tiles = (rows * a.group + kMostDecodeQueries - 1) / kMostDecodeQueries;
    const int wanted = max(1, a.processors / (a.sharing * a.kv_heads * tiles));
    while (length < kLongSplitCells && int64_t{length} * wanted < cells) length *= 2;
  }
  return {length, (span.end - 1) / length - span.begin / length + 1};
}

struct SealedSpan {
  int begin, end;
};
__device__ inline SealedSpan sealed_span_of(const AttentionArgs& a, int s) {
  const int first = a.batch.first_row[s];
  int end = 0;
  for (int t = first; t < first + a.batch.rows[s]; ++t)
    end = max(end, border_of(a.tail, a.batch.position[t]));
  return {min(span_of(a, s).begin / kBlockTokens, end), end};
}
// Over units: the most splits of any row of the step.
__host__ __device__ inline int most_splits_of(const AttentionArgs& a) {
  const int splits = a.partial_rows / a.batch.most_rows;
  return splits < kMostSplits ? splits : kMostSplits;
}
// Leaves a few multiprocessors for the exact cells.
__host__ __device__ inline int sealed_readers_of(const AttentionArgs& a) {
  return a.processors - a.processors / 32;
}
inline constexpr int kSealedQueries = 8;
__host__ __device__ inline int sealed_tiles_of(const AttentionArgs& a, int rows) {
  return (rows * a.group + kSealedQueries - 1) / kSealedQueries;
}
__device__ inline int exact_begin_of(const AttentionArgs& a, int s) {
  const int border = border_of(a.tail, a.batch.context[s] - a.batch.certain[s]);
  return max(span_of(a, s).begin, border * kBlockTokens);
}
__device__ inline const int32_t* table_of(const AttentionArgs& a, int s) {
  return a.batch.block_table + static_cast<int64_t>(s) * a.batch.blocks_per_sequence;
}
__device__ inline int64_t pool_cell(const AttentionArgs& a, int64_t block, int kv_head) {
  return (block * a.kv_heads + kv_head) * kBlockTokens;
}

// A row sees cells (low, limit) except the block from `hole` on, and the uncertain cells in `mask`.
inline constexpr int kNoHole = -2 * kBlockTokens;
static_assert(kFewestPairedRows > kMostDecodeRows);  // the decode kernel has no holes
struct RowView {
  int limit, low, context, hole;
  unsigned long long mask;
  __device__ int plain_end() const { return hole < 0 ? limit : min(limit, hole); }
};
__device__ inline RowView row_view(const AttentionArgs& a, int s, int t) {
  const int first = a.batch.first_row[s];
  const int certain = a.batch.certain[s];
  const int own = a.batch.position[t];
  RowView v;
  v.context = a.batch.context[s];
  v.low = min(a.first_cell, own) - 1;
  if (a.window > 0) v.low = max(v.low, own - a.window);
  v.mask = 0;
  v.hole = kNoHole;
  if (t - first < certain) {
    v.limit = own + 1;
    if (a.exact_from != nullptr && is_pair(a.exact_from[s])) {
      v.hole = border_of(a.tail, own) * kBlockTokens;
      if (own >= v.hole) v.limit += kBlockTokens;  // else the row sees only sinks
    }
    return v;
  }
  v.limit = v.context;
  for (int row = t; row >= 0; row = a.batch.parent[row]) {
    const int node = row - first - certain;
    if (node >= kMaxUncertain) __trap();
    if (a.batch.position[row] > v.low) v.mask |= 1ull << node;
  }
  return v;
}
__device__ inline bool sees(const RowView& v, int cell) {
  if (cell < v.limit) return cell > v.low && static_cast<unsigned>(cell - v.hole) >= kBlockTokens;
  const int node = cell - v.context;
  return node >= 0 && node < kMaxUncertain && (v.mask >> node & 1) != 0;
}

__device__ inline int first_seen(const RowView& v) {
  return v.low + 1 < v.limit ? v.low + 1 : v.context + __ffsll(static_cast<long long>(v.mask)) - 1;
}
__device__ inline int last_seen(const RowView& v) {
  return v.mask == 0 ? v.limit - 1 : v.context + 63 - __clzll(static_cast<long long>(v.mask));
}

__device__ inline uint4 convert(uint4 x, __half) { return x; }
__device__ inline uint4 convert(uint4 x, __nv_bfloat16) {
  uint32_t* words = &x.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack(words[i], __half());
    words[i] = pack(pair.x, pair.y, __nv_bfloat16());
  }
  return x;
}

// `cut(s)` returns tiles and splits of a sequence, zero tiles if another kernel takes it. `starts`
// [sequences + 1], shared memory, gets each sequence's first item. All threads call. Returns the
// number of items.
template <typename Cut>
__device__ int list_items(const AttentionArgs& a, int* starts, int* scratch, Cut cut) {
  const int sequences = a.batch.sequences;
  const bool few = sequences <= 32;  // each warp computes the same list
  int base = 0;
  for (int first = 0; first < sequences; first += static_cast<int>(blockDim.x)) {
    const int s = few ? static_cast<int>(threadIdx.x) % 32 : first + static_cast<int>(threadIdx.x);
    int count = 0;
    if (s < sequences) {
      const int2 c = cut(s);
      count = a.kv_heads * c.x * c.y;
    }
    int sum = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, offset);
      if (static_cast<int>(threadIdx.x % 32) >= offset) sum += other;
    }
    int before = 0, all = __shfl_sync(kFullWarp, sum, 31);
    if (!few) {
      __syncthreads();
      if (threadIdx.x % 32 == 31) scratch[threadIdx.x / 32] = sum;
      __syncthreads();
      all = 0;
      for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
        if (w < static_cast<int>(threadIdx.x / 32)) before += scratch[w];
        all += scratch[w];
      }
    }
    if (s < sequences) starts[s] = base + before + sum - count;
    base += all;
  }
  if (threadIdx.x == 0) starts[sequences] = base;
  __syncthreads();
  return base;
}
// Distributes the sealed blocks of the step (sealed_shares.h), with arguments as list_items:
// `starts` gets the place of each sequence's first run, span_at(s) its blocks.
template <typename SpanAt>
__device__ SealedDeal deal_sealed(const AttentionArgs& a, int* starts, int* scratch,
                                  SpanAt span_at) {
  const int packed = list_items(a, starts, scratch, [&](int s) -> int2 {
    const int rows = a.batch.rows[s];
    const SealedSpan span = rows > 0 ? sealed_span_of(a, s) : SealedSpan{0, 0};
    span_at(s) = span;
    return {packed_places(span.end - span.begin), sealed_tiles_of(a, rows)};
  });
  int longest = 0, runs = 0, fewest = 1 << 30;
  for (int s = static_cast<int>(threadIdx.x) % 32; s < a.batch.sequences; s += 32) {
    const SealedSpan span = span_at(s);
    if (span.end == span.begin) continue;
    const int tiles = sealed_tiles_of(a, a.batch.rows[s]);
    longest = max(longest, span.end - span.begin);
    runs += a.kv_heads * tiles;
    fewest = min(fewest, tiles);
  }
  longest = __reduce_max_sync(kFullWarp, longest);
  runs = __reduce_add_sync(kFullWarp, runs);
  int lanes = __reduce_min_sync(kFullWarp, fewest);
  bool multiples = runs > 0;
  for (int s = static_cast<int>(threadIdx.x) % 32; s < a.batch.sequences && lanes > 1; s += 32) {
    const SealedSpan span = span_at(s);
    if (span.end > span.begin)
      multiples = multiples && sealed_tiles_of(a, a.batch.rows[s]) % lanes == 0;
  }
  if (!__all_sync(kFullWarp, multiples) || lanes > sealed_readers_of(a)) lanes = 1;
  // One split is reserved for the exact cells.
  SealedDeal deal = deal_runs(runs / lanes, longest, packed / lanes, sealed_readers_of(a) / lanes,
                              most_splits_of(a) - 1);
  deal.lanes = lanes;
  if (deal.stride == 0 && lanes == 1) return deal;
  __syncthreads();  // all threads have read `starts`
  list_items(a, starts, scratch, [&](int s) -> int2 {
    const SealedSpan span = span_at(s);
    return {places_of_run(deal, span.end - span.begin).places,
            sealed_tiles_of(a, a.batch.rows[s]) / lanes};
  });
  return deal;
}
__device__ inline int sequence_of(const int* starts, int sequences, int item) {
  int low = 0, high = sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (starts[middle] <= item) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ inline float4 gated(const AttentionArgs& a, float4 x, uint2 gates) {
  const float2 low = unpack(gates.x, __half()), high = unpack(gates.y, __half());
  return {x.x * gate_factor(a.gates, low.x), x.y * gate_factor(a.gates, low.y),
          x.z * gate_factor(a.gates, high.x), x.w * gate_factor(a.gates, high.y)};
}

// `x`: divided by its sum, times a head gate. Outputs and gates are 8-byte aligned.
__device__ inline void store_output(const AttentionArgs& a, int64_t t, int head, int dim,
                                    float4 x) {
  if (a.gates.per_element()) {
    const Act* from = static_cast<const Act*>(a.gates.data) + a.gates.place(t, head) + dim;
    x = gated(a, x, *reinterpret_cast<const uint2*>(from));
  }
  const float y[4] = {x.x, x.y, x.z, x.w};
  const int64_t at = static_cast<int64_t>(head) * a.head_dim + dim;
  if (a.o.type == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.o.data) + t * a.o.stride + at) = {y[0], y[1],
                                                                                       y[2], y[3]};
  } else {
    Act out[4] = {to_act(y[0]), to_act(y[1]), to_act(y[2]), to_act(y[3])};
    *reinterpret_cast<uint2*>(static_cast<Act*>(a.o.data) + t * a.o.stride + at) =
        *reinterpret_cast<const uint2*>(out);
  }
}

// Order: [sequence][head][split][row of the sequence].
__device__ inline int64_t partial_index(const AttentionArgs& a, int s, int head, int row) {
  const int room = a.partial_of == nullptr ? s : a.partial_of[s];
  return (static_cast<int64_t>(room) * a.heads + head) * a.partial_rows + row;
}

// Calls launch<head dim, number type>() for head dims 256 and 128, caches of f16 or bf16. False:
// another head dim.
template <typename Launch>
bool launch_instance(const AttentionArgs& args, Launch launch) {
  const KvFormat format = args.kv.shape.k_format;
  BRAID_CHECK(format == args.kv.shape.v_format &&
              (format == KvFormat::f16 || format == KvFormat::bf16));
  const bool half = format == KvFormat::f16;
  switch (args.head_dim) {
    case 256:
      return half ? launch.template operator()<256, __half>()
                  : launch.template operator()<256, __nv_bfloat16>();
    case 128:
      return half ? launch.template operator()<128, __half>()
                  : launch.template operator()<128, __nv_bfloat16>();
    default:
      return false;
  }
}

// Most rows of a sequence that may take the decode kernel.
int most_decode_rows(const Context& context, const AttentionArgs& args);
// False if there is no kernel for the shape or the GPU.
bool attention_sealed(Context& context, const AttentionArgs& args);
bool attention_decode(Context& context, const AttentionArgs& args);
bool attention_tiles(Context& context, const AttentionArgs& args);
bool attention_wgmma(Context& context, const AttentionArgs& args);

}  // namespace braid::cuda
