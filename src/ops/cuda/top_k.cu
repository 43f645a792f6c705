// top_k.cu -- the largest logits of a row and its log-sum-exp.
//
// A row is cut into shares; a CTA sorts its share (64-bit keys: the number made orderable above, the
// complement of the id below, so ties go to the lowest id) and keeps the k first together with max and sum of
// exp. A second CTA per row sorts what the shares kept. Sorting is bitonic in shared memory: 91 steps for
// 8192 keys, about 8 us, and no pass depends on the data. 128 rows of 248320: 127 MB read once, about 120 us
// of sorting spread over all SMs; one row: 12 us in all. Sums are added in the order of the row.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kKeys = 8192;  // sorted at once
constexpr int kThreads = 1024;
constexpr int kMostShares = 32;
constexpr int kRowsAtOnce = 128;

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

// Grid: shares x rows.
__global__ void __launch_bounds__(kThreads) share_top(const float* logits, int64_t stride, int width, int k,
                                                      unsigned long long* kept, ShareSum* sums) {
  extern __shared__ unsigned long long keys[];
  __shared__ float scratch[33];
  const int64_t row = blockIdx.y;
  const int shares = static_cast<int>(gridDim.x);
  const int share = static_cast<int>(blockIdx.x);
  const auto begin = static_cast<int>(static_cast<int64_t>(width) * share / shares);
  const auto end = static_cast<int>(static_cast<int64_t>(width) * (share + 1) / shares);
  const float* x = logits + row * stride;
  int held = 0;
  float most = -INFINITY;
  for (int at = begin; at < end;) {
    const int fresh = min(kKeys - held, end - at);
    for (int i = threadIdx.x; i < kKeys - held; i += blockDim.x) {
      unsigned long long key = 0;
      if (i < fresh) {
        const float v = x[at + i];
        key = static_cast<unsigned long long>(ordered(v)) << 32 | ~static_cast<uint32_t>(at + i);
        most = fmaxf(most, v);
      }
      keys[held + i] = key;
    }
    sort_down(keys, kKeys);
    held = k;
    at += fresh;
  }
  for (int i = threadIdx.x; i < k; i += blockDim.x) kept[(row * shares + share) * k + i] = keys[i];
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) most = fmaxf(most, scratch[i]);
  float sum = 0;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += blockDim.x) sum += expf(x[i] - most);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[row * shares + share] = {most, sum};
}

__global__ void __launch_bounds__(kThreads)
    merge_top(float* values, int64_t values_stride, int32_t* ids, int64_t ids_stride, float* log_sum,
              int64_t log_sum_stride, int k, int shares, const unsigned long long* kept,
              const ShareSum* sums) {
  extern __shared__ unsigned long long keys[];
  const int64_t row = blockIdx.x;
  int count = 2;
  while (count < shares * k) count *= 2;
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    keys[i] = i < shares * k ? kept[row * shares * k + i] : 0;
  sort_down(keys, count);
  for (int i = threadIdx.x; i < k; i += blockDim.x) {
    values[row * values_stride + i] = number(static_cast<uint32_t>(keys[i] >> 32));
    ids[row * ids_stride + i] = static_cast<int32_t>(~static_cast<uint32_t>(keys[i]));
  }
  if (threadIdx.x == 0) {
    const ShareSum* s = sums + row * shares;
    float most = s[0].most;
    for (int i = 1; i < shares; ++i) most = fmaxf(most, s[i].most);
    float sum = 0;
    for (int i = 0; i < shares; ++i) sum += s[i].sum * expf(s[i].most - most);
    log_sum[row * log_sum_stride] = most + logf(sum);
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
  static bool ready = false;
  if (!ready) {
    for (const void* kernel :
         {reinterpret_cast<const void*>(share_top), reinterpret_cast<const void*>(merge_top)})
      context_.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kKeys * 8),
                    "shared memory of top_k");
    ready = true;
  }
  const auto width = static_cast<int>(logits.cols);
  // A share must hold at least k numbers for its sort to be worth more than the merge.
  const int shares = std::max(1, std::min(kMostShares, width / 4096));
  auto* kept = reinterpret_cast<unsigned long long*>(top_k_work_);
  auto* sums = reinterpret_cast<ShareSum*>(top_k_work_ + kept_bytes());
  for (int64_t first = 0; first < logits.rows; first += kRowsAtOnce) {
    const auto rows = static_cast<unsigned>(std::min<int64_t>(kRowsAtOnce, logits.rows - first));
    share_top<<<dim3(static_cast<unsigned>(shares), rows), kThreads, kKeys * 8, context_.stream>>>(
        logits.f32(first), logits.stride, width, k, kept, sums);
    context_.launched("top_k of shares");
    merge_top<<<rows, kThreads, kKeys * 8, context_.stream>>>(
        values.f32(first), values.stride, static_cast<int32_t*>(ids.data) + first * ids.stride, ids.stride,
        log_sum.f32(first), log_sum.stride, k, shares, kept, sums);
    context_.launched("top_k");
  }
}

}  // namespace braid
