// prefetch.h -- how far ahead of their use weights are prefetched, decided once per load.
//
// The distance that suits memory does not suit the cache. Decode on 2 cores of a Zen 3, AVX2, 1.5 KB
// against 4.6 KB: a 0.8B model in memory 46 against 35 tok/s; the demo model, which fits the 32 MiB of
// last-level cache, 1,415 against 1,806 (Q4_K_M) and 714 against 848 (Q8_0). More than 4.6 KB, and hints
// other than T0, lose in both.
//
// Not here: the distances of the AVX-512 and NEON tables, which are constants of their layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid::cpu {

inline constexpr int64_t kAheadInCache = 4608, kAheadInMemory = 1536;

// Size of the largest cache of the first CPU, as /sys says (`cpu_root` is /sys/devices/system/cpu); 0:
// unknown.
size_t last_level_cache_bytes(const std::string& cpu_root);

inline int64_t prefetch_distance(size_t weight_bytes, size_t cache_bytes) {
  return weight_bytes <= cache_bytes ? kAheadInCache : kAheadInMemory;
}

}  // namespace braid::cpu
