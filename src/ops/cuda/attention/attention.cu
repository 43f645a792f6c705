// attention.cu -- chooses the attention kernel, and holds the plain form.
//
// The fast forms take 16-bit caches and f16 queries. The plain form takes everything else, for
// tests and odd shapes: head widths up to 256 in multiples of 16, any pair of cache formats. It
// reads K and V once per query head, a warp per row and head, in f32.
#include <algorithm>

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/attention/sealed_cells.h"
#include "ops/cuda/attention/sparse_choice.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kWarps = 4;

__device__ float load_cell(const std::byte* row, KvFormat format, int i) {
  if (format == KvFormat::f32) return reinterpret_cast<const float*>(row)[i];
  if (format == KvFormat::f16) return __half2float(reinterpret_cast<const __half*>(row)[i]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
}

struct PlainState {
  float o[kMaxHeadDim / 32];
  float largest;
  float total;
};

__device__ void take_cells(PlainState& st, const AttentionArgs& a,
                           const float (&q)[kMaxHeadDim / 32], int s, int kv_head,
                           const int (&cell)[4], int count) {
  const int lane = threadIdx.x % 32;
  const KvFormat k_format = a.kv.shape.k_format;
  const KvFormat v_format = a.kv.shape.v_format;
  const int64_t k_bytes = a.head_dim * (k_format == KvFormat::f32 ? 4 : 2);
  const int64_t v_bytes = a.head_dim * (v_format == KvFormat::f32 ? 4 : 2);
  float score[4];
  int64_t row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = cell[i < count ? i : 0];
    row[i] = pool_cell(a, table_of(a, s)[at / kBlockTokens], kv_head) + at % kBlockTokens;
    const std::byte* k = a.kv.k + row[i] * k_bytes;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMaxHeadDim / 32; ++j) {
      if (lane + 32 * j < a.head_dim) sum = fmaf(q[j], load_cell(k, k_format, lane + 32 * j), sum);
    }
    score[i] = sum;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float sum = warp_sum(score[i]) * a.scale;
    score[i] = i < count ? sum : -INFINITY;
  }
  const float top = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
  if (top > st.largest) {
    const float factor = exp2f(st.largest - top);
    st.largest = top;
    st.total *= factor;
#pragma unroll
    for (int j = 0; j < kMaxHeadDim / 32; ++j) st.o[j] *= factor;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= count) break;
    const float p = exp2f(score[i] - st.largest);
    st.total += p;
    const std::byte* v = a.kv.v + row[i] * v_bytes;
#pragma unroll
    for (int j = 0; j < kMaxHeadDim / 32; ++j) {
      if (lane + 32 * j < a.head_dim)
        st.o[j] = fmaf(p, load_cell(v, v_format, lane + 32 * j), st.o[j]);
    }
  }
}

__global__ __launch_bounds__(32 *
                             kWarps) void plain_kernel(const __grid_constant__ AttentionArgs a) {
  wait_for_previous();
  const int t = blockIdx.x;
  const int head = blockIdx.y * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int s = a.batch.sequence[t];
  if (head >= a.heads || s < 0 || a.batch.rows[s] == 0) return;
  const int kv_head = head / a.group;
  float q[kMaxHeadDim / 32];
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    const int i = lane + 32 * j;
    q[j] = i < a.head_dim ? load_as(a.q.data, a.q.type,
                                    t * a.q.stride + static_cast<int64_t>(head) * a.head_dim + i)
                          : 0.0f;
  }
  PlainState st;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) st.o[j] = 0;
  st.largest = -INFINITY;
  st.total = 0;
  const RowView view = row_view(a, s, t);
  const auto take = [&](int begin, int end) {
    for (int cell = begin; cell < end; cell += 4) {
      const int cells[4] = {cell, cell + 1, cell + 2, cell + 3};
      take_cells(st, a, q, s, kv_head, cells, min(4, end - cell));
    }
  };
  take(max(view.low + 1, 0), view.plain_end());
  if (view.hole >= 0) take(view.hole + kBlockTokens, view.limit);
  for (unsigned long long left = view.mask; left != 0; left &= left - 1) {
    const int cells[4] = {view.context + __ffsll(static_cast<long long>(left)) - 1, 0, 0, 0};
    take_cells(st, a, q, s, kv_head, cells, 1);
  }
  const float inverse = head_factor(a.gates, t, head) / st.total;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    const int i = lane + 32 * j;
    if (i >= a.head_dim) break;
    float y = st.o[j] * inverse;
    if (a.gates.per_element())
      y *= gate_factor(a.gates, load_as(a.gates.data, a.gates.type, a.gates.place(t, head) + i));
    store_as(a.o.data, a.o.type, t * a.o.stride + static_cast<int64_t>(head) * a.head_dim + i, y);
  }
}

