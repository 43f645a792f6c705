// tail_scores.cu -- how much attention the last rows of a prompt pay to every position.
//
// 1. Queries become f32, scaled, without angles if that is wanted; units become f16 rows.
// 2. Each block of threads takes a split of positions and a KV head: maximum and sum of
//    2^(score - maximum) of each query. A warp per query merges the splits.
// 3. The same blocks compute the scores again, and from them probabilities. Their maximum over the
//    heads of all KV heads is taken by atomics on the bits, whose order does not matter, as
//    probabilities are not negative.
// A tile of 64 positions of K lies in shared memory as f32, so that all formats and angles take one
// path, and is read once for all queries of a KV head.
#include <algorithm>

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/attention/sealed_work.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.h"
#include "ops/kv/kv_codec.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kTailWarps = 4;
constexpr int kTailThreads = 32 * kTailWarps;
constexpr int kTailTile = 2 * kBlockTokens;  // a lane has a position of each block
constexpr int kWarpQueries = 4;
constexpr int kTailQueries = kTailWarps * kWarpQueries;  // at a time
constexpr int kMostTailSplits = 1024;
constexpr float kUnseen = -1e30f;  // finite, so that 2^(kUnseen - kUnseen) is a number

struct TailArgs {
  Tensor scores, q, rope, rope_of_position;  // rope_of_position without data: angles stay
  KvLayer kv;
  Batch batch;
  KvTail tail;
  UnitKind unit;           // of K
  const std::byte* image;  // f16 [blocks][KV heads][32][head_dim] of units; null: none
  int heads, kv_heads, group, head_dim, rows, first_cell;
  int queries;   // of a KV head: row * group + head of the group
  float scale;   // includes log2(e)
  float factor;  // 1 / magnitude^2
  int splits, split_cells;
  float* plain;      // [KV heads][queries][head_dim]
  float2* totals;    // [KV heads][queries]: maximum, 1 / sum
  float2* partials;  // [splits][KV heads][queries]: maximum, sum
};

// What the positions of q's rows imply. All are certain, so the last one's is context - 1.
struct TailStep {
  int end;                        // positions of the last row
  int first_border, last_border;  // of the first and the last row: blocks below are read from units
};
__device__ inline TailStep tail_step(const TailArgs& a) {
  const int end = a.batch.context[0];
  if (a.image == nullptr) return {end, 0, 0};
  return {end, border_of(a.tail, end - a.rows), border_of(a.tail, end - 1)};
}

// x: row, y: query head.
__global__ __launch_bounds__(kTailThreads) void tail_query_kernel(
    const __grid_constant__ TailArgs a) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x, head = blockIdx.y;
  const int64_t from = row * a.q.stride + static_cast<int64_t>(head) * a.head_dim;
  const int64_t query =
      static_cast<int64_t>(head / a.group) * a.queries + row * a.group + head % a.group;
  float* to = a.plain + query * a.head_dim;
  const int half =
      a.rope_of_position.data != nullptr ? static_cast<int>(a.rope_of_position.cols) / 2 : 0;
  const int t = a.batch.first_row[0] + a.batch.rows[0] - a.rows + row;
  const float* rope = static_cast<const float*>(a.rope.data) + t * a.rope.stride;
  for (int i = threadIdx.x; i < half; i += kTailThreads) {
    const float x = load_as(a.q.data, a.q.type, from + i);
    const float y = load_as(a.q.data, a.q.type, from + half + i);
    const float cosine = rope[2 * i] * a.factor, sine = rope[2 * i + 1] * a.factor;
    to[i] = a.scale * fmaf(y, sine, x * cosine);
    to[half + i] = a.scale * fmaf(-x, sine, y * cosine);
  }
  for (int i = 2 * half + threadIdx.x; i < a.head_dim; i += kTailThreads)
    to[i] = a.scale * load_as(a.q.data, a.q.type, from + i);
}

