// sparse_choice.cu -- see sparse_choice.h.
//
// The choice: a block of threads has the queries of a query block and a query head in shared
// memory, for one head of a KV head after the other. Each warp multiplies 16 means with all of
// them, so that the sum over the queries stays in the warp. Products are 1/128 of those of full
// attention.
#include "ops/cuda/attention/sparse_choice.h"

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct ChoiceArgs {
  AttentionArgs a;
  SparseWorkspace work;
  float threshold_log2;
};

// The last band of the sequence in a slot, or the sequence itself; -1: none. All threads call.
__device__ int band_in_slot(const AttentionArgs& a, int slot) {
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.batch.sequences; i += kThreads) {
    if (!takes_part(a.sparse, i)) continue;
    const int s = a.sparse.of_sequence == nullptr ? i : a.sparse.of_sequence[i];
    if (sparse_slot(a.sparse.first_row[s]) == slot) atomicMax(&found, i);
  }
  __syncthreads();
  return found;
}

// x: key block, y: KV head, z: slot. A thread adds eight dims of every kGroups-th key.
template <int kHeadDim, typename Number>
__global__ __launch_bounds__(kThreads) void mean_kernel(const __grid_constant__ ChoiceArgs args) {
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kGroups = kThreads / kPieces;
  __shared__ float sums[kGroups][kHeadDim + 4];
  const AttentionArgs& a = args.a;
  wait_for_previous();
  let_next_start();
  const int n = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int band = band_in_slot(a, static_cast<int>(blockIdx.z));
  if (band < 0) return;
  const int s = a.sparse.of_sequence == nullptr ? band : a.sparse.of_sequence[band];
  const int last = a.sparse.position[a.sparse.first_row[s] + a.sparse.rows[s] - 1];
  if (n >= last / kSparseBlock) return;
  const int32_t* table = table_of(a, band);
  // A pair of bands shifts the cells from the last row's border on (row_view).
  const bool pair = a.exact_from != nullptr && is_pair(a.exact_from[band]);
  const int hole = pair ? border_of(a.tail, last) * kBlockTokens : 1 << 30;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int group = static_cast<int>(threadIdx.x) / kPieces;
  float sum[8] = {};
#pragma unroll 4
  for (int r = group; r < kSparseBlock; r += kGroups) {
    int cell = n * kSparseBlock + r;
    if (cell >= hole) cell += kBlockTokens;
    const int64_t row = pool_cell(a, table[cell / kBlockTokens], kv_head) + cell % kBlockTokens;
    const uint4 x = *reinterpret_cast<const uint4*>(a.kv.k + (row * kHeadDim + piece * 8) * 2);
    const uint32_t* words = &x.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack(words[i], Number());
      sum[2 * i] += two.x;
      sum[2 * i + 1] += two.y;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[group][piece * 8 + i] = sum[i];
  __syncthreads();
  uint16_t* to =
      args.work.means +
      ((static_cast<int64_t>(blockIdx.z) * a.kv_heads + kv_head) * args.work.blocks + n) * kHeadDim;
  for (int dim = static_cast<int>(threadIdx.x); dim < kHeadDim; dim += kThreads) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) total += sums[i][dim];
    reinterpret_cast<__half*>(to)[dim] = __float2half_rn(total / kSparseBlock);
  }
}

struct QueryBlock {
  int s, m;
  int begin, end;  // rows of the batch
};
// s < 0: no sequence has it. All threads call.
__device__ QueryBlock query_block(const SparseArgs& a, int number) {
  __shared__ QueryBlock found;
  if (threadIdx.x == 0) found.s = -1;
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < a.sequences; s += kThreads) {
    if (!takes_part(a.rows[s], a.certain[s])) continue;
    const int first = a.first_row[s], rows = a.rows[s], position = a.position[first];
    const int own = number - first_query_block(first);
    const int before = position % kSparseBlock;  // rows of the first query block in earlier steps
    if (own < 0 || own * kSparseBlock >= before + rows) continue;
    found = {s, position / kSparseBlock + own, first + max(0, own * kSparseBlock - before),
             first + min(rows, (own + 1) * kSparseBlock - before)};
  }
  __syncthreads();
  return found;
}

