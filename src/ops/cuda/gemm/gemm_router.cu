// gemm_router.cu -- y = x W^T for up to 8 rows of x and a few megabytes of 16-bit pairs, with an
// optional norm of x: the router of experts in decoding.
//
// Latency is the only cost. So a CTA has two rows of y (g and g + 8 of 16) and all of k: weights
// are in registers before the wait, and no other CTA is involved. Each CTA reads its rows of the
// residual whole for the norms, with the bytes of norm.cu.
//
// Tried and slower: clusters that cut k with weights in shared memory; no router kernel, with
// logits computed in the experts' first kernel. More: docs/design/cuda-kernels.md.
#include "ops/cuda/gemm/gemm_router.h"

#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/norm_math.cuh"

namespace braid::cuda {
namespace {

constexpr int kRouterThreads = 256;
constexpr int kRouterWarps = kRouterThreads / 32;
constexpr int kRouterWidth = 8;  // columns of a thread per chunk
constexpr int kChunkColumns = kRouterThreads * kRouterWidth;
constexpr int kMostRouterChunks = 2;
constexpr int kRouterRows = 2;  // rows of y per CTA
constexpr int kCtasOfBlock = kUnitRows / kRouterRows;
constexpr int kPieceBytes = half_bytes(Pack::f16) / 2;  // 16 rows x 128 k
static_assert(2 * kRouterThreads == kNormThreads && kChunkColumns == 4 * kNormThreads);

__device__ inline int column_of(int chunk) {
  return chunk * kChunkColumns + static_cast<int>(threadIdx.x) * kRouterWidth;
}

struct EightColumns {
  float v[kRouterWidth];

  __device__ void set(uint4 pairs) {
    const auto* two = reinterpret_cast<const __half2*>(&pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = __half22float2(two[i]);
      v[2 * i] = f.x;
      v[2 * i + 1] = f.y;
    }
  }
  __device__ void add(const EightColumns& other) {
#pragma unroll
    for (int i = 0; i < kRouterWidth; ++i) v[i] += other.v[i];
  }
  __device__ float dot(const EightColumns& other, float sum) const {
#pragma unroll
    for (int i = 0; i < kRouterWidth; ++i) sum = fmaf(v[i], other.v[i], sum);
    return sum;
  }
};

template <int kTokens>
struct RouterTokens {
  int first, count;
  __device__ explicit RouterTokens(const SkinnyArgs& a)
      : first(static_cast<int>(blockIdx.y) * kTokens), count(min(a.tokens - first, kTokens)) {}
};

// f32 weights are the sum of two units.
template <int kChunks>
__device__ inline void load_router(EightColumns (&w)[kChunks][kRouterRows], const SkinnyArgs& a,
                                   int block, int r16, int g) {
  const int lane = 4 * g + static_cast<int>(threadIdx.x) % 16 / 4;
  const int part = static_cast<int>(threadIdx.x) % 4;
  const uint8_t* units = units_of<unit_bytes(Pack::f16)>(a, a.parts, 0, block) + r16 * kPieceBytes;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int half = column_of(chunk) / 128;
#pragma unroll
    for (int row = 0; row < kRouterRows; ++row) {
      w[chunk][row] = {};
      if (half >= 2 * a.x_units) continue;
      const auto* piece = reinterpret_cast<const uint4*>(units + int64_t{half} * 2 * kPieceBytes) +
                          (4 * row + part) * 32 + lane;
      w[chunk][row].set(*piece);
      if (a.units == a.x_units) continue;
      EightColumns rest;
      rest.set(piece[int64_t{2} * a.x_units * 2 * kPieceBytes / 16]);
      w[chunk][row].add(rest);
    }
  }
}

// Normed rows, rounded like x; the CTA writes its share if the launch requires it.
template <int kTokens, int kChunks>
__device__ inline void norm_router_rows(EightColumns (&x)[kTokens][kChunks], const SkinnyArgs& a,
                                        const RouterTokens<kTokens>& tokens,
                                        const float4 (&weight)[kChunks][2],
                                        float (&norm_sums)[kTokens][kNormWarps]) {
  const int thread = static_cast<int>(threadIdx.x);
  float4 held[kTokens][kChunks][2];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const bool inside = t < tokens.count && column_of(chunk) < a.k;
      const auto* from = reinterpret_cast<const float4*>(
          a.norm.residual + (tokens.first + t) * a.norm.residual_stride + column_of(chunk));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        held[t][chunk][i] = inside ? __ldcg(from + i) : make_float4(0, 0, 0, 0);
    }
  float chains[2 * kTokens] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        chains[i * kTokens + t] = add_squares(chains[i * kTokens + t], held[t][chunk][i]);
  // The even chain of a token in the lower of 16 lanes, the odd one in the upper, as in warp_sum().
  constexpr int kLanes = 8 / kTokens;
  const int lane = thread % 16;
  float sum = group_sum<16>(chains, lane, kFullWarp);
  sum += __shfl_xor_sync(kFullWarp, sum, 8);
  if (lane < 8 && lane % kLanes == 0) norm_sums[lane / kLanes][thread / 16] = sum;
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float inverse = inverse_of_sums(norm_sums[t], a.k, a.norm.eps);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint2 low = acts_of(normed(held[t][chunk][0], inverse, weight[chunk][0]));
      const uint2 high = acts_of(normed(held[t][chunk][1], inverse, weight[chunk][1]));
      const uint4 eight = {low.x, low.y, high.x, high.y};
      x[t][chunk].set(eight);
      const int share = chunk * kRouterThreads + thread;
      if (a.norm.writes && t < tokens.count && column_of(chunk) < a.k &&
          share % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x))
        *reinterpret_cast<uint4*>(const_cast<Act*>(a.x) + (tokens.first + t) * a.x_stride +
                                  column_of(chunk)) = eight;
    }
  }
}