// Expands the units that any row reads.
__global__ __launch_bounds__(kUnitThreads) void tail_unit_kernel(
    const __grid_constant__ TailArgs a) {
  extern __shared__ __align__(16) char memory[];
  wait_for_previous();
  let_next_start();
  const ThreadBlock<kUnitThreads> block;
  const int begin = a.tail.sink_blocks, end = tail_step(a).last_border;
  for (int item = blockIdx.x; item < (end - begin) * a.kv_heads; item += gridDim.x) {
    const int own = begin + item / a.kv_heads, head = item % a.kv_heads;
    const int cold = a.batch.cold_table[own];
    if (cold < 0 || cold >= a.kv.cold.blocks) continue;
    std::byte* to = rows_at(const_cast<std::byte*>(a.image), a.kv.shape, own, head);
    expand_unit(block, reinterpret_cast<UnitRows*>(memory), a.unit, a.head_dim, false,
                reinterpret_cast<const uint8_t*>(unit_at(a.kv, false, cold, head)),
                reinterpret_cast<uint16_t*>(to));
  }
}

// Where the rows read a block of positions. Rows on both sides of a border may read it from its
// unit and exactly. `both`: then it is exact in the second round, and a unit in the first.
struct BlockSource {
  bool sealed, both;
};
__device__ inline BlockSource block_source(const TailArgs& a, const TailStep& step, int block) {
  const bool sealed = block >= a.tail.sink_blocks && block < step.last_border;
  return {sealed, sealed && block >= step.first_border};
}
__device__ inline bool sees_position(const TailArgs& a, const TailStep& step, int row, int position,
                                     int round) {
  const int own = step.end - a.rows + row, block = position / kBlockTokens;
  if (position > own || position < min(a.first_cell, own)) return false;
  if (!block_source(a, step, block).both) return round == 0;
  return (block < border_of(a.tail, own)) == (round == 0);
}

struct TailShared {
  float* k;       // [kTailTile][key_stride]
  float* q;       // [kTailQueries][head_dim]
  float2* state;  // [queries], or
  int* best;      // [rows][kTailTile] bits of probabilities, negative: none
};
// Rows are 16-byte aligned, and eight of them lie in different banks.
__host__ __device__ inline int key_stride(int head_dim) { return head_dim + 4; }
__host__ __device__ inline size_t tail_floats(int head_dim) {
  return static_cast<size_t>(kTailTile) * key_stride(head_dim) + kTailQueries * head_dim;
}
__device__ inline TailShared tail_shared(const TailArgs& a, char* memory) {
  TailShared sh;
  sh.k = reinterpret_cast<float*>(memory);
  sh.q = sh.k + kTailTile * key_stride(a.head_dim);
  sh.state = reinterpret_cast<float2*>(sh.k + tail_floats(a.head_dim));
  sh.best = reinterpret_cast<int*>(sh.state);
  return sh;
}

