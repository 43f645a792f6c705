// embed.cu -- rows of tables: embed (decoded from the file's blocks) and gather_rows.
#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/raw_rows.cuh"

namespace braid {

using namespace cuda;

namespace cuda {

constexpr int kEmbedThreads = 64;
constexpr int kEmbedEach = 32;  // elements per thread
constexpr int kGatherThreads = 256;
constexpr int kGatherEach = 4;

// Grid: rows x shares of the width. Decoded numbers go through shared memory for coalesced stores.
__global__ __launch_bounds__(kEmbedThreads) void embed_kernel(
    void* y, DType y_type, int64_t y_stride, const uint8_t* table, size_t row_bytes, GgmlType type,
    int width, int64_t table_rows, const int32_t* token) {
  constexpr int kStride = kEmbedEach + 1;  // against bank conflicts
  __shared__ float decoded[kEmbedThreads * kStride];
  const int64_t row = blockIdx.x;
  const int begin = static_cast<int>(blockIdx.y) * kEmbedThreads * kEmbedEach;
  const int k0 = begin + static_cast<int>(threadIdx.x) * kEmbedEach;
  wait_for_previous();
  let_next_start();
  const int32_t id = token[row];
  float values[kEmbedEach] = {};
  if (k0 < width && id >= 0 && id < table_rows)
    read_values(type, table + id * row_bytes, k0, width, values);
  for (int i = 0; i < kEmbedEach; ++i) decoded[threadIdx.x * kStride + i] = values[i];
  __syncthreads();
  const int count = min(width - begin, kEmbedThreads * kEmbedEach);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kEmbedThreads)
    store_as(y, y_type, row * y_stride + begin + i,
             decoded[i / kEmbedEach * kStride + i % kEmbedEach]);
}

template <typename To, typename From>
__global__ __launch_bounds__(kGatherThreads) void gather_kernel(To* y, int64_t y_stride,
                                                                const From* x, int64_t x_stride,
                                                                int width, const int32_t* rows) {
  wait_for_previous();
  let_next_start();
  const int64_t to = blockIdx.x;
  const int64_t from = rows == nullptr ? to : rows[to];
  const int begin = static_cast<int>(blockIdx.y) * kGatherThreads * kGatherEach;
#pragma unroll
  for (int n = 0; n < kGatherEach; ++n) {
    const int i = begin + n * kGatherThreads + static_cast<int>(threadIdx.x);
    if (i >= width) break;
    To* const at = y + to * y_stride + i;
    if constexpr (std::is_same_v<To, From>) {
      *at = from < 0 ? To(0) : x[from * x_stride + i];
    } else {
      store(at, from < 0 ? 0.0f : x[from * x_stride + i]);
    }
  }
}

}  // namespace cuda

void CudaOps::embed(Tensor y, const Weight& table, const Batch& batch) {
  const PackedWeight& p = packed(table);
  BRAID_CHECK(p.table != nullptr && y.cols == table.k && y.rows >= batch.tokens);
  if (batch.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up<int64_t>(table.k, kEmbedThreads * kEmbedEach)));
  launch_early(context_, embed_kernel, grid, kEmbedThreads, 0, y.data, y.type, y.stride, p.table,
               p.table_row_bytes, p.table_type, static_cast<int>(table.k), table.n, batch.token);
}

void CudaOps::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  BRAID_CHECK(y.cols == x.cols && y.rows >= count);
  BRAID_CHECK(y.type == x.type || (rows == nullptr && x.type == DType::f32));
  if (count == 0) return;
  const auto width = static_cast<int>(x.cols);
  const dim3 grid(static_cast<unsigned>(count),
                  static_cast<unsigned>(div_up(width, kGatherThreads * kGatherEach)));
  const auto launch = [&](auto* to, const auto* from) {
    using To = std::remove_pointer_t<decltype(to)>;
    using From = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
    launch_early(context_, gather_kernel<To, From>, grid, kGatherThreads, 0, to, y.stride, from,
                 x.stride, width, rows);
  };
  const auto* from = static_cast<const float*>(x.data);
  if (x.type != DType::f32) {
    launch(static_cast<Act*>(y.data), static_cast<const Act*>(x.data));
  } else if (y.type == DType::f32) {
    launch(static_cast<float*>(y.data), from);
  } else {
    launch(static_cast<Act*>(y.data), from);
  }
}

}  // namespace braid
