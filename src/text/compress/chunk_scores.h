// chunk_scores.h -- from the attention that a prompt's end pays to each token, to scores of chunks.
//   smooth[j] = mean of score over [j - kPoolTokens / 2, j + kPoolTokens / 2], cut to the prompt
//   chunk[k]  = mean of smooth over the tokens of chunk k
// A score that is not finite counts as the lowest finite one, or as 0 without any. So one broken
// value does not drop its neighbors.
// Cost: linear in tokens.
#pragma once

#include <span>
#include <vector>

#include "text/compress/ranges.h"

namespace braid {

inline constexpr size_t kPoolTokens = 13;  // odd

// scores [tokens]: means over the look-ahead rows. Returns [tokens], all finite.
std::vector<float> smoothed_scores(std::span<const float> scores);

// smoothed [tokens], finite. Returns [chunk_count(tokens)].
std::vector<float> chunk_means(std::span<const float> smoothed);

// Both in turn.
std::vector<float> chunk_scores(std::span<const float> scores);

}  // namespace braid
