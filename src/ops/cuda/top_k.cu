// top_k.cu -- the largest logits of a row and its log-sum-exp. The row is read once.
//
// A row is cut into shares of 8192 numbers (multiples of that above 32 shares), a CTA each, 32
// numbers a thread in registers. A key is the orderable number above the complement of the id, so
// ties go to the lowest id. A binary search over the threads' maxima finds a bound that few more
// than k numbers reach; those are ranked against each other. With too many (ties) the search is
// repeated over all numbers, then over ids. A second kernel merges the shares.
//
// Tried and slower: always searching all numbers; sorting shares in shared memory; 8 numbers a
// thread. More: docs/design/cuda-kernels.md.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/gemm/gemm_common.cuh"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kShareThreads = 256;
constexpr int kPerThread = 32;
constexpr int kShare = kShareThreads * kPerThread;
constexpr int kMostShares = 32;
constexpr int kRowsAtOnce = 128;
constexpr int kListed = 1024;
constexpr int kMergeThreads = 1024;
constexpr int kMergePerThread = 4;
static_assert(kMostShares * kMostTopK <= kMergeThreads * kMergePerThread);
static_assert(kMostTopK <= kShareThreads && kMostShares <= 32);

struct ShareSum {
  float most;
  float sum;
};

__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float number(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Sorts descending; count is a power of two.
__device__ inline void sort_down(unsigned long long* keys, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < count / 2; i += blockDim.x) {
        const int low = 2 * step * (i / step) + i % step;
        const int high = low + step;
        const bool down = (low & size) == 0;
        const unsigned long long a = keys[low];
        const unsigned long long b = keys[high];
        if ((a < b) == down) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

struct ShareMemory {
  int counts[32];
  unsigned long long list[kMostTopK];
  unsigned long long near[kListed];
  int listed;
  alignas(16) float scratch[33];  // read four at a time: nothing else in its words
};

__device__ inline unsigned long long whole(uint32_t key, int id) {
  return static_cast<unsigned long long>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline uint32_t key_of(unsigned long long entry) {
  return static_cast<uint32_t>(entry >> 32);
}
__device__ inline int id_of(unsigned long long entry) {
  return static_cast<int>(~static_cast<uint32_t>(entry));
}

// At least k of the threads' maxima reach the bound; 0: fewer than k have one. Empties the list.
__device__ inline uint32_t bound_of(uint32_t most, int k, ShareMemory& sh) {
  if (threadIdx.x == 0) sh.listed = 0;
  uint32_t bound = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = bound | 1u << bit;
    const int all = __syncthreads_count(most >= candidate);
    if (all >= k) {
      bound = candidate;
      if (all <= k + k / 4) break;
    }
  }
  return bound;
}
__device__ inline void put_near(uint32_t key, int id, ShareMemory& sh) {
  const int at = atomicAdd(&sh.listed, 1);
  if (at < kListed) sh.near[at] = whole(key, id);
}
// The k largest of the list, in order. False: too many, the list is unchanged.
__device__ inline bool rank_near(int k, ShareMemory& sh) {
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int listed = sh.listed;
  if (listed > kListed) return false;
  int each_log2 = 3;
  while (each_log2 > 0 && listed << each_log2 > threads) --each_log2;
  const int each = 1 << each_log2;
  for (int first = 0; first < listed; first += threads >> each_log2) {
    const int at = first + (thread >> each_log2);
    const unsigned long long own = at < listed ? sh.near[at] : 0;
    int rank = 0;
#pragma unroll 4
    for (int i = thread & (each - 1); i < listed; i += each) rank += sh.near[i] > own;
    for (int offset = each / 2; offset > 0; offset /= 2)
      rank += __shfl_xor_sync(kFullWarp, rank, offset);
    if (own != 0 && (thread & (each - 1)) == 0 && rank < k) sh.list[rank] = own;
  }
  if (thread >= listed && thread < k) sh.list[thread] = 0;
  __syncthreads();
  return true;
}

// For any numbers, unordered. key(i), id(i): of this thread's `count`; key 0: none.
template <int kCount, class Key, class Id>
__device__ inline void list_all(const Key& key, const Id& id, int k, ShareMemory& sh) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto total = [&](int own) {
    own = __reduce_add_sync(kFullWarp, own);
    if (lane == 0) sh.counts[thread / 32] = own;
    __syncthreads();
    const int all = __reduce_add_sync(kFullWarp, lane < warps ? sh.counts[lane] : 0);
    __syncthreads();
    return all;
  };
  uint32_t threshold = 0;
  int reached = 0;  // numbers at or above it
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | 1u << bit;
    int own = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) own += key(i) >= candidate;
    const int all = total(own);
    if (all >= k) {
      threshold = candidate;
      reached = all;
      if (all == k) break;
    }
  }
  // Too many at the threshold: ids up to `last` only.
  int last = 0x7fffffff;
  if (reached > k) {
    int own = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) own += key(i) > threshold;
    const int wanted = k - total(own);
    int below = -1;  // fewer than `wanted` ties have ids up to here
    for (int bit = 30; bit >= 0; --bit) {
      const int64_t candidate = int64_t{below} + (int64_t{1} << bit);
      if (candidate > 0x7ffffffe) continue;
      own = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) own += key(i) == threshold && id(i) <= candidate;
      if (total(own) < wanted) below = static_cast<int>(candidate);
    }
    last = below + 1;
  }
  if (thread == 0) sh.listed = 0;
  if (thread < k) sh.list[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t own = key(i);
    const bool chosen = own != 0 && (own > threshold || (own == threshold && id(i) <= last));
    if (chosen) sh.list[atomicAdd(&sh.listed, 1)] = whole(own, id(i));
  }
  __syncthreads();
}

