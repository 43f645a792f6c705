// top_k.cu -- the largest logits of a row and its log-sum-exp.
//
// A row is cut into shares of up to 8192 numbers, one CTA each, eight numbers a thread in registers. Numbers
// become keys of 64 bits: the number made orderable above, the complement of the id below, so that ties go to
// the lowest id. The k-th largest of the threads' largest numbers, found bit by bit from the top (a count
// over the CTA each), is a bound that few more than k numbers reach; those go to a list, where each finds its
// rank by looking at all others. If too many reach it (ties), the k-th largest of all numbers is searched the
// same way, then the last id at it. A second CTA per row does the same with what the shares kept. The row is
// read once.
//
// 128 rows of 248320: 127 MB, floor 30 us. Tried: the search over all numbers always, 267 us; sorting each
// share of 8192 keys whole in shared memory, 126 us for one row and 2.6 ms for 128; sorting what 31 shares
// kept, 30 us. Reached: 10 us for one row, 38 for 32, 145 for 128. Tried: a bound from twice k of the warps'
// largest instead of one bit after the other, kept from share to share of a block that takes several: 14 us
// for one row, 40 for 32, 124 for 128; what a block does for all its 1024 threads costs most there.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/product_pipeline.cuh"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPerThread = 8;
constexpr int kShare = kThreads * kPerThread;
constexpr int kMostShares = 32;
constexpr int kRowsAtOnce = 128;
constexpr int kListed = kThreads;
static_assert(kMostShares * kMostTopK <= kThreads * kPerThread);

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

// keys[0 .. count) descending; count is a power of two.
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

// Eight numbers of a thread, the ninth is one of those kept so far. Key 0: nothing.
struct Numbers {
  uint32_t key[kPerThread + 1];
  int id[kPerThread + 1];

  __device__ unsigned long long whole(int i) const {
    return static_cast<unsigned long long>(key[i]) << 32 | ~static_cast<uint32_t>(id[i]);
  }
};

struct ShareMemory {
  int counts[32];
  unsigned long long list[kMostTopK];
  unsigned long long near[kListed];
  int listed;
  float scratch[33];
};

// The k largest to sh.list if few numbers reach the bound; false: many do, and the list is as it was.
__device__ inline bool list_near(const Numbers& n, int k, ShareMemory& sh) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i <= kPerThread; ++i) most = max(most, n.key[i]);
  uint32_t bound = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = bound | 1u << bit;
    const int all = __syncthreads_count(most >= candidate);
    if (all >= k) {
      bound = candidate;
      if (all == k) break;
    }
  }
  if (thread == 0) sh.listed = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i <= kPerThread; ++i) {
    if (n.key[i] == 0 || n.key[i] < bound) continue;
    const int at = atomicAdd(&sh.listed, 1);
    if (at < kListed) sh.near[at] = n.whole(i);
  }
  __syncthreads();
  const int listed = sh.listed;
  if (listed > kListed) return false;
  if (thread < listed) {
    const unsigned long long own = sh.near[thread];
    int rank = 0;
#pragma unroll 4
    for (int i = 0; i < listed; ++i) rank += sh.near[i] > own;
    if (rank < k) sh.list[rank] = own;
  } else if (thread < k) {
    sh.list[thread] = 0;
  }
  __syncthreads();
  return true;
}

// The same for any numbers: the k-th largest of all, and the last id at it.
__device__ inline void list_all(const Numbers& n, int k, ShareMemory& sh) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const auto total = [&](int own) {
    own = __reduce_add_sync(kFullWarp, own);
    if (lane == 0) sh.counts[thread / 32] = own;
    __syncthreads();
    const int all = __reduce_add_sync(kFullWarp, sh.counts[lane]);
    __syncthreads();
    return all;
  };
  uint32_t threshold = 0;
  int reached = 0;  // how many are at or above it
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | 1u << bit;
    int own = 0;
#pragma unroll
    for (int i = 0; i <= kPerThread; ++i) own += n.key[i] >= candidate;
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
    for (int i = 0; i <= kPerThread; ++i) own += n.key[i] > threshold;
    const int wanted = k - total(own);
    int below = -1;  // fewer than `wanted` ties have ids up to here
    for (int bit = 30; bit >= 0; --bit) {
      const int64_t candidate = int64_t{below} + (int64_t{1} << bit);
      if (candidate > 0x7ffffffe) continue;
      own = 0;
#pragma unroll
      for (int i = 0; i <= kPerThread; ++i) own += n.key[i] == threshold && n.id[i] <= candidate;
      if (total(own) < wanted) below = static_cast<int>(candidate);
    }
    last = below + 1;
  }
  if (thread == 0) sh.listed = 0;
  if (thread < k) sh.list[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i <= kPerThread; ++i) {
    const bool chosen = n.key[i] != 0 && (n.key[i] > threshold || (n.key[i] == threshold && n.id[i] <= last));
    if (chosen) sh.list[atomicAdd(&sh.listed, 1)] = n.whole(i);
  }
  __syncthreads();
}

