// norm.cu -- add_norm: residual += x; y = residual / sqrt(mean(residual^2) + eps) * weight, a block
// per row.
//
// 512 threads hold a row of up to 8192 in registers between the two passes. The order of the sum
// depends only on the width (norm_math.cuh; norm_any: thread t adds its elements in ascending
// order, then warps, in order). Products of few rows norm for themselves (gemm_skinny_x.cuh).
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/norm.h"
#include "ops/cuda/norm_math.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kHeld = 4;  // float4 per thread in registers

struct NormArgs {
  void* y;
  DType y_type;
  int64_t y_stride;
  float* residual;
  int64_t residual_stride;
  const void* x;  // null: nothing to add
  DType x_type;
  int64_t x_stride;
  const float* weight;
  float eps;
  int width;
  OrderedRows ordered;
};

__device__ float4 load4(const void* data, DType type, int64_t index) {
  if (type == DType::f32)
    return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const Act*>(data) + index);
  const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
  return {a.x, a.y, b.x, b.y};
}

__device__ void store4(void* data, DType type, int64_t index, float4 v) {
  if (type == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = v;
    return;
  }
  *reinterpret_cast<uint2*>(static_cast<Act*>(data) + index) = acts_of(v);
}

// At most 56 registers, so that products of up to 32 rows start beside it (gemm_wgmma.cuh). Width
// at most 4 * kThreads * kHeld; width and strides are multiples of 4.
__global__ __launch_bounds__(kThreads) void norm_held(NormArgs a) {
  __shared__ __align__(16) float sums[kNormWarps];
  const int64_t row = blockIdx.x;
  float* residual = a.residual + row * a.residual_stride;
  float4 held[kHeld];
  float4 weight[kHeld];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = 4 * (threadIdx.x + i * kThreads);
    if (column < a.width) weight[i] = *reinterpret_cast<const float4*>(a.weight + column);
  }
  let_next_start();  // short, see launch.h
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = 4 * (threadIdx.x + i * kThreads);
    if (column >= a.width) break;
    float4 v = *reinterpret_cast<const float4*>(residual + column);
    if (a.x != nullptr) {
      const float4 added = load4(a.x, a.x_type, row * a.x_stride + column);
      v = {v.x + added.x, v.y + added.y, v.z + added.z, v.w + added.w};
      *reinterpret_cast<float4*>(residual + column) = v;
    }
    held[i] = v;
    sum = add_squares(sum, v);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float inverse = inverse_of_sums(sums, a.width, a.eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = 4 * (threadIdx.x + i * kThreads);
    if (column >= a.width) break;
    const float4 v = normed(held[i], inverse, weight[i]);
    store4(a.y, a.y_type, row * a.y_stride + column, v);
    if (a.ordered.to != nullptr)
      store_ordered(a.ordered, static_cast<int>(row), column, acts_of(v));
  }
}

__global__ __launch_bounds__(kThreads) void norm_any(NormArgs a) {
  __shared__ float scratch[33];
  const int64_t row = blockIdx.x;
  float* residual = a.residual + row * a.residual_stride;
  float sum = 0;
  let_next_start();  // short, see launch.h
  wait_for_previous();
  for (int column = threadIdx.x; column < a.width; column += kThreads) {
    float v = residual[column];
    if (a.x != nullptr) {
      v += load_as(a.x, a.x_type, row * a.x_stride + column);
      residual[column] = v;
    }
    sum += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(a.width) + a.eps);
  for (int column = threadIdx.x; column < a.width; column += kThreads) {
    store_as(a.y, a.y_type, row * a.y_stride + column,
             residual[column] * inverse * a.weight[column]);
  }
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

bool add_norm(Context& context, Tensor y, Tensor residual, Tensor x, const float* weight, float eps,
              const OrderedRows& ordered) {
  const int64_t width = residual.cols;
  BRAID_CHECK(y.cols == width && residual.rows >= y.rows && residual.type == DType::f32);
  BRAID_CHECK(y.type == DType::f32 || y.type == kActType);
  if (x) BRAID_CHECK(x.cols == width && x.rows >= y.rows);
  if (y.rows == 0) return true;
  NormArgs args{y.data,   y.type, y.stride, residual.f32(),         residual.stride, x.data, x.type,
                x.stride, weight, eps,      static_cast<int>(width)};
  const bool fours = width % 4 == 0 && width <= 4 * kThreads * kHeld && y.stride % 4 == 0 &&
                     residual.stride % 4 == 0 && x.stride % 4 == 0 && aligned16(y.data) &&
                     aligned16(residual.data) && aligned16(x.data) && aligned16(weight);
  const bool orders = ordered.to == nullptr || (fours && width % 256 == 0 && y.type == kActType);
  if (orders) args.ordered = ordered;
  launch_early(context, fours ? norm_held : norm_any, dim3(static_cast<unsigned>(y.rows)), kThreads,
               0, args);
  return orders;
}

}  // namespace braid::cuda

namespace braid {

void CudaOps::add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) {
  cuda::add_norm(context_, y, residual, x, weight, eps);
}

}  // namespace braid
