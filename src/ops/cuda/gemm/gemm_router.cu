// gemm_router.cu -- y = x W^T for up to 8 rows of x and a matrix of a few megabytes of 16-bit pairs; one row
// may be normed on the way: the router of experts in decoding. Clusters: sm_90. 9 to 128 rows:
// gemm_small.cu.
//
// As there, what counts is the length of the chain, and of the code, which every launch fetches anew: all
// weights are asked for before the wait, a warp multiplies one or two pieces of 16 rows x 128 k, and sums of
// all warps meet once.
//
//   cluster   of 4 CTAs: 16 rows of y, a quarter of k each
//   warp      every 8th piece of that; f32 weights have two for each 128 k of x
//
// Every CTA reads the whole row of the residual for its norm and keeps its quarter; the CTAs of the first
// cluster also write theirs. Bytes of the norm are those of norm.cu. CTA r adds up and stores rows 4 r ..
// of the 16, in the order of the warps.
#include "ops/cuda/gemm/gemm_router.h"

// Before 9.0 the kernels are empty, and nobody calls what they are made of.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

#include "ops/cuda/gemm/gemm_skinny.cuh"

namespace braid::cuda {
namespace {

constexpr int kRouterWarps = 8;
constexpr int kRouterThreads = kRouterWarps * 32;
constexpr int kRouterSlices = 4;  // CTAs of a cluster
constexpr int kRouterSources = kRouterSlices * kRouterWarps;
constexpr int kPieceBytes = half_bytes(Pack::f16) / 2;
constexpr int kRouterOut = 32;  // sums of a CTA: [token][4 rows]

// Halves of x of a CTA.
struct RouterSlice {
  int first, count;
  __host__ __device__ RouterSlice(int x_units, int rank)
      : first(2 * x_units * rank / kRouterSlices), count(2 * x_units * (rank + 1) / kRouterSlices - first) {}
};

// The place of piece `piece` (8 k) of a half of a row in shared memory, as in gemm_skinny_x.cuh.
__device__ inline int router_place(int half, int row, int rows, int piece) {
  return (half * rows + row) * 256 + ((piece ^ (piece >> 3) ^ ((row & 1) << 1)) << 4);
}

// A normed row: to shared memory this CTA's slice, which is written too if `writes`.
template <int kChunks>
__device__ inline void norm_router_row(const SkinnyArgs& a, const RouterSlice& slice, uint8_t* xs,
                                       float (&norm_sums)[kNormWarps], const float4 (&weight)[kChunks],
                                       bool writes) {
  static_assert(kMostNormRows == 1 && kNormThreads == 2 * kRouterThreads && kChunks % 2 == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  float4 held[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int column = 4 * (thread + i * kRouterThreads);
    held[i] = column < a.k ? __ldcg(reinterpret_cast<const float4*>(a.norm.residual + column))
                           : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int chain = 0; chain < 2; ++chain) {
    float sum = 0;
#pragma unroll
    for (int i = chain; i < kChunks; i += 2) sum = add_squares(sum, held[i]);
    sum = warp_sum(sum);
    if (thread % 32 == 0) norm_sums[chain * kRouterWarps + warp] = sum;
  }
  __syncthreads();
  const float inverse = inverse_of_sums(norm_sums, a.k, a.norm.eps);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int half = warp + i * kRouterWarps - slice.first;
    if (half < 0 || half >= slice.count) continue;
    const int k = 4 * (thread + i * kRouterThreads);
    const uint2 v = acts_of(normed(held[i], inverse, weight[i]));
    *reinterpret_cast<uint2*>(xs + router_place(half, 0, 1, thread % 32 / 2) + thread % 2 * 8) = v;
    if (writes && k < a.k) *reinterpret_cast<uint2*>(const_cast<Act*>(a.x) + k) = v;
  }
}

// Rows that are normed already.
__device__ inline void copy_router_rows(const SkinnyArgs& a, const RouterSlice& slice, uint8_t* xs) {
  const int piece = static_cast<int>(threadIdx.x) % 16;
  for (int half = static_cast<int>(threadIdx.x) / 16; half < slice.count; half += kRouterThreads / 16) {
    const int k = (slice.first + half) * 128 + piece * 8;
    for (int row = 0; row < a.tokens; ++row)
      copy_async_or_zero(shared_address(xs + router_place(half, row, a.tokens, piece)),
                         a.x + row * a.x_stride + (k < a.k ? k : 0), k < a.k);
  }
  wait_for_copies();
}

// kChunks: 1024 columns each.
template <int kChunks>
__global__ void __launch_bounds__(kRouterThreads)
    gemm_router_kernel(const __grid_constant__ SkinnyArgs a, int warp_pieces) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kRouterWarps];
  __shared__ __align__(16) float norm_sums[kNormWarps];
  __shared__ float exchange[kRouterSources * kRouterOut];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x) % kRouterSlices;
  const int block = static_cast<int>(blockIdx.x) / kRouterSlices / 2;
  const int r16 = static_cast<int>(blockIdx.x) / kRouterSlices % 2;
  const RouterSlice slice(a.x_units, rank);
  uint8_t* ring = dynamic + warp * warp_pieces * kPieceBytes;
  uint8_t* xs = dynamic + kRouterWarps * warp_pieces * kPieceBytes;
  const uint32_t full = shared_address(barriers + warp);
  const int pieces = a.units > a.x_units ? 2 * slice.count : slice.count;
  const int own = pieces > warp ? (pieces - warp + kRouterWarps - 1) / kRouterWarps : 0;
  if (lane == 0) {
    init_barrier(full, 1);
    publish_barriers();
  }
  __syncwarp();
  if (own > 0 && elected()) {
    const uint8_t* units = units_of<unit_bytes(Pack::f16)>(a, a.parts, 0, block) + r16 * kPieceBytes;
    arrive_expecting(full, own * kPieceBytes);
    for (int i = 0; i < own; ++i) {
      const int piece = warp + i * kRouterWarps;
      const int half =
          piece < slice.count ? slice.first + piece : 2 * a.x_units + slice.first + piece - slice.count;
      copy_bulk(shared_address(ring + i * kPieceBytes), units + int64_t{half} * 2 * kPieceBytes, kPieceBytes,
                full);
    }
  }
  __syncwarp();
  meet_cluster_arrive();  // another CTA's shared memory may be written once it has started
  RowTarget target;
  if (warp == 0) target = target_of(a, a.parts, 0, block, r16 * 16 + rank * (16 / kRouterSlices) + lane % 4);
  const bool norms = a.norm.residual != nullptr;
  float4 weight[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int column = 4 * (thread + i * kRouterThreads);
    weight[i] = make_float4(0, 0, 0, 0);
    if (norms && column < a.k) weight[i] = *reinterpret_cast<const float4*>(a.norm.weight + column);
  }
  wait_for_previous();
  let_next_start();
  if (norms) {
    norm_router_row<kChunks>(a, slice, xs, norm_sums, weight,
                             a.norm.writes && static_cast<int>(blockIdx.x) < kRouterSlices);
  } else {
    copy_router_rows(a, slice, xs);
  }
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const int row = min(g, a.tokens - 1);
  const int exchanged = (c >> 1) ^ ((row & 1) << 1);
  float acc[2][4] = {};
  if (own > 0) wait_barrier(full, 0);
  for (int i = 0; i < own; ++i) {
    const int piece = warp + i * kRouterWarps;
    const int half = piece < slice.count ? piece : piece - slice.count;
    const uint8_t* x_at = xs + (half * a.tokens + row) * 256 + c * 64;
    FormatF16::Codes codes;
    FormatF16::load(codes, ring + i * kPieceBytes, lane, 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 b = *reinterpret_cast<const uint4*>(x_at + ((j ^ exchanged) << 4));
      const Fragments f = FormatF16::fragments(codes, {}, j);
      mma(acc[0], f.a[0], b.x, b.y, __half());
      mma(acc[1], f.a[1], b.z, b.w, __half());
    }
  }
  __syncwarp();
  meet_cluster_wait();
  const float* to = exchange + (rank * kRouterWarps + warp) * kRouterOut + g % 4;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int token = 2 * c + q % 2;
    if (token < a.tokens) store_remote(address_in(to + token * 4, g / 4 + q / 2 * 2), acc[0][q] + acc[1][q]);
  }
  __syncwarp();
  meet_cluster_arrive();
  meet_cluster_wait();
  const int token = lane / 4;
  if (warp > 0 || target.part == nullptr || token >= a.tokens) return;
  float sum[kRouterSlices] = {};
