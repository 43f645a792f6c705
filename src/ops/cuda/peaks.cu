// peaks.cu -- peak rates of this GPU, the reference of `braid bench --profile`.
//
// Copy and reads: 16 bytes a thread, 1 GiB. Products: f16 by wgmma on sm_90a, else mma.sync. The
// best of a few runs. Numbers are random, because zeros multiply faster.
#include <algorithm>

#include "ops/cuda/mma.h"
#include "ops/cuda/profile.h"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;
constexpr int kThreads = 512;
constexpr int kProductThreads = 256;  // two warpgroups
constexpr int kTurns = 4096;

__global__ void fill_random(uint32_t* data, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    data[i] = (x & 0x83ff83ffu) | 0x38003800u;  // two f16 numbers between 0.5 and 1, of either sign
  }
}

__global__ void copy_all(uint4* to, const uint4* from, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) __stcs(to + i + j * step, v[j]);
  }
}

__global__ void read_all(const uint4* from, int64_t count, uint32_t* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 12345) *out = sum;
}

// 64 rows a warpgroup (16 a warp without wgmma) x 128 columns x 16 k, kTurns times 4 k-steps.
__global__ __launch_bounds__(kProductThreads, 1) void multiply(const uint32_t* numbers,
                                                               float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(1024) uint32_t b[128 * 32];  // 128 columns of 64 k
  for (int i = threadIdx.x; i < 128 * 32; i += kProductThreads) b[i] = numbers[i];
#endif
  uint32_t a[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = numbers[4096 + threadIdx.x * 16 + 4 * i + j];
  }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  float sums[16][4] = {};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(b));
  for (int turn = 0; turn < kTurns; ++turn) {
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_wgmma<128>(sums, a[i], wgmma_operand(base + 32 * i));
    commit_wgmma();
    wait_wgmma<0>();
  }
#else
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < 16; ++n) mma(sums[n], a[i], a[n % 4][0], a[n % 4][1], __half());
    }
  }
#endif
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 16; ++n) sum += sums[n][0] + sums[n][1] + sums[n][2] + sums[n][3];
  out[blockIdx.x * kProductThreads + threadIdx.x] = sum;
}

template <typename Launch>
double best_seconds(Context& context, Launch launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  context.note(cudaEventCreate(&begin), "an event");
  context.note(cudaEventCreate(&end), "an event");
  double best = 1e30;
  for (int run = 0; run < 6; ++run) {
    context.note(cudaEventRecord(begin, context.stream), "measuring");
    launch();
    context.launched("measuring");
    context.note(cudaEventRecord(end, context.stream), "measuring");
    context.note(cudaStreamSynchronize(context.stream), "measuring");
    float ms = 0;
    context.note(cudaEventElapsedTime(&ms, begin, end), "measuring");
    if (run > 0 && ms > 0) best = std::min(best, 1e-3 * static_cast<double>(ms));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace

Result<DevicePeaks> measure_peaks(Device& device, Context& context) {
  BRAID_ASSIGN(const Buffer from, device.allocate(kBytes, "measuring"));
  BRAID_ASSIGN(const Buffer to, device.allocate(kBytes, "measuring"));
  const auto blocks = static_cast<unsigned>(context.processors);
  auto* source = static_cast<uint4*>(from.data());
  auto* target = static_cast<uint4*>(to.data());
  constexpr int64_t kCount = kBytes / static_cast<int64_t>(sizeof(uint4));
  fill_random<<<4 * blocks, kThreads, 0, context.stream>>>(static_cast<uint32_t*>(from.data()),
                                                           kBytes / 4);
  context.launched("measuring");
  DevicePeaks peaks;
  peaks.copy_bytes_s =
      2.0 * kBytes / best_seconds(context, [&] {
        copy_all<<<4 * blocks, kThreads, 0, context.stream>>>(target, source, kCount);
      });
  peaks.read_bytes_s = 1.0 * kBytes / best_seconds(context, [&] {
                         read_all<<<4 * blocks, kThreads, 0, context.stream>>>(
                             source, kCount, static_cast<uint32_t*>(to.data()));
                       });
  // 64 rows per warpgroup of wgmma, or per four warps of mma.sync.
  const double rows = kProductThreads / 2;
  const double seconds = best_seconds(context, [&] {
    multiply<<<blocks, kProductThreads, 0, context.stream>>>(
        static_cast<const uint32_t*>(from.data()), static_cast<float*>(to.data()));
  });
  peaks.product_flops_s = 2.0 * rows * 128 * 16 * 4 * kTurns * context.processors / seconds;
  BRAID_TRY(device.health());
  return peaks;
}

}  // namespace braid::cuda
