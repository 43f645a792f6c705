// prefetch.cpp -- the size of the last-level cache (prefetch.h).

#include "ops/cpu/prefetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace braid::cpu {

size_t last_level_cache_bytes(const std::string& cpu_root) {
  size_t largest = 0;
  for (int index = 0; index < 8; index++) {
    std::ifstream file(fmt::format("{}/cpu0/cache/index{}/size", cpu_root, index));
    size_t size = 0;
    char unit = 0;
    if (!(file >> size >> unit) || size > (size_t{1} << 30)) continue;
    largest = std::max(largest, unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size_t{0});
  }
  return largest;
}

}  // namespace braid::cpu