#pragma unroll
  for (int w = 0; w < kRouterWarps; ++w)
#pragma unroll
    for (int s = 0; s < kRouterSlices; ++s) sum[s] += exchange[(s * kRouterWarps + w) * kRouterOut + lane];
  store_sum(target, token, (sum[0] + sum[1]) + (sum[2] + sum[3]), 0);
#endif
}

constexpr int kMostRouterUnits = 16;  // of x along k
int router_warp_pieces(int x_units, int units) {
  return div_up(div_up(2 * x_units, kRouterSlices) * (units / x_units), kRouterWarps);
}
int64_t router_shared(int x_units, int units, int rows) {
  return int64_t{kRouterWarps} * router_warp_pieces(x_units, units) * kPieceBytes +
         int64_t{div_up(2 * x_units, kRouterSlices)} * rows * 256;
}

}  // namespace

bool router_fits(const Context& context, int64_t blocks, int x_units, int units, int64_t rows) {
  return context.has_clusters && blocks <= 16 && rows <= kSkinnyRows && x_units <= kMostRouterUnits &&
         router_shared(x_units, units, static_cast<int>(rows)) + 8 * 1024 <=
             static_cast<int64_t>(context.shared_bytes_per_block);
}

void launch_gemm_router(Context& context, const GemmLaunch& launch) {
  const SkinnyArgs args{launch, launch.norm};
  launch_clusters(context, kRouterSlices,
                  args.x_units <= kMostRouterUnits / 2 ? gemm_router_kernel<2> : gemm_router_kernel<4>,
                  dim3(static_cast<unsigned>(2 * args.blocks * kRouterSlices)), kRouterThreads,
                  static_cast<size_t>(router_shared(args.x_units, args.units, args.tokens)), args,
                  router_warp_pieces(args.x_units, args.units));
}

}  // namespace braid::cuda