__device__ inline void load_eight(const std::byte* row, KvFormat format, int i, float4 (&x)[2]) {
  if (format == KvFormat::f32) {
    const auto* from = reinterpret_cast<const float4*>(row + 4 * i);
    x[0] = from[0], x[1] = from[1];
    return;
  }
  const uint4 bits = *reinterpret_cast<const uint4*>(row + 2 * i);
  const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
  float2 pair[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    pair[j] =
        format == KvFormat::f16 ? unpack(word[j], __half()) : unpack(word[j], __nv_bfloat16());
  x[0] = {pair[0].x, pair[0].y, pair[1].x, pair[1].y};
  x[1] = {pair[2].x, pair[2].y, pair[3].x, pair[3].y};
}

// K of positions begin .. begin + kTailTile - 1, zeros from the end on. The second round replaces
// the blocks that differ.
__device__ void stage_keys(const TailArgs& a, const TailStep& step, const TailShared& sh, int begin,
                           int kv_head, int round) {
  const int eights = a.head_dim / 8;
  for (int item = threadIdx.x; item < kTailTile * eights; item += kTailThreads) {
    const int p = item / eights, i = item % eights * 8, position = begin + p;
    const int block = position / kBlockTokens;
    const BlockSource source = block_source(a, step, block);
    if (round > 0 && !source.both) continue;
    const bool sealed = source.sealed && round == 0;
    float4 x[2] = {};
    const int at = position >= step.end ? -1 : sealed ? block : a.batch.block_table[block];
    if (at >= 0) {
      const KvFormat format = sealed ? KvFormat::f16 : a.kv.shape.k_format;
      const int64_t row = (static_cast<int64_t>(at) * a.kv_heads + kv_head) * kBlockTokens +
                          position % kBlockTokens;
      const std::byte* pool = sealed ? a.image : a.kv.k;
      load_eight(pool + row * a.head_dim * (format == KvFormat::f32 ? 4 : 2), format, i, x);
    }
    auto* to = reinterpret_cast<float4*>(sh.k + p * key_stride(a.head_dim) + i);
    to[0] = x[0], to[1] = x[1];
  }
}
__device__ void unrotate_keys(const TailArgs& a, const TailStep& step, const TailShared& sh,
                              int begin, int round) {
  const int half = static_cast<int>(a.rope_of_position.cols) / 2;
  const auto* table = static_cast<const float*>(a.rope_of_position.data);
  for (int item = threadIdx.x; item < kTailTile * half; item += kTailThreads) {
    const int p = item / half, i = item % half, position = begin + p;
    if (position >= step.end) break;
    if (round > 0 && !block_source(a, step, position / kBlockTokens).both) continue;
    const float* rope = table + position * a.rope_of_position.stride + 2 * i;
    const float cosine = rope[0] * a.factor, sine = rope[1] * a.factor;
    float* k = sh.k + p * key_stride(a.head_dim) + i;
    const float x = k[0], y = k[half];
    k[0] = fmaf(y, sine, x * cosine);
    k[half] = fmaf(-x, sine, y * cosine);
  }
}
__device__ void stage_queries(const TailArgs& a, const TailShared& sh, int kv_head, int first) {
  const int fours = a.head_dim / 4;
  const int count = min(kTailQueries, a.queries - first);
  const auto* from = reinterpret_cast<const float4*>(a.plain) +
                     (static_cast<int64_t>(kv_head) * a.queries + first) * fours;
  for (int item = threadIdx.x; item < kTailQueries * fours; item += kTailThreads)
    reinterpret_cast<float4*>(sh.q)[item] = item < count * fours ? from[item] : float4{0, 0, 0, 0};
}

__device__ inline void add_product(float& sum, float4 a, float4 b) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  sum = fmaf(a.w, b.w, sum);
}
// Scores of this lane's two positions with this warp's queries.
__device__ void tail_products(const TailArgs& a, const TailShared& sh,
                              float (&sum)[kWarpQueries][2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* k = reinterpret_cast<const float4*>(sh.k + lane * key_stride(a.head_dim));
  const int next = kBlockTokens * key_stride(a.head_dim) / 4;
  const int fours = a.head_dim / 4;
  const auto* q = reinterpret_cast<const float4*>(sh.q) + warp * kWarpQueries * fours;
#pragma unroll
  for (int n = 0; n < kWarpQueries; ++n) sum[n][0] = sum[n][1] = 0;
#pragma unroll 4
  for (int i = 0; i < fours; ++i) {
    const float4 first = k[i], second = k[next + i];
#pragma unroll
    for (int n = 0; n < kWarpQueries; ++n) {
      const float4 x = q[n * fours + i];
      add_product(sum[n][0], first, x);
      add_product(sum[n][1], second, x);
    }
  }
}

// Of one query. Only its warp has this state.
__device__ inline void add_scores(float2& state, const float (&score)[2], const bool (&seen)[2]) {
  const float x = seen[0] ? score[0] : kUnseen, y = seen[1] ? score[1] : kUnseen;
  const float2 before = state;
  const float top = fmaxf(before.x, warp_max(fmaxf(x, y)));
  if (top == kUnseen) return;
  const float sum = warp_sum(exp2f(x - top) + exp2f(y - top));
  if (threadIdx.x % 32 == 0) state = {top, fmaf(before.y, exp2f(before.x - top), sum)};
  __syncwarp();
}

__device__ void write_best(const TailArgs& a, const TailShared& sh, int begin) {
  for (int item = threadIdx.x; item < a.rows * kTailTile; item += kTailThreads) {
    const int row = item / kTailTile, position = begin + item % kTailTile;
    if (sh.best[item] < 0) continue;
    float* to = static_cast<float*>(a.scores.data) + row * a.scores.stride + position;
    atomicMax(reinterpret_cast<int*>(to), sh.best[item]);
    sh.best[item] = -1;
  }
}

// x: split, y: KV head. kSums: writes partials, else scores.
template <bool kSums>
__global__ __launch_bounds__(kTailThreads) void tail_kernel(const __grid_constant__ TailArgs a) {
  extern __shared__ __align__(16) char memory[];
  wait_for_previous();
  let_next_start();
  const TailShared sh = tail_shared(a, memory);
  const int kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const TailStep step = tail_step(a);
  const int split = blockIdx.x * a.split_cells, end = min(step.end, split + a.split_cells);
  if (split >= end) return;
  const int64_t first_query = static_cast<int64_t>(kv_head) * a.queries;
  for (int i = threadIdx.x; i < (kSums ? a.queries : a.rows * kTailTile); i += kTailThreads) {
    if constexpr (kSums) {
      sh.state[i] = {kUnseen, 0};
    } else {
      sh.best[i] = -1;
    }
  }
  if (a.queries <= kTailQueries) stage_queries(a, sh, kv_head, 0);
  for (int begin = split; begin < end; begin += kTailTile) {
    const int block = begin / kBlockTokens;
    const bool both = block_source(a, step, block).both || block_source(a, step, block + 1).both;
    const int rounds = both ? 2 : 1;
    for (int round = 0; round < rounds; ++round) {
      __syncthreads();
      stage_keys(a, step, sh, begin, kv_head, round);
      __syncthreads();
      if (a.rope_of_position.data != nullptr) {
        unrotate_keys(a, step, sh, begin, round);
        __syncthreads();
      }
      for (int first = 0; first < a.queries; first += kTailQueries) {
        if (a.queries > kTailQueries) {
          __syncthreads();
          stage_queries(a, sh, kv_head, first);
          __syncthreads();
        }
        float score[kWarpQueries][2];
        tail_products(a, sh, score);
#pragma unroll
        for (int n = 0; n < kWarpQueries; ++n) {
          const int query = first + warp * kWarpQueries + n;
          if (query >= a.queries) break;
          const int row = query / a.group;
          const bool seen[2] = {sees_position(a, step, row, begin + lane, round),
                                sees_position(a, step, row, begin + kBlockTokens + lane, round)};
          if constexpr (kSums) {
            add_scores(sh.state[query], score[n], seen);
          } else {
            const float2 total = a.totals[first_query + query];
            for (int j = 0; j < 2; ++j) {
              if (!seen[j]) continue;
              const float p = exp2f(score[n][j] - total.x) * total.y;
              atomicMax(&sh.best[row * kTailTile + j * kBlockTokens + lane], __float_as_int(p));
            }
          }
        }
      }
    }
    if constexpr (!kSums) {
      __syncthreads();
      write_best(a, sh, begin);
    }
  }
  if constexpr (kSums) {
    __syncthreads();
    for (int i = threadIdx.x; i < a.queries; i += kTailThreads)
      a.partials[blockIdx.x * (static_cast<int64_t>(a.kv_heads) * a.queries) + first_query + i] =
          sh.state[i];
  }
}

// A warp per query, in an order that depends on the splits alone.
__global__ __launch_bounds__(kTailThreads) void tail_merge_kernel(
    const __grid_constant__ TailArgs a) {
  wait_for_previous();
  let_next_start();
  const int query = blockIdx.x * kTailWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int all = a.kv_heads * a.queries;
  if (query >= all) return;
  const int splits = div_up(tail_step(a).end, a.split_cells);
  float top = kUnseen, sum = 0;
  for (int s = lane; s < splits; s += 32) {
    const float2 part = a.partials[static_cast<int64_t>(s) * all + query];
    const float most = fmaxf(top, part.x);
    sum = fmaf(sum, exp2f(top - most), part.y * exp2f(part.x - most));
    top = most;
  }
  const float most = warp_max(top);
  sum = warp_sum(sum * exp2f(top - most));
  if (lane == 0) a.totals[query] = {most, 1.0f / sum};
}

// Uses the scratch of attention's partial results.
void place_tail(const Context& context, const SequenceWorkspace& work, TailArgs& args) {
  const int64_t queries = static_cast<int64_t>(args.rows) * args.heads;
  const int64_t room = work.max_sequences * work.partial_rows * work.partial_dim;
  const int64_t fixed = queries * (args.head_dim + 2);
  BRAID_CHECK(room >= fixed + 2 * queries);
  args.plain = work.partials;
  args.totals = reinterpret_cast<float2*>(args.plain + queries * args.head_dim);
  args.partials = args.totals + queries;
  const int64_t most = std::min<int64_t>(
      args.scores.cols, static_cast<int64_t>(args.batch.blocks_per_sequence) * kBlockTokens);
  const int64_t tiles = div_up<int64_t>(most, kTailTile);
  const int64_t wanted = std::max(1, 8 * context.processors / args.kv_heads);
  const int64_t splits = std::min(
      {tiles, wanted, (room - fixed) / (2 * queries), static_cast<int64_t>(kMostTailSplits)});
  const int64_t tiles_of_split = div_up(tiles, splits);
  args.split_cells = static_cast<int>(tiles_of_split * kTailTile);
  args.splits = static_cast<int>(div_up(tiles, tiles_of_split));
}

// Makes the image of units where attention's lies.
void expand_tail_units(Context& context, const SealedWorkspace& work, TailArgs& args) {
  const KvLayer& kv = args.kv;
  BRAID_CHECK(args.batch.blocks_per_sequence <= work.image_blocks &&
              kv.shape.k_block_bytes() <= work.block_bytes && kv.shape.k_format == KvFormat::f16);
  args.tail = kv.cold.tail;
  args.unit = unit_kind(kv.cold.k_codec->name);
  args.image = work.k;
  const int64_t most = std::min<int64_t>(
      int64_t{args.batch.blocks_per_sequence} * kv.shape.kv_heads, int64_t{4} * context.processors);
  launch_early(context, tail_unit_kernel, dim3(static_cast<unsigned>(most)), kUnitThreads,
               is_rotated(args.unit) ? sizeof(UnitRows) : 0, args);
}

}  // namespace
}  // namespace cuda