// Merges splits in position order. blockIdx.x is a head; blockIdx.z strides over tokens.
__global__ __launch_bounds__(kMaxHeadDim /
                             4) void merge_kernel(const __grid_constant__ AttentionArgs a) {
  __shared__ float weight[kMostSplits];
  __shared__ float2 part[kMostSplits];
  const int head = blockIdx.x;
  const int s = blockIdx.y;
  const int rows = a.batch.rows[s];
  const Span span = span_of(a, s);
  const int splits = rows > 0 && !decodes(a, form_rows_of(a, s), span.end - span.begin)
                         ? splits_of(a, s, rows, span).count
                         : 1;
  wait_for_previous();
  let_next_start();
  if (splits == 1) return;
  const int first = a.batch.first_row[s];
  const int dim = 4 * static_cast<int>(threadIdx.x);
  for (int token = blockIdx.z; token < rows; token += gridDim.z) {
    const int64_t base = partial_index(a, s, head, token);
    float4 v[8];
    const auto load = [&](int split) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (split + i >= splits || dim >= a.head_dim) break;
        v[i] = __ldcg(reinterpret_cast<const float4*>(
            a.partials + (base + (split + i) * rows) * a.head_dim + dim));
      }
    };
    load(0);
    const float gate = head_factor(a.gates, first + token, head);
    for (int split = threadIdx.x; split < splits; split += blockDim.x) {
      part[split] =
          __ldcg(reinterpret_cast<const float2*>(a.partial_sums + 2 * (base + split * rows)));
    }
    __syncthreads();
    float largest = -INFINITY;
    for (int split = 0; split < splits; ++split) largest = fmaxf(largest, part[split].x);
    for (int split = threadIdx.x; split < splits; split += blockDim.x) {
      weight[split] = part[split].x == -INFINITY ? 0.0f : exp2f(part[split].x - largest);
    }
    __syncthreads();
    float total = 0;
    float4 sum = {0, 0, 0, 0};
    for (int split = 0; split < splits; split += 8) {
      if (split > 0) load(split);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (split + i >= splits) break;
        const float w = weight[split + i];
        total = fmaf(w, part[split + i].y, total);
        sum = {fmaf(w, v[i].x, sum.x), fmaf(w, v[i].y, sum.y), fmaf(w, v[i].z, sum.z),
               fmaf(w, v[i].w, sum.w)};
      }
    }
    const float inverse = gate / total;
    if (dim < a.head_dim && stores_row(a, s, first + token)) {
      store_output(a, first + token, head, dim,
                   {sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse});
    }
    __syncthreads();
  }
}

bool multiple_of_eight(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % (8 * size_bytes(t.type)) == 0 && t.stride % 8 == 0;
}
bool narrow(const Tensor& t) { return t.type == kActType && multiple_of_eight(t); }