template <int kHeadDim>
struct Choice {
  static constexpr int kStride = kHeadDim + 8;  // 8 rows cover all banks
  static constexpr int kQueryBytes = kSparseBlock * kStride * 2;

  const AttentionArgs& a;
  const QueryBlock& block;
  uint32_t q;        // shared address of [128][kStride] f16
  float* mass;       // [m], log2
  uint32_t* chosen;  // bits of [start]
  float* scratch;    // [kWarps]

  // Rows without a query become zeros.
  __device__ void load_queries(int head) const {
    constexpr int kPieces = kHeadDim / 8;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kSparseBlock * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const int t = min(block.begin + row, block.end - 1);
      copy_async_or_zero(q + (row * kStride + piece * 8) * 2,
                         static_cast<const Act*>(a.q.data) + t * a.q.stride +
                             static_cast<int64_t>(head) * kHeadDim + piece * 8,
                         block.begin + row < block.end);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
  }

  // Masses of the means n0 .. n0 + 15.
  __device__ void add_means(const uint16_t* means, int n0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    float z[kSparseBlock / 8][4] = {};
    const uint32_t from = q + ((lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8) * 2;
    const auto word = [&](int n, int dim) {
      return n < block.m ? *reinterpret_cast<const uint32_t*>(
                               means + static_cast<int64_t>(n) * kHeadDim + dim)
                         : 0u;
    };
#pragma unroll 2
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const int dim = step * 16 + 2 * c;
      const uint32_t k[4] = {word(n0 + g, dim), word(n0 + g + 8, dim), word(n0 + g, dim + 8),
                             word(n0 + g + 8, dim + 8)};
#pragma unroll
      for (int i = 0; i < kSparseBlock / 16; ++i) {
        uint32_t x[4];
        load_matrices(x, from + i * 16 * kStride * 2 + step * 32);
        mma(z[2 * i], k, x[0], x[1], __half());
        mma(z[2 * i + 1], k, x[2], x[3], __half());
      }
    }
    const int queries = block.end - block.begin;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kSparseBlock / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = z[i][2 * r + j];
          x = i * 8 + 2 * c + j < queries ? x * a.scale : -INFINITY;
          top = fmaxf(top, x);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kSparseBlock / 8; ++i)
        sum += exp2f(z[i][2 * r] - top) + exp2f(z[i][2 * r + 1] - top);
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      const int n = n0 + g + 8 * r;
      if (c == 0 && n < block.m) mass[n] = top + log2f(sum);
    }
  }

  __device__ void choose(int start, float threshold_log2) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    float top = -INFINITY;
    for (int n = static_cast<int>(threadIdx.x); n < block.m; n += kThreads)
      top = fmaxf(top, mass[n]);
    top = warp_max(top);
    if (lane == 0) scratch[warp] = top;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, scratch[w]);
    for (int word = warp; word * 32 < start; word += kWarps) {
      const int n = word * 32 + lane;
      const unsigned bits = __ballot_sync(kFullWarp, n < start && mass[n] >= top + threshold_log2);
      if (lane == 0) chosen[word] |= bits;
    }
    __syncthreads();
  }
};