// NaN counts as the smallest number, as do places past the end (not kFull). Returns the largest.
template <bool kFull>
__device__ inline float load_piece(float (&v)[kPerThread], const float* x, int left) {
  const int thread = static_cast<int>(threadIdx.x);
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int at = i * kShareThreads + thread;
    v[i] = kFull || at < left ? x[at] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    v[i] = fmaxf(v[i], -INFINITY);
    if (!kFull && i * kShareThreads + thread >= left) v[i] = NAN;
    most = fmaxf(most, v[i]);
  }
  return most;
}
// For sums of many terms.
__device__ inline float fast_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.442695041f));
  return y;
}

// Grid: shares x rows. The best k are carried from piece to piece of a share.
__global__ void __launch_bounds__(kShareThreads, 4)
    share_top(const float* logits, int64_t stride, int width, int pieces, int k,
              unsigned long long* kept, ShareSum* sums) {
  __shared__ ShareMemory sh;
  // Only one warp: the wait is long, beside the product that makes the logits.
  if (threadIdx.x < 32) wait_for_previous();
  __syncthreads();
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.y;
  const int shares = static_cast<int>(gridDim.x);
  const int share = static_cast<int>(blockIdx.x);
  const int begin = share * pieces * kShare;
  const int end = min(width, begin + pieces * kShare);
  const float* x = logits + row * stride;

  float most = -INFINITY;
  float sum = 0;
  for (int at = begin; at < end; at += kShare) {
    float v[kPerThread];
    const int left = end - at;
    const bool full = left >= kShare;
    const float own_most =
        full ? load_piece<true>(v, x + at, left) : load_piece<false>(v, x + at, left);
    const unsigned long long before = at > begin && thread < k ? sh.list[thread] : 0;
    // Sum of exp, relative to the largest so far.
    float piece_most = warp_max(own_most);
    if (thread % 32 == 0) sh.scratch[thread / 32] = piece_most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kShareThreads / 32; ++i) piece_most = fmaxf(piece_most, sh.scratch[i]);
    const float now_most = fmaxf(most, piece_most);
    float part = 0;
    if (now_most > -INFINITY) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const float term = fast_exp(v[i] - now_most);
        part += full || !isnan(v[i]) ? term : 0.0f;
      }
      sum *= most > -INFINITY ? expf(most - now_most) : 0.0f;
    }
    sum += block_sum(part, sh.scratch);
    most = now_most;

    const uint32_t bound = bound_of(max(ordered(own_most), key_of(before)), k, sh);
    const float least = bound <= ordered(-INFINITY) ? -INFINITY : number(bound);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
      if (v[i] >= least) put_near(ordered(v[i]), at + i * kShareThreads + thread, sh);
    if (before != 0 && key_of(before) >= bound) put_near(key_of(before), id_of(before), sh);
    if (rank_near(k, sh)) continue;
    // Reads the numbers again, to save registers.
    const auto id = [&](int i) {
      return i == kPerThread ? id_of(before) : at + i * kShareThreads + thread;
    };
    const auto key = [&](int i) {
      if (i == kPerThread) return key_of(before);
      return id(i) < end ? ordered(fmaxf(x[id(i)], -INFINITY)) : 0;
    };
    list_all<kPerThread + 1>(key, id, k, sh);
  }
  if (thread < k) kept[(row * shares + share) * k + thread] = sh.list[thread];
  if (thread == 0) sums[row * shares + share] = {most, sum};
}

