// ordered_rows.h -- rows in the form in which wgmma product kernels read x.
//
// An image of their shared memory: 128 k of a tile of rows are one run of bytes, 64 k of each row
// in turn. k is ordered as in packed units (packed.h), and 16-byte pieces are swizzled by row % 8.
// order_rows (gemm.cu) converts rows; a producer may also write this form directly.
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace braid::cuda {

struct OrderedRows {
  void* to = nullptr;  // f16, 128-byte aligned; null: plain rows
  int columns = 0;     // rows per tile
  int width = 0;       // k of a row: a multiple of 256
};

// An announced product (Ops::announce_product), until it is made.
struct AnnouncedProduct {
  const void* x = nullptr;  // null: none, or it reads plain rows
  int64_t rows = 0;
  OrderedRows ordered;
  bool written = false;  // an op has written `ordered` instead of x

  // The form in which an op may store y.
  OrderedRows wanted(Tensor y) const {
    return x != nullptr && y.data == x && y.rows == rows ? ordered : OrderedRows{};
  }
};

#if defined(__CUDACC__)
// The address of k and k + 1 of a row; k is even.
__device__ inline uint32_t* ordered_at(const OrderedRows& o, int row, int k) {
  const int own = row % o.columns;
  const int piece = k % 32 / 2;
  return reinterpret_cast<uint32_t*>(
      static_cast<uint8_t*>(o.to) +
      static_cast<int64_t>(row / o.columns) * o.columns * o.width * 2 +
      (static_cast<int64_t>(k / 128) * o.columns * 2 + piece / 8 * o.columns + own) * 128 +
      ((piece % 8 ^ own % 8) << 4) + k % 128 / 32 * 4);
}
// k is a multiple of 4.
__device__ inline void store_ordered(const OrderedRows& o, int row, int k, uint2 v) {
  uint32_t* at = ordered_at(o, row, k);
  *at = v.x;
  *reinterpret_cast<uint32_t*>(reinterpret_cast<uintptr_t>(at) ^ 16) = v.y;
}
#endif

}  // namespace braid::cuda
