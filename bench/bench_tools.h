// bench_tools.h -- helpers of the kernel benchmarks: list arguments and a clock.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace braid::bench {

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out(1);
  for (const char c : list) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace braid::bench
