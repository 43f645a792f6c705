// ranges.h -- parts of a text, in tokens and in bytes, and the chunks that are kept or dropped.
// All ranges are half open. Chunk k holds tokens k * kChunkTokens to (k + 1) * kChunkTokens; the
// last one may be shorter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace braid {

inline constexpr size_t kChunkTokens = 32;

constexpr size_t chunk_count(size_t tokens) { return (tokens + kChunkTokens - 1) / kChunkTokens; }

struct TokenRange {
  size_t begin = 0, end = 0;  // tokens

  bool operator==(const TokenRange&) const = default;
};

struct ByteRange {
  size_t begin = 0, end = 0;  // bytes

  bool operator==(const ByteRange&) const = default;
};

// The same tokens: ascending, not empty, neither overlapping nor touching.
inline std::vector<TokenRange> merged(std::vector<TokenRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
  std::vector<TokenRange> out;
  for (const TokenRange& range : ranges) {
    if (range.begin == range.end) continue;
    if (!out.empty() && range.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

}  // namespace braid