void CudaOps::tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position,
                          float magnitude, const AttentionParams& params, const KvLayer& kv,
                          const Batch& batch) {
  TailArgs args{};
  args.scores = scores;
  args.q = q;
  args.rope = rope;
  args.rope_of_position = rope_of_position;
  args.kv = kv;
  args.batch = batch;
  args.heads = params.heads;
  args.kv_heads = kv.shape.kv_heads;
  args.group = params.heads / args.kv_heads;
  args.head_dim = kv.shape.head_dim;
  args.rows = static_cast<int>(q.rows);
  args.queries = args.rows * args.group;
  args.first_cell = params.first_cell;
  args.scale = params.scale * 1.4426950408889634f;
  args.factor = 1 / (magnitude * magnitude);
  BRAID_CHECK(params.heads % args.kv_heads == 0 && params.heads <= kMostTailHeads);
  BRAID_CHECK(q.cols == params.heads * args.head_dim && q.rows > 0 && q.rows <= kMostTailRows);
  BRAID_CHECK(args.head_dim % 8 == 0 && args.head_dim <= kMaxHeadDim);
  BRAID_CHECK(scores.type == DType::f32 && scores.rows == q.rows && scores.cols > 0);
  BRAID_CHECK(!rope_of_position ||
              (rope.cols == rope_of_position.cols && rope.cols <= args.head_dim &&
               rope.type == DType::f32 && rope_of_position.type == DType::f32));
  place_tail(context_, sequence_work_, args);
  const dim3 queries(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads));
  launch_early(context_, tail_query_kernel, queries, kTailThreads, 0, args);
  if (kv.cold) expand_tail_units(context_, sequence_work_.sealed, args);
  const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(args.kv_heads));
  const size_t shared = tail_floats(args.head_dim) * sizeof(float);
  launch_early(context_, tail_kernel<true>, grid, kTailThreads,
               shared + args.queries * sizeof(float2), args);
  const int64_t all = static_cast<int64_t>(args.kv_heads) * args.queries;
  launch_early(context_, tail_merge_kernel,
               dim3(static_cast<unsigned>(div_up<int64_t>(all, kTailWarps))), kTailThreads, 0,
               args);
  launch_early(context_, tail_kernel<false>, grid, kTailThreads,
               shared + args.rows * kTailTile * sizeof(int), args);
}

}  // namespace braid