__global__ void __launch_bounds__(kMergeThreads)
    merge_top(float* values, int64_t values_stride, int32_t* ids, int64_t ids_stride,
              float* log_sum, int64_t log_sum_stride, int k, int shares,
              const unsigned long long* kept, const ShareSum* sums, const int32_t* token_of) {
  __shared__ ShareMemory sh;
  if (threadIdx.x < 32) wait_for_previous();
  __syncthreads();
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  unsigned long long own[kMergePerThread];
  uint32_t most_key = 0;
#pragma unroll
  for (int i = 0; i < kMergePerThread; ++i) {
    const int at = i * kMergeThreads + thread;
    own[i] = at < shares * k ? __ldcg(kept + row * shares * k + at) : 0;
    most_key = max(most_key, key_of(own[i]));
  }
  if (thread < 32) {
    const ShareSum part = thread < shares ? sums[row * shares + thread] : ShareSum{-INFINITY, 0};
    const float most = warp_max(part.most);
    const float sum = warp_sum(part.sum > 0 ? part.sum * expf(part.most - most) : 0.0f);
    if (thread == 0) log_sum[row * log_sum_stride] = most + logf(sum);
  }
  const uint32_t bound = bound_of(most_key, k, sh);
#pragma unroll
  for (int i = 0; i < kMergePerThread; ++i)
    if (own[i] != 0 && key_of(own[i]) >= bound) put_near(key_of(own[i]), id_of(own[i]), sh);
  if (!rank_near(k, sh)) {
    list_all<kMergePerThread>([&](int i) { return key_of(own[i]); },
                              [&](int i) { return id_of(own[i]); }, k, sh);
    if (thread >= k && thread < kMostTopK) sh.list[thread] = 0;
    sort_down(sh.list, kMostTopK);
  }
  if (thread < k) {
    values[row * values_stride + thread] = number(static_cast<uint32_t>(sh.list[thread] >> 32));
    const auto column = static_cast<int32_t>(~static_cast<uint32_t>(sh.list[thread]));
    ids[row * ids_stride + thread] = token_of == nullptr ? column : token_of[column];
  }
}

size_t kept_bytes() { return sizeof(unsigned long long) * kRowsAtOnce * kMostShares * kMostTopK; }

}  // namespace

size_t top_k_bytes() { return kept_bytes() + sizeof(ShareSum) * kRowsAtOnce * kMostShares; }

}  // namespace cuda

void CudaOps::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                    const int32_t* token_of) {
  const auto k = static_cast<int>(values.cols);
  BRAID_CHECK(k > 0 && k <= kMostTopK && k <= logits.cols && ids.cols == k &&
              ids.type == DType::i32);
  BRAID_CHECK(values.rows >= logits.rows && ids.rows >= logits.rows && log_sum.rows >= logits.rows);
  const auto width = static_cast<int>(logits.cols);
  const int all_pieces = div_up(width, kShare);
  const int pieces = div_up(all_pieces, kMostShares);  // per share
  const int shares = div_up(all_pieces, pieces);
  auto* kept = reinterpret_cast<unsigned long long*>(top_k_work_);
  auto* sums = reinterpret_cast<ShareSum*>(top_k_work_ + kept_bytes());
  for (int64_t first = 0; first < logits.rows; first += kRowsAtOnce) {
    const auto rows = static_cast<unsigned>(std::min<int64_t>(kRowsAtOnce, logits.rows - first));
    launch_early(context_, share_top, dim3(static_cast<unsigned>(shares), rows), kShareThreads, 0,
                 static_cast<const float*>(logits.f32(first)), logits.stride, width, pieces, k,
                 kept, sums);
    launch_early(context_, merge_top, dim3(rows), kMergeThreads, 0, values.f32(first),
                 values.stride, static_cast<int32_t*>(ids.data) + first * ids.stride, ids.stride,
                 log_sum.f32(first), log_sum.stride, k, shares,
                 static_cast<const unsigned long long*>(kept), static_cast<const ShareSum*>(sums),
                 token_of);
  }
}

}  // namespace braid
