// embed.cu -- rows of tables: embed (decoded from the file's blocks) and gather_rows.
//
// Traffic: one row of the table in, one of f32 out per token; 27B: 2.9 + 20 KB, nothing beside a step's
// weights.
#include <type_traits>

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

template <typename To, typename From>
__global__ void gather_kernel(To* y, int64_t y_stride, const From* x, int64_t x_stride, int width,
                              const int32_t* rows) {
  wait_for_previous();
  let_next_start();
  const int64_t to = blockIdx.x;
  const int64_t from = rows == nullptr ? to : rows[to];
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
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
  constexpr int kThreads = 64;
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up<int64_t>(table.k, 32 * kThreads)));
  launch_early(context_, embed_kernel, grid, kThreads, 0, y.data, y.type, y.stride, p.table,
               p.table_row_bytes, p.table_type, static_cast<int>(table.k), table.n, batch.token);
}

void CudaOps::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  BRAID_CHECK(y.cols == x.cols && y.rows >= count);
  BRAID_CHECK(y.type == x.type || (rows == nullptr && x.type == DType::f32));
  if (count == 0) return;
  const auto grid = static_cast<unsigned>(count);
  const auto width = static_cast<int>(x.cols);
  const auto launch = [&](auto* to, const auto* from) {
    using To = std::remove_pointer_t<decltype(to)>;
    using From = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
    launch_early(context_, gather_kernel<To, From>, dim3(grid), 256, 0, to, y.stride, from, x.stride, width,
                 rows);
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
