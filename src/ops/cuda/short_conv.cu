// short_conv.cu -- mixes rows of a draft block with the rows before them, a thread per number.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/launch.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kConvThreads = 256;

__global__ __launch_bounds__(kConvThreads) void short_conv_kernel(Tensor y, Tensor x, Tensor mix,
                                                                  ShortConv conv, bool adds,
                                                                  Batch batch) {
  wait_for_previous();
  let_next_start();
  const int t = static_cast<int>(blockIdx.x);
  const int c = static_cast<int>(blockIdx.y * kConvThreads + threadIdx.x);
  const int width = static_cast<int>(x.cols);
  if (c >= width) return;
  const int s = batch.sequence[t];
  const int taps = s < 0 ? 0 : min(conv.taps, t - batch.first_row[s] + 1);
  const int groups = width / conv.group;
  const float* own = static_cast<const float*>(mix.data) + t * mix.stride + c / conv.group;
  float sum = 0;
  for (int j = 0; j < taps; ++j)
    sum += (conv.base[j * width + c] + own[j * groups]) *
           load_as(x.data, x.type, (t - j) * x.stride + c);
  const int64_t at = t * y.stride + c;
  store_as(y.data, y.type, at, adds ? load_as(y.data, y.type, at) + sum : sum);
}

}  // namespace
}  // namespace cuda

void CudaOps::short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                         const Batch& batch) {
  BRAID_CHECK(conv.taps > 0 && conv.taps <= kMostConvTaps && conv.group > 0 &&
              x.cols % conv.group == 0);
  BRAID_CHECK(mix.type == DType::f32 && mix.cols == conv.taps * (x.cols / conv.group) &&
              y.cols == x.cols);
  BRAID_CHECK(x.rows >= batch.tokens && y.rows >= batch.tokens && mix.rows >= batch.tokens);
  BRAID_CHECK(tail != Tail::silu_mul);
  if (batch.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up<int64_t>(x.cols, kConvThreads)));
  launch_early(context_, short_conv_kernel, grid, kConvThreads, 0, y, x, mix, conv,
               tail == Tail::add, batch);
}

}  // namespace braid
