// ordered_rows.h -- rows in the form in which the wgmma kernels of products read x.
//
// The form is an image of what their shared memory holds: 128 k of a tile of rows are one run of bytes, 64 k of each
// row after the other, in the order of k that packed units have (packed.h), the 16-byte pieces of a row exchanged by
// row % 8. order_rows (gemm.cu) makes it of rows; what writes a row for a product alone may write it so at once.
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace braid::cuda {

struct OrderedRows {
  void* to = nullptr;  // f16, 128-byte aligned; null: rows stay rows
  int columns = 0;     // rows of a tile
  int width = 0;       // k of a row: a multiple of 256
};

// A product that has been announced (Ops::announce_product), until it is made.
struct AnnouncedProduct {
  const void* x = nullptr;  // null: none is, or it reads rows
  int64_t rows = 0;
  OrderedRows ordered;
  bool written = false;  // `ordered` is, instead of x: by an op that asked

  // How y may be stored.
  OrderedRows wanted(Tensor y) const {
    return x != nullptr && y.data == x && y.rows == rows ? ordered : OrderedRows{};
  }
};

#if defined(__CUDACC__)
// Where k and k + 1 of a row are, side by side; k is even.
__device__ inline uint32_t* ordered_at(const OrderedRows& o, int row, int k) {
  const int own = row % o.columns;
  const int piece = k % 32 / 2;
  return reinterpret_cast<uint32_t*>(
      static_cast<uint8_t*>(o.to) + static_cast<int64_t>(row / o.columns) * o.columns * o.width * 2 +
      (static_cast<int64_t>(k / 128) * o.columns * 2 + piece / 8 * o.columns + own) * 128 +
      ((piece % 8 ^ own % 8) << 4) + k % 128 / 32 * 4);
}
// k .. k + 3 of a row; k is a multiple of 4.
__device__ inline void store_ordered(const OrderedRows& o, int row, int k, uint2 v) {
  uint32_t* at = ordered_at(o, row, k);
  *at = v.x;
  *reinterpret_cast<uint32_t*>(reinterpret_cast<uintptr_t>(at) ^ 16) = v.y;
}
#endif

}  // namespace braid::cuda
