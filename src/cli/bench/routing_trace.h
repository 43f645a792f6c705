// routing_trace.h -- choices of experts with the locality of real text, for benches of random
// weights.
#pragma once

#include <cstdint>
#include <vector>

namespace braid::cli {

struct RoutingShape {
  int32_t layers = 0;
  int32_t experts = 0;
  int32_t used = 0;  // experts of a token
  int32_t rows = 1;  // independent sequences
  int32_t steps = 512;
};

// Ids [steps][layers][rows][used]. Each sequence draws its experts from its own order of last use.
// So a cache of the most recent share f of the experts finds likely_hits(f) of them: 61 % at 12.5,
// 79 % at 25 %, 87 % at 37 %, 96 % at 64 %, which published traces of several mixtures have.
std::vector<int32_t> local_routing(const RoutingShape& shape, uint64_t seed);
// Every expert as likely as any other.
std::vector<int32_t> uniform_routing(const RoutingShape& shape, uint64_t seed);

double likely_hits(double share);

}  // namespace braid::cli
