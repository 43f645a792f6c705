// heap_test.h -- for tests of what predicts memory: what the program has of its heap.
#pragma once

#include <malloc.h>

#include <cstdint>

namespace braid {

// 0 under a sanitizer, which has a heap of its own.
inline uint64_t heap_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace braid
