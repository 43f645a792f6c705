// rope.cpp -- see rope.h.
#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace braid {

double rope_frequency(const RopeParams& rope, int32_t pair) {
  const double plain = std::pow(rope.freq_base, -2.0 * pair / rope.dims);
  if (rope.original_context <= 0) return plain / rope.factor;
  const auto pair_of = [&](double turns) {
    return rope.dims * std::log(rope.original_context / (2 * std::numbers::pi * turns)) /
           (2 * std::log(rope.freq_base));
  };
  const double low = std::max(0.0, std::floor(pair_of(rope.beta_fast)));
  const double high = std::min(rope.dims - 1.0, std::ceil(pair_of(rope.beta_slow)));
  const double slow = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  return plain * (1 - slow) + plain / rope.factor * slow;
}

}  // namespace braid