template <int kTokens, int kChunks>
__global__ void __launch_bounds__(kRouterThreads, 2)
    gemm_router_kernel(const __grid_constant__ SkinnyArgs a) {
  __shared__ __align__(16) float norm_sums[kTokens][kNormWarps];
  __shared__ float sums[kRouterWarps][kTokens * kRouterRows];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x) / kCtasOfBlock;
  const int r16 = static_cast<int>(blockIdx.x) / 8 % 2;
  const int g = static_cast<int>(blockIdx.x) % 8;
  const RouterTokens<kTokens> tokens(a);
  const bool norms = a.norm.residual != nullptr;
  float4 weight[kChunks][2] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (norms && column_of(chunk) < a.k)
        weight[chunk][i] = reinterpret_cast<const float4*>(a.norm.weight + column_of(chunk))[i];
  EightColumns w[kChunks][kRouterRows];
  load_router(w, a, block, r16, g);
  const int token = thread / kRouterRows;
  RowTarget target;
  if (token < tokens.count)
    target = target_of(a, a.parts, 0, block, r16 * 16 + g + thread % kRouterRows * 8);
  wait_for_previous();
  let_next_start();

  EightColumns x[kTokens][kChunks] = {};
  if (norms) {
    norm_router_rows(x, a, tokens, weight, norm_sums);
  } else {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
        if (t < tokens.count && column_of(chunk) < a.k)
          x[t][chunk].set(__ldcg(reinterpret_cast<const uint4*>(
              a.x + (tokens.first + t) * a.x_stride + column_of(chunk))));
  }
  float dots[kTokens * kRouterRows] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int row = 0; row < kRouterRows; ++row)
        dots[kRouterRows * t + row] = x[t][chunk].dot(w[chunk][row], dots[kRouterRows * t + row]);
  const float own = group_sum<32>(dots, thread % 32, kFullWarp);
  constexpr int kLanes = 32 / (kTokens * kRouterRows);  // lanes with the same sum
  if (thread % kLanes == 0) sums[thread / 32][thread % 32 / kLanes] = own;
  __syncthreads();
  if (target.part == nullptr) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kRouterWarps; ++warp) sum += sums[warp][thread];
  store_sum(target, tokens.first + token, sum, 0);
}

template <int kTokens>
void launch_router(Context& context, const SkinnyArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.blocks * kCtasOfBlock),
                  static_cast<unsigned>(div_up(args.tokens, kTokens)));
  launch_early(context,
               args.k <= kChunkColumns ? gemm_router_kernel<kTokens, 1>
                                       : gemm_router_kernel<kTokens, kMostRouterChunks>,
               grid, kRouterThreads, 0, args);
}

}  // namespace

bool router_fits(int64_t blocks, int x_units) {
  return blocks <= 16 && x_units * kUnitWidth <= kMostRouterChunks * kChunkColumns;
}

void launch_gemm_router(Context& context, const GemmLaunch& launch) {
  const SkinnyArgs args{launch, launch.norm};
  if (args.tokens == 1) return launch_router<1>(context, args);
  if (args.tokens <= 4) return launch_router<2>(context, args);
  launch_router<4>(context, args);
}

}  // namespace braid::cuda
