// routing_trace.h -- choices of experts with the locality of real text, for benches of random
// weights.
#pragma once

#include <cstdint>
#include <vector>

namespace braid::cli {

inline constexpr double kLocalShare = 0.125;

struct RoutingShape {
  int32_t layers = 0;
  int32_t experts = 0;
  int32_t used = 0;  // experts of a token
  int32_t rows = 1;  // independent sequences
  int32_t steps = 512;
  // Of local_routing(): the share of choices drawn from the kLocalShare most recently used experts,
  // from 0.13 to 0.75. A token's experts are distinct, so above 0.7 a little less is reached.
  double locality = 0.61;
};

// Ids [steps][layers][rows][used]. Each sequence draws its experts from its own order of last use.
// So a cache of the most recent share f of the experts finds likely_hits(f) of them: 61 % at 12.5,
// 79 % at 25 %, 87 % at 37 %, 96 % at 64 %, which published traces of several mixtures have. With
// another locality each f is a power of itself. At most half of the experts are used.
std::vector<int32_t> local_routing(const RoutingShape& shape, uint64_t seed);
// Every expert as likely as any other.
std::vector<int32_t> uniform_routing(const RoutingShape& shape, uint64_t seed);

double likely_hits(double share);

}  // namespace braid::cli