AttentionArgs arguments(const Context& context, const SequenceWorkspace& work, Tensor o,
                        Tensor gates, const AttentionParams& params, const KvLayer& kv,
                        const Batch& batch) {
  const int head_dim = kv.shape.head_dim;
  BRAID_CHECK(o.cols == params.heads * head_dim && params.heads % kv.shape.kv_heads == 0);
  BRAID_CHECK(head_dim <= kMaxHeadDim);
  AttentionArgs args{};
  args.o = o;
  args.gates = output_gates(params.gate, gates, batch.tokens, params.heads, head_dim);
  args.kv = kv;
  args.batch = batch;
  args.heads = params.heads;
  args.kv_heads = kv.shape.kv_heads;
  args.group = params.heads / kv.shape.kv_heads;
  args.group_inverse = div_up(1 << 16, args.group);
  args.head_dim = head_dim;
  args.scale = params.scale * 1.4426950408889634f;
  args.window = params.window;
  args.first_cell = params.first_cell;
  args.processors = context.processors;
  args.sharing = batch.sequences;
  args.deterministic = context.deterministic;
  // Absent sequences leave their workspace to the others, unless results must not depend on that.
  args.partial_rows = static_cast<int>(work.partial_rows);
  if (!context.deterministic) {
    const int64_t share = work.partial_rows * work.max_sequences / std::max(batch.sequences, 1);
    args.partial_rows =
        static_cast<int>(std::clamp<int64_t>(share, work.partial_rows, kMostPartialRows));
  }
  args.partials = work.partials;
  args.partial_sums = work.partial_sums;
  args.arrivals = work.arrivals;
  args.decode_rows = most_decode_rows(context, args);
  return args;
}

// Reads the image of sealed blocks, in bands of rows, which share the sequences' workspace.
AttentionArgs sealed_arguments(Context& context, const SequenceWorkspace& work, Tensor o,
                               Tensor gates, const AttentionParams& params, const KvLayer& kv,
                               const Batch& batch) {
  const SealedStep step = make_image(context, work.sealed, params, kv, batch);
  AttentionArgs args = arguments(context, work, o, gates, params, step.image, step.batch);
  args.sharing = batch.sequences;
  args.form_rows = step.form_rows;
  args.exact_from = step.exact_from;
  args.tail = kv.cold.tail;
  // A row's splits may not depend on the rows beside it: only single rows are split.
  if (context.deterministic) {
    args.partial_of = step.of_sequence;
    return args;
  }
  const int64_t rows = work.partial_rows * work.max_sequences;
  args.partial_rows = static_cast<int>(
      std::min<int64_t>(rows / std::max(step.batch.sequences, 1), kMostPartialRows));
  return args;
}

AttentionArgs unit_arguments(const Context& context, const SequenceWorkspace& work, Tensor o,
                             Tensor gates, const AttentionParams& params, const KvLayer& kv,
                             const Batch& batch) {
  AttentionArgs args = arguments(context, work, o, gates, params, kv, batch);
  args.units = true;
  args.tail = kv.cold.tail;
  return args;
}

// The choice depends on the whole batch, so not in deterministic mode.
bool reads_units(const Context& context, const AttentionArgs& args) {
  const int32_t most_rows = args.batch.most_rows;
  return !context.deterministic && args.tail.sink_blocks == 0 &&
         args.tail.tail_blocks <= kMostTailBlocks && most_rows > 0 &&
         most_rows <= kMostDecodeRows && most_rows * args.group <= kMostUnitQueries &&
         most_splits_of(args) > 2;
}

bool fits(const SequenceWorkspace& work, const AttentionArgs& args) {
  const KvShape& cells = args.kv.shape;
  const OutputGates& gates = args.gates;
  const bool fit = gates.data == nullptr || gates.per_head ||
                   (gates.type == kActType && gates.stride % 8 == 0 && args.head_dim % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(gates.data) % 16 == 0);
  return cells.k_format == cells.v_format && cells.k_format != KvFormat::f32 &&
         multiple_of_eight(args.o) && fit && args.batch.sequences <= work.most_sequences() &&
         args.heads * int64_t{args.head_dim} <= work.partial_dim;
}

// An upper bound for any sequence of the batch.
int64_t most_cells(const AttentionArgs& args) {
  int64_t cells = int64_t{args.batch.blocks_per_sequence} * kBlockTokens;
  if (args.batch.most_cells > 0) cells = std::min<int64_t>(cells, args.batch.most_cells);
  return args.window > 0 ? std::min<int64_t>(cells, args.window + kMostDecodeRows) : cells;
}

