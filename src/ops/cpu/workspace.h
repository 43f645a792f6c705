// workspace.h -- anonymous memory for weights and for the scratch of products.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace braid::cpu {

// Zero-filled, 2 MiB-aligned, huge pages if possible; takes memory when touched.
class Mapping {
 public:
  static Result<Mapping> make(size_t size_bytes);
  static size_t size_of(size_t size_bytes) { return (size_bytes + 4095) / 4096 * 4096; }
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Cuts a mapping into 64-byte aligned pieces. With data == nullptr it only counts.
class Carver {
 public:
  explicit Carver(std::byte* data) : data_(data) {}
  template <typename T>
  T* take(size_t count) {
    std::byte* at = data_ != nullptr ? data_ + used_ : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t used_bytes() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

}  // namespace braid::cpu