// x: query block, y: KV head.
template <int kHeadDim>
__global__ __launch_bounds__(kThreads) void choice_kernel(const __grid_constant__ ChoiceArgs args) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float scratch[kWarps];
  const AttentionArgs& a = args.a;
  const SparseWorkspace& work = args.work;
  wait_for_previous();
  let_next_start();
  const QueryBlock block = query_block(a.sparse, static_cast<int>(blockIdx.x));
  if (block.s < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int start = window_start(block.m, a.exact_from != nullptr, a.tail);
  auto* mass = reinterpret_cast<float*>(memory + Choice<kHeadDim>::kQueryBytes);
  auto* chosen = reinterpret_cast<uint32_t*>(mass + work.blocks);
  for (int word = static_cast<int>(threadIdx.x); word * 32 < start; word += kThreads)
    chosen[word] = word == 0 ? (1u << kSparseSinks) - 1 : 0;
  __syncthreads();
  if (start > kSparseSinks) {
    const Choice<kHeadDim> choice{a, block, shared_address(memory), mass, chosen, scratch};
    const int slot = sparse_slot(a.sparse.first_row[block.s]);
    const uint16_t* means =
        work.means + (static_cast<int64_t>(slot) * a.kv_heads + kv_head) * work.blocks * kHeadDim;
    for (int i = 0; i < a.group; ++i) {
      choice.load_queries(kv_head * a.group + i);
      for (int n0 = static_cast<int>(threadIdx.x) / 32 * 16; n0 < block.m; n0 += 16 * kWarps)
        choice.add_means(means, n0);
      __syncthreads();
      choice.choose(start, args.threshold_log2);
    }
  }
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t list = static_cast<int64_t>(blockIdx.x) * a.kv_heads + kv_head;
  uint16_t* to = work.lists + list * work.blocks;
  int count = 0;
  for (int first = 0; first < start; first += 32) {
    const unsigned bits = chosen[first / 32];
    const bool own = first + lane < start && (bits >> lane & 1) != 0;
    const unsigned kept = __ballot_sync(kFullWarp, own);
    if (own) to[count + __popc(kept & ((1u << lane) - 1))] = static_cast<uint16_t>(first + lane);
    count += __popc(kept);
  }
  if (lane != 0) return;
  work.lengths[list] = count;
  atomicAdd(work.counts, static_cast<unsigned long long>(count + block.m + 1 - start));
  atomicAdd(work.counts + 1, static_cast<unsigned long long>(block.m + 1));
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const ChoiceArgs& args, const Batch& whole) {
  const int64_t cells = int64_t{args.a.batch.blocks_per_sequence} * kBlockTokens;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(cells / kSparseBlock + 1, args.work.blocks));
  const auto kv_heads = static_cast<unsigned>(args.a.kv_heads);
  launch_early(context, mean_kernel<kHeadDim, Number>,
               dim3(blocks, kv_heads,
                    static_cast<unsigned>(most_sparse_slots(whole.tokens, whole.sequences))),
               kThreads, 0, args);
  launch_early(context, choice_kernel<kHeadDim>,
               dim3(static_cast<unsigned>(most_query_blocks(whole.tokens)), kv_heads), kThreads,
               choice_bytes(kHeadDim, args.work.blocks), args);
  return true;
}

}  // namespace

size_t choice_bytes(int32_t head_dim, int32_t blocks) {
  return static_cast<size_t>(kSparseBlock) * (static_cast<size_t>(head_dim) + 8) * 2 +
         static_cast<size_t>(blocks) * sizeof(float) +
         (static_cast<size_t>(blocks) + 31) / 32 * sizeof(uint32_t);
}

bool may_choose(const AttentionArgs& args) {
  const Batch& batch = args.batch;
  return batch.sparse_threshold > 0 && args.window == 0 && args.first_cell == 0 &&
         batch.tokens >= kSparseRows && (batch.most_rows == 0 || batch.most_rows >= kSparseRows);
}

void choose_blocks(Context& context, const SparseWorkspace& work, const Batch& whole,
                   const int32_t* of_sequence, AttentionArgs& args) {
  BRAID_CHECK(work.lists != nullptr && most_query_blocks(whole.tokens) <= work.query_blocks &&
              most_sparse_slots(whole.tokens, whole.sequences) <= work.slots);
  args.sparse = {.lists = work.lists,
                 .lengths = work.lengths,
                 .blocks = work.blocks,
                 .position = whole.position,
                 .first_row = whole.first_row,
                 .rows = whole.rows,
                 .certain = whole.certain,
                 .of_sequence = of_sequence,
                 .sequences = whole.sequences};
  const ChoiceArgs choice{args, work, std::log2(whole.sparse_threshold)};
  const bool known = launch_instance(args, [&]<int kHeadDim, typename Number>() {
    return launch<kHeadDim, Number>(context, choice, whole);
  });
  BRAID_CHECK(known);
}

}  // namespace braid::cuda
