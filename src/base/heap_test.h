// heap_test.h -- heap use of the process, for tests of memory estimates.
#pragma once

#include <malloc.h>

#include <cstdint>

namespace braid {

// 0 under a sanitizer, which replaces the heap.
inline uint64_t heap_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace braid
