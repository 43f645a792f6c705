// routing_trace.cpp -- see routing_trace.h.
#include "cli/bench/routing_trace.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>

namespace braid::cli {
namespace {

struct CurvePoint {
  double share, hits;
};
constexpr CurvePoint kHitCurve[] = {{0, 0},       {0.06, 0.40}, {0.125, 0.61}, {0.25, 0.79},
                                    {0.37, 0.87}, {0.64, 0.96}, {1, 1}};

double share_for(double hits) {
  for (size_t i = 1; i < std::size(kHitCurve); ++i) {
    const CurvePoint a = kHitCurve[i - 1], b = kHitCurve[i];
    if (hits <= b.hits) return a.share + (hits - a.hits) / (b.hits - a.hits) * (b.share - a.share);
  }
  return 1;
}

}  // namespace

double likely_hits(double share) {
  for (size_t i = 1; i < std::size(kHitCurve); ++i) {
    const CurvePoint a = kHitCurve[i - 1], b = kHitCurve[i];
    if (share <= b.share)
      return a.hits + (share - a.share) / (b.share - a.share) * (b.hits - a.hits);
  }
  return 1;
}

std::vector<int32_t> local_routing(const RoutingShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  const double bend = std::log(kLocalShare) / std::log(share_for(shape.locality));
  const auto experts = static_cast<size_t>(shape.experts);
  const auto used = static_cast<size_t>(shape.used);
  // [layers][rows]: experts, the latest used first.
  std::vector<std::vector<int32_t>> orders(static_cast<size_t>(shape.layers * shape.rows));
  for (auto& order : orders) {
    order.resize(experts);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
  }
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(shape.steps) * orders.size() * used);
  for (int32_t step = 0; step < shape.steps; ++step) {
    for (auto& order : orders) {
      std::vector<size_t> places;
      while (places.size() < used) {
        const auto place = std::min(
            experts - 1,
            static_cast<size_t>(std::pow(share_for(uniform(random)), bend) * shape.experts));
        if (std::count(places.begin(), places.end(), place) == 0) places.push_back(place);
      }
      std::sort(places.begin(), places.end());
      for (size_t i = 0; i < used; ++i) {
        const auto at = order.begin() + static_cast<ptrdiff_t>(places[i]);
        ids.push_back(*at);
        std::rotate(order.begin(), at, at + 1);  // later places are behind it and stay
      }
    }
  }
  return ids;
}

std::vector<int32_t> uniform_routing(const RoutingShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> all(static_cast<size_t>(shape.experts));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> ids;
  for (int64_t choice = 0; choice < int64_t{shape.steps} * shape.layers * shape.rows; ++choice) {
    for (int32_t j = 0; j < shape.used; ++j) {
      const auto other =
          j + static_cast<int32_t>(random() % static_cast<uint64_t>(shape.experts - j));
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(other)]);
    }
    ids.insert(ids.end(), all.begin(), all.begin() + shape.used);
  }
  return ids;
}

}  // namespace braid::cli
