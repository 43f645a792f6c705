// noise.h -- the random numbers of sampling, a function of seed, position and token id.
//
// Philox4x32-10: the seed is the key, position and id the counter. Draws can be repeated in any
// order. A drafter with the same noise mostly draws the token that the model will draw.
#pragma once

#include <array>
#include <cstdint>

namespace braid {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// `position`: number of preceding tokens.
class TokenNoise {
 public:
  TokenNoise(uint64_t seed, int32_t position)
      : seed_(seed), position_(static_cast<uint32_t>(position)) {}

  // In (0, 1), exact, and so is 1 minus it. Fastest for ids in order: two share a block.
  double uniform(int32_t id);
  // Standard Gumbel: argmax of (log p + noise) is a sample from p.
  double gumbel(int32_t id);

 private:
  uint64_t seed_;
  uint32_t position_;
  int64_t pair_ = -1;  // of ids, the cached block
  std::array<uint32_t, 4> block_{};
};

// Picks the largest weight / -log(uniform), i.e. the largest log weight + Gumbel noise. Ties go to
// the lowest id, so order and repetition do not matter.
class Draw {
 public:
  Draw(uint64_t seed, int32_t position) : noise_(seed, position) {}

  void add(int32_t id, double weight);
  int32_t winner() const { return winner_; }
  // Of the winner, weight / e. As e >= 1 - uniform, weights below most() * (1 - uniform) lose.
  double most() const { return most_; }

 private:
  TokenNoise noise_;
  double most_ = 0;
  int32_t winner_ = -1;  // none yet
};

}  // namespace braid
