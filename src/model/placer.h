// placer.h -- places tensors one after the other in one memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.h"

namespace braid {

// base == nullptr: only counts.
class Placer {
 public:
  explicit Placer(std::byte* base, size_t offset = 0) : base_(base), offset_(offset) {}
  size_t offset() const { return offset_; }

  Tensor take(int64_t rows, int64_t cols, DType type = DType::f32) {
    constexpr size_t kAlignBytes = 64;
    Tensor t{base_ == nullptr ? nullptr : base_ + offset_, type, rows, cols, cols};
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(cols) * size_bytes(type);
    offset_ += (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    return t;
  }

 private:
  std::byte* base_;
  size_t offset_;
};

}  // namespace braid
