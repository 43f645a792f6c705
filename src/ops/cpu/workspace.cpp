// workspace.cpp -- anonymous memory (workspace.h).

#include "ops/cpu/workspace.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace braid::cpu {

Result<Mapping> Mapping::make(size_t size_bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  Mapping m;
  if (size_bytes == 0) return m;
  // Trimmed to 2 MiB alignment, so that the kernel can use huge pages from the first byte.
  const size_t size = size_of(size_bytes);
  void* p = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return Error{ErrorKind::exhausted, fmt::format("cannot map {} MB of memory", size_bytes >> 20)};
  }
  auto* begin = static_cast<std::byte*>(p);
  const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (skip > 0) munmap(begin, skip);
  if (kHuge > skip) munmap(begin + skip + size, kHuge - skip);
  m.data_ = begin + skip;
  m.size_bytes_ = size;
  madvise(m.data_, size, MADV_HUGEPAGE);  // may fail, which only costs speed
  return m;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace braid::cpu