// Whether one launch can store the new rows and attend (AttentionArgs::fresh).
bool fits_fresh(const AttentionArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.batch.most_rows > 0 && args.batch.most_rows <= args.decode_rows &&
         decodes(args, args.batch.most_rows, most_cells(args)) && narrow(args.qg) &&
         narrow(args.k) && narrow(args.v) && args.rope.cols % 16 == 0 &&
         args.rope.stride % 4 == 0 && aligned(args.rope.data) && aligned(args.w.q_norm) &&
         aligned(args.w.k_norm);
}

}  // namespace

}  // namespace cuda

void CudaOps::attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                        const KvLayer& kv, const Batch& batch) {
  BRAID_CHECK(q.cols == o.cols);
  if (batch.tokens == 0 || batch.sequences == 0) return;
  if (kv.cold) {
    AttentionArgs args = unit_arguments(context_, sequence_work_, o, gates, params, kv, batch);
    args.q = q;
    if (reads_units(context_, args) && fits(sequence_work_, args) && narrow(q) &&
        attention_sealed(context_, args) && attention_decode(context_, args))
      return;
  }
  const int32_t* of_sequence = sequence_work_.sealed.bands.of_sequence;
  AttentionArgs args = kv.cold
                           ? sealed_arguments(context_, sequence_work_, o, gates, params, kv, batch)
                           : arguments(context_, sequence_work_, o, gates, params, kv, batch);
  args.q = q;
  const int32_t most_rows = batch.most_rows > 0 ? batch.most_rows : batch.tokens;
  const bool fast = fits(sequence_work_, args) && narrow(q);
  if (may_choose(args)) {
    BRAID_CHECK(fast && (args.head_dim == 128 || args.head_dim == 256));
    choose_blocks(context_, sequence_work_.sparse, batch, kv.cold ? of_sequence : nullptr, args);
  }
  if (fast) {
    // Each kernel skips the sequences that the other takes.
    const bool all_decode = decodes(args, most_rows, most_cells(args));
    if (attention_decode(context_, args) && (all_decode || attention_tiles(context_, args))) {
      if (all_decode || args.batch.blocks_per_sequence * kBlockTokens <= kSplitCells) return;
      const dim3 grid(static_cast<unsigned>(params.heads),
                      static_cast<unsigned>(args.batch.sequences),
                      static_cast<unsigned>(std::min(most_rows, 8)));
      launch_early(context_, merge_kernel, grid,
                   static_cast<unsigned>(div_up(args.head_dim, 128) * 32), 0, args);
      return;
    }
  }
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up(params.heads, kWarps)));
  launch_early(context_, plain_kernel, grid, 32 * kWarps, 0, args);
}

void CudaOps::store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                           Tensor rope_table, const AttentionWeights& w,
                           const AttentionParams& params, const KvLayer& kv, const Batch& batch) {
  AttentionArgs args = kv.cold
                           ? unit_arguments(context_, sequence_work_, o, gates, params, kv, batch)
                           : arguments(context_, sequence_work_, o, gates, params, kv, batch);
  args.query_stride = static_cast<int>(params.gate.query_stride(args.head_dim));
  BRAID_CHECK(qg.cols == int64_t{params.heads} * args.query_stride);
  BRAID_CHECK(k.cols == int64_t{kv.shape.kv_heads} * args.head_dim && v.cols == k.cols);
  BRAID_CHECK(rope_table.cols <= args.head_dim && rope_table.type == DType::f32);
  args.fresh = true;
  args.qg = qg;
  args.k = k;
  args.v = v;
  args.rope = rope_table;
  args.w = w;
  // Units are read before the rows are stored: what this step fills must not be read sealed.
  const bool reads = !kv.cold || (reads_units(context_, args) && kv.cold.tail.tail_blocks > 0);
  if (reads && fits(sequence_work_, args) && fits_fresh(args) &&
      (!kv.cold || attention_sealed(context_, args)) && attention_decode(context_, args)) {
    if (kv.cold) seal_filled(context_, kv, batch);
    return;
  }
  Ops::store_attend(o, q, qg, k, v, gates, rope_table, w, params, kv, batch);
}

}  // namespace braid