// Grid: shares x rows. A share longer than 8192 goes through in pieces; the k kept so far come along.
__global__ void __launch_bounds__(kThreads) share_top(const float* logits, int64_t stride, int width, int k,
                                                      unsigned long long* kept, ShareSum* sums) {
  __shared__ ShareMemory sh;
  // Not by all threads: they would wait for long, beside the product that makes the logits.
  if (threadIdx.x < 32) wait_for_previous();
  __syncthreads();
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.y;
  const int shares = static_cast<int>(gridDim.x);
  const int share = static_cast<int>(blockIdx.x);
  const auto begin = static_cast<int>(static_cast<int64_t>(width) * share / shares);
  const auto end = static_cast<int>(static_cast<int64_t>(width) * (share + 1) / shares);
  const float* x = logits + row * stride;

  float most = -INFINITY;
  float sum = 0;
  for (int at = begin; at < end; at += kShare) {
    Numbers n;
    float piece_most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      n.id[i] = at + i * kThreads + thread;
      n.key[i] = 0;
      if (n.id[i] < end) {
        float v = x[n.id[i]];
        if (isnan(v)) v = -INFINITY;
        n.key[i] = ordered(v);
        piece_most = fmaxf(piece_most, v);
      }
    }
    n.key[kPerThread] = 0;
    n.id[kPerThread] = 0;
    if (at > begin && thread < k) {
      n.key[kPerThread] = static_cast<uint32_t>(sh.list[thread] >> 32);
      n.id[kPerThread] = static_cast<int>(~static_cast<uint32_t>(sh.list[thread]));
    }
    // Sum of exp, relative to the largest so far.
    piece_most = warp_max(piece_most);
    if (thread % 32 == 0) sh.scratch[thread / 32] = piece_most;
    __syncthreads();
    for (int i = 0; i < 32; ++i) piece_most = fmaxf(piece_most, sh.scratch[i]);
    const float now_most = fmaxf(most, piece_most);
    float part = 0;
    if (now_most > -INFINITY) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i)
        if (n.key[i] != 0) part += expf(number(n.key[i]) - now_most);
      sum *= most > -INFINITY ? expf(most - now_most) : 0.0f;
    }
    sum += block_sum(part, sh.scratch);
    most = now_most;
    if (!list_near(n, k, sh)) list_all(n, k, sh);
  }
  if (thread < k) kept[(row * shares + share) * k + thread] = sh.list[thread];
  if (thread == 0) sums[row * shares + share] = {most, sum};
}

__global__ void __launch_bounds__(kThreads)
    merge_top(float* values, int64_t values_stride, int32_t* ids, int64_t ids_stride, float* log_sum,
              int64_t log_sum_stride, int k, int shares, const unsigned long long* kept,
              const ShareSum* sums) {
  __shared__ ShareMemory sh;
  if (threadIdx.x < 32) wait_for_previous();
  __syncthreads();
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  Numbers n;
#pragma unroll
  for (int i = 0; i <= kPerThread; ++i) {
    const int at = i * kThreads + thread;
    const unsigned long long whole = at < shares * k ? __ldcg(kept + row * shares * k + at) : 0;
    n.key[i] = static_cast<uint32_t>(whole >> 32);
    n.id[i] = static_cast<int>(~static_cast<uint32_t>(whole));
  }
  if (thread < 32) {
    const ShareSum own = thread < shares ? sums[row * shares + thread] : ShareSum{-INFINITY, 0};
    const float most = warp_max(own.most);
    const float sum = warp_sum(own.sum > 0 ? own.sum * expf(own.most - most) : 0.0f);
    if (thread == 0) log_sum[row * log_sum_stride] = most + logf(sum);
  }
  if (!list_near(n, k, sh)) {
    list_all(n, k, sh);
    if (thread >= k && thread < kMostTopK) sh.list[thread] = 0;
    sort_down(sh.list, kMostTopK);
  }
  if (thread < k) {
    values[row * values_stride + thread] = number(static_cast<uint32_t>(sh.list[thread] >> 32));
    ids[row * ids_stride + thread] = static_cast<int32_t>(~static_cast<uint32_t>(sh.list[thread]));
  }
}

size_t kept_bytes() { return sizeof(unsigned long long) * kRowsAtOnce * kMostShares * kMostTopK; }

}  // namespace

size_t top_k_bytes() { return kept_bytes() + sizeof(ShareSum) * kRowsAtOnce * kMostShares; }

}  // namespace cuda

void CudaOps::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits) {
  const auto k = static_cast<int>(values.cols);
  BRAID_CHECK(k > 0 && k <= kMostTopK && k <= logits.cols && ids.cols == k && ids.type == DType::i32);
  BRAID_CHECK(values.rows >= logits.rows && ids.rows >= logits.rows && log_sum.rows >= logits.rows);
  const auto width = static_cast<int>(logits.cols);
  const int shares = std::clamp(div_up(width, kShare), 1, kMostShares);
  auto* kept = reinterpret_cast<unsigned long long*>(top_k_work_);
  auto* sums = reinterpret_cast<ShareSum*>(top_k_work_ + kept_bytes());
  for (int64_t first = 0; first < logits.rows; first += kRowsAtOnce) {
    const auto rows = static_cast<unsigned>(std::min<int64_t>(kRowsAtOnce, logits.rows - first));
    launch_early(context_, share_top, dim3(static_cast<unsigned>(shares), rows), kThreads, 0,
                 static_cast<const float*>(logits.f32(first)), logits.stride, width, k, kept, sums);
    launch_early(context_, merge_top, dim3(rows), kThreads, 0, values.f32(first), values.stride,
                 static_cast<int32_t*>(ids.data) + first * ids.stride, ids.stride, log_sum.f32(first),
                 log_sum.stride, k, shares, static_cast<const unsigned long long*>(kept),
                 static_cast<const ShareSum*>(sums));
  }
}

}  // namespace braid
