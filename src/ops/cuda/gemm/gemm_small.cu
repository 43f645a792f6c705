// gemm_small.cu -- y = x W^T for 9 to 128 rows of x and a few megabytes of 16-bit pairs: the router
// of experts. sm_90 (clusters). Twice as fast as the wgmma kernel for 128 rows.
//
// Latency is the only cost: weights load before the wait, x is read in place, and no warp has more
// than a few steps.
//   cluster   of 2 CTAs: 32 rows of y (one block) x 16 rows of x, half of k each.
//   warp      Every 8th 128 k of that, all 32 x 16 sums.
// Sums of the 16 warps meet once, in the order of the warps; each CTA stores 8 of the 16 rows of x.
#include "ops/cuda/gemm/gemm_skinny.cuh"

namespace braid::cuda {
namespace {

constexpr int kSmallWarps = 8;
constexpr int kSmallThreads = kSmallWarps * 32;
constexpr int kSmallRows = 16;  // of x
constexpr int kSmallStages = 2;
constexpr int kSmallStride = 36;  // 32 rows of y of a token, padded against bank conflicts
constexpr int kSmallSums = 8 * kSmallStride;  // of a warp, for one CTA
constexpr int kSmallShared =
    kSmallWarps * kSmallStages * half_bytes(Pack::f16) + 2 * kSmallWarps * kSmallSums * 4;

__global__ void __launch_bounds__(kSmallThreads, 1)
    gemm_small_kernel(const __grid_constant__ GemmArgs a) {
#if __CUDA_ARCH__ >= 900
  constexpr int kHalf = half_bytes(Pack::f16);
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kSmallWarps * kSmallStages];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint8_t* ring = dynamic + warp * kSmallStages * kHalf;
  float* exchange = reinterpret_cast<float*>(dynamic + kSmallWarps * kSmallStages * kHalf);
  const uint32_t full = shared_address(barriers + warp * kSmallStages);
  if (lane == 0) {
    for (int stage = 0; stage < kSmallStages; ++stage) init_barrier(full + 8 * stage, 1);
    publish_barriers();
  }
  __syncthreads();
  meet_cluster_arrive();  // another CTA's shared memory may be written once it has started

  const int rank = static_cast<int>(blockIdx.x) % 2;
  const int block = static_cast<int>(blockIdx.x) / 2;
  const int first_token = static_cast<int>(blockIdx.y) * kSmallRows;
  const int first = a.units * rank;  // halves, 2 a unit
  const int count = a.units > warp ? (a.units - warp + kSmallWarps - 1) / kSmallWarps : 0;
  const uint8_t* units = units_of<2 * kHalf>(a, a.parts, 0, block);
  const auto load = [&](int n) {
    if (n >= count || lane != 0) return;
    const uint32_t barrier = full + 8 * (n % kSmallStages);
    arrive_expecting(barrier, kHalf);
    copy_bulk(shared_address(ring) + n % kSmallStages * kHalf,
              units + static_cast<int64_t>(first + warp + n * kSmallWarps) * kHalf, kHalf, barrier);
  };
  for (int n = 0; n < kSmallStages; ++n) load(n);
  const RowTarget target = target_of(a, a.parts, 0, block, lane);
  wait_for_previous();
  let_next_start();

  const int g = lane / 4;
  const int c = lane % 4;
  float acc[2][2][4] = {};  // [8 rows of x][16 rows of y]
  for (int n = 0; n < count; ++n) {
    int half = first + warp + n * kSmallWarps;
    if (half >= 2 * a.x_units) half -= 2 * a.x_units;
    const int k = half * 128 + c * 32;
    uint4 b[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const Act* x = a.x + min(first_token + 8 * t + g, a.tokens - 1) * a.x_stride + k;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[t][i] =
            k + 8 * i < a.k ? *reinterpret_cast<const uint4*>(x + 8 * i) : make_uint4(0, 0, 0, 0);
    }
    wait_barrier(full + 8 * (n % kSmallStages), n / kSmallStages & 1);
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      FormatF16::Codes codes;
      FormatF16::load(codes, ring + n % kSmallStages * kHalf, lane, r16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Fragments f = FormatF16::fragments(codes, {}, i);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          mma(acc[t][r16], f.a[0], b[t][i].x, b[t][i].y, __half());
          mma(acc[t][r16], f.a[1], b[t][i].z, b[t][i].w, __half());
        }
      }
    }
    __syncwarp();
    load(n + kSmallStages);
  }
  __syncwarp();
  meet_cluster_wait();
  float* to = exchange + (rank * kSmallWarps + warp) * kSmallSums + 2 * c * kSmallStride + g;
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        store_remote(address_in(to + q % 2 * kSmallStride + r16 * 16 + q / 2 * 8, t),
                     acc[t][r16][q]);
  __syncwarp();
  meet_cluster_arrive();
  meet_cluster_wait();
  const int token = first_token + 8 * rank + warp;
  if (token >= a.tokens || target.part == nullptr) return;
  const float* from = exchange + warp * kSmallStride + lane;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < 2 * kSmallWarps; ++s) sum += from[s * kSmallSums];
  store_sum(target, token, sum, 0);
#endif
}

}  // namespace

bool small_fits(const Context& context, int64_t blocks, int units) {
  return context.has_clusters && blocks <= 16 && units <= 32 &&
         context.shared_bytes_per_block >= kSmallShared + 2048;
}

void launch_gemm_small(Context& context, const GemmArgs& args) {
  const dim3 grid(static_cast<unsigned>(2 * args.blocks),
                  static_cast<unsigned>(div_up(args.tokens, kSmallRows)));
  launch_clusters(context, 2, gemm_small_kernel, grid, kSmallThreads, kSmallShared, args);
}

}  // namespace braid::cuda
