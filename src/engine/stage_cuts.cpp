// stage_cuts.cpp -- see stage_cuts.h.
#include "engine/stage_cuts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sums of the first layers' needs, so that a range costs nothing.
struct Sums {
  explicit Sums(std::span<const LayerNeeds> layers) : sums(1) {
    for (const LayerNeeds& l : layers) {
      LayerNeeds next = sums.back();
      next.fixed_bytes += l.fixed_bytes;
      next.block_bytes += l.block_bytes;
      next.read_bytes += l.read_bytes;
      sums.push_back(next);
    }
  }
  LayerNeeds range(size_t begin, size_t end) const {
    return {sums[end].fixed_bytes - sums[begin].fixed_bytes,
            sums[end].block_bytes - sums[begin].block_bytes,
            sums[end].read_bytes - sums[begin].read_bytes};
  }
  std::vector<LayerNeeds> sums;
};

}  // namespace

std::optional<std::vector<int32_t>> cut_trunk(const TrunkNeeds& needs,
                                              std::span<const StageRoom> stages, int64_t blocks,
                                              CutFor purpose) {
  const size_t layers = needs.layers.size();
  BRAID_CHECK(!stages.empty());
  if (stages.size() > layers) return std::nullopt;
  const Sums sums(needs.layers);
  const auto time_of = [&](size_t stage, size_t begin, size_t end) {
    LayerNeeds n = sums.range(begin, end);
    const auto add = [&](const LayerNeeds& more) {
      n.fixed_bytes += more.fixed_bytes;
      n.block_bytes += more.block_bytes;
      n.read_bytes += more.read_bytes;
    };
    if (stage == 0) add(needs.first);
    if (stage + 1 == stages.size()) add(needs.last);
    const double bytes = static_cast<double>(n.fixed_bytes) +
                         static_cast<double>(n.block_bytes) * static_cast<double>(blocks);
    if (bytes > static_cast<double>(stages[stage].bytes)) return kNever;
    return static_cast<double>(n.read_bytes) / stages[stage].rate;
  };
  // best[s][l]: the first s + 1 stages have the first l layers. Of equal maxima the least sum.
  struct Best {
    double value = kNever, sum = kNever;
    size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(stages.size(), std::vector<Best>(layers + 1));
  for (size_t end = 1; end <= layers; ++end) {
    const double time = time_of(0, 0, end);
    best[0][end] = {time, time, 0};
  }
  for (size_t stage = 1; stage < stages.size(); ++stage) {
    for (size_t end = stage + 1; end <= layers; ++end) {
      for (size_t begin = stage; begin < end; ++begin) {
        const Best& before = best[stage - 1][begin];
        const double time = time_of(stage, begin, end);
        if (before.value == kNever || time == kNever) continue;
        const double sum = before.sum + time;
        const double value = purpose == CutFor::one ? sum : std::max(before.value, time);
        Best& b = best[stage][end];
        if (value < b.value || (value == b.value && sum < b.sum)) b = {value, sum, begin};
      }
    }
  }
  if (best.back()[layers].value == kNever) return std::nullopt;
  std::vector<int32_t> first(stages.size());
  for (size_t stage = stages.size(), end = layers; stage-- > 0;) {
    end = best[stage][end].begin;
    first[stage] = static_cast<int32_t>(end);
  }
  return first;
}

std::vector<int32_t> cut_by_shares(int32_t layers, std::span<const double> shares) {
  const auto count = static_cast<int32_t>(shares.size());
  BRAID_CHECK(count > 0 && count <= layers);
  double total = 0;
  for (const double share : shares) total += share;
  std::vector<int32_t> first = {0};
  double passed = 0;
  for (int32_t stage = 1; stage < count; ++stage) {
    passed += shares[static_cast<size_t>(stage) - 1];
    const auto wanted = static_cast<int32_t>(std::lround(layers * passed / total));
    first.push_back(std::clamp(wanted, first.back() + 1, layers - (count - stage)));
  }
  return first;
}

}  // namespace braid
