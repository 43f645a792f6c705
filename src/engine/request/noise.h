// noise.h -- the random numbers of sampling: a number for each seed, position and token id.
//
// A number is a function of those three alone (Philox4x32-10: the seed is its key, position and id its
// counter), so there is no state to carry: any draw can be repeated, in any order, for any subset of ids. A
// drafter that perturbs its own scores by the same noise mostly draws the token that the model will draw.
#pragma once

#include <array>
#include <cstdint>

namespace braid {

// The block cipher of the counter-based generator Philox4x32-10.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Of the tokens at one position of a sequence. `position`: how many tokens come before.
class TokenNoise {
 public:
  TokenNoise(uint64_t seed, int32_t position) : seed_(seed), position_(static_cast<uint32_t>(position)) {}

  // In (0, 1), exact, as is 1 minus it. Quickest for ids in order: two share a block.
  double uniform(int32_t id);
  // Standard Gumbel: argmax of (log p + noise) is a draw from p.
  double gumbel(int32_t id);

 private:
  uint64_t seed_;
  uint32_t position_;
  int64_t pair_ = -1;  // of ids, whose block is known
  std::array<uint32_t, 4> block_{};
};

// A draw: of those it is told of, the largest weight / e, where e = -log of the token's uniform number: the same
// as the largest log weight + Gumbel noise. Ties go to the lowest id, so in whatever order, and however often,
// they come, the winner is the same.
class Draw {
 public:
  Draw(uint64_t seed, int32_t position) : noise_(seed, position) {}

  void add(int32_t id, double weight);
  int32_t winner() const { return winner_; }
  // Weight / e of the winner. e is at least 1 - uniform, so whose weight is below most() * (1 - uniform) need
  // not be added.
  double most() const { return most_; }

 private:
  TokenNoise noise_;
  double most_ = 0;
  int32_t winner_ = -1;  // none yet
};

}  // namespace braid
