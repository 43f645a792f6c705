// noise.cpp -- see noise.h.
#include "engine/noise.h"

#include <cmath>

namespace braid {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

double TokenNoise::uniform(int32_t id) {
  const int64_t pair = id / 2;
  if (pair != pair_) {
    pair_ = pair;
    block_ = philox({static_cast<uint32_t>(pair), position_, 0, 0},
                    {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  }
  const auto at = static_cast<size_t>(id % 2 * 2);
  const uint64_t bits = uint64_t{block_[at + 1]} << 32 | block_[at];
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

void Draw::add(int32_t id, double weight) {
  const double u = noise_.uniform(id);
  if (weight < most_ * (1 - u)) return;  // avoids most logarithms
  const double score = weight / -std::log(u);
  if (winner_ >= 0 && (score < most_ || (score == most_ && id > winner_))) return;
  most_ = score;
  winner_ = id;
}

double TokenNoise::gumbel(int32_t id) { return -std::log(-std::log(uniform(id))); }

}  // namespace braid
