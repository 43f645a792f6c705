// chunk_scores.cpp -- see chunk_scores.h.
#include "text/compress/chunk_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace braid {
namespace {

std::vector<float> finite_scores(std::span<const float> scores) {
  bool found = false;
  float lowest = 0;
  for (const float score : scores) {
    if (!std::isfinite(score) || (found && score >= lowest)) continue;
    lowest = score;
    found = true;
  }
  std::vector<float> out(scores.begin(), scores.end());
  for (float& score : out)
    if (!std::isfinite(score)) score = lowest;
  return out;
}

// In double: sums of floats never overflow.
float mean_of(std::span<const float> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return static_cast<float>(sum / static_cast<double>(values.size()));
}

}  // namespace

// Each mean is summed anew. A running sum would lose small scores behind a large one.
std::vector<float> smoothed_scores(std::span<const float> scores) {
  const std::vector<float> finite = finite_scores(scores);
  const std::span<const float> all = finite;
  constexpr size_t kReach = kPoolTokens / 2;
  std::vector<float> out(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t begin = i - std::min(i, kReach);
    const size_t end = std::min(i + kReach + 1, all.size());
    out[i] = mean_of(all.subspan(begin, end - begin));
  }
  return out;
}

std::vector<float> chunk_means(std::span<const float> smoothed) {
  std::vector<float> out(chunk_count(smoothed.size()));
  for (size_t k = 0; k < out.size(); ++k) {
    const size_t begin = k * kChunkTokens;
    out[k] = mean_of(smoothed.subspan(begin, std::min(kChunkTokens, smoothed.size() - begin)));
  }
  return out;
}

std::vector<float> chunk_scores(std::span<const float> scores) {
  return chunk_means(smoothed_scores(scores));
}

}  // namespace braid
