// embed.cu -- rows of tables: embed (decoded from the file's blocks) and gather_rows.
//
// Traffic: one row of the table in, one of f32 out per token; 27B: 2.9 + 20 KB, nothing beside a step's
// weights.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/cuda/primitives/launch.h"
#include "ops/cuda/raw_rows.cuh"

namespace braid {

using namespace cuda;

namespace cuda {

// Grid: rows x shares of 32 elements.
__global__ void embed_kernel(void* y, DType y_type, int64_t y_stride, const uint8_t* table, size_t row_bytes,
                             GgmlType type, int width, int64_t table_rows, const int32_t* token) {
  const int64_t row = blockIdx.x;
  const int k0 = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * 32;
  wait_for_previous();
  let_next_start();
  if (k0 >= width) return;
  const int32_t id = token[row];
  float values[32];
  for (float& v : values) v = 0;
  if (id >= 0 && id < table_rows) read_values(type, table + id * row_bytes, k0, width, values);
  for (int i = 0; i < 32 && k0 + i < width; ++i) store_as(y, y_type, row * y_stride + k0 + i, values[i]);
}

template <typename T>
__global__ void gather_kernel(T* y, int64_t y_stride, const T* x, int64_t x_stride, int width,
                              const int32_t* rows) {
  wait_for_previous();
  let_next_start();
  const int64_t to = blockIdx.x;
  const int32_t from = rows[to];
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[to * y_stride + i] = from < 0 ? T(0) : x[from * x_stride + i];
}

}  // namespace cuda

void CudaOps::embed(Tensor y, const Weight& table, const Batch& batch) {
  const PackedWeight& p = packed(table);
  BRAID_CHECK(p.table != nullptr && y.cols == table.k && y.rows >= batch.tokens);
  if (batch.tokens == 0) return;
  constexpr int kThreads = 64;
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up<int64_t>(table.k, 32 * kThreads)));
  launch_early(context_, embed_kernel, grid, kThreads, 0, y.data, y.type, y.stride, p.table,
               p.table_row_bytes, p.table_type, static_cast<int>(table.k), table.n, batch.token);
}

void CudaOps::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  BRAID_CHECK(y.cols == x.cols && y.rows >= count && y.type == x.type);
  if (count == 0) return;
  const auto grid = static_cast<unsigned>(count);
  const auto width = static_cast<int>(x.cols);
  if (x.type == DType::f32) {
    launch_early(context_, gather_kernel<float>, dim3(grid), 256, 0, static_cast<float*>(y.data), y.stride,
                 static_cast<const float*>(x.data), x.stride, width, rows);
  } else {
    launch_early(context_, gather_kernel<Act>, dim3(grid), 256, 0, static_cast<Act*>(y.data), y.stride,
                 static_cast<const Act*>(x.data), x.stride, width, rows);
  }
}

}  // namespace braid
