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
  // Time and share of the room that a stage takes.
  struct Taken {
    double time = kNever, share = 0;
  };
  const auto taken_by = [&](size_t stage, size_t begin, size_t end) -> Taken {
    const int32_t asked = stages[stage].layers;
    if (asked > 0 && end - begin != static_cast<size_t>(asked)) return {};
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
    const auto room = static_cast<double>(stages[stage].bytes);
    if (bytes > room) return {};
    return {static_cast<double>(n.read_bytes) / stages[stage].rate, bytes / std::max(room, 1.0)};
  };
  // best[s][l]: the first s + 1 stages have the first l layers. Of equal times the one that leaves
  // every stage the largest share of its room.
  struct Best {
    double value = kNever, share = 0;
    size_t begin = 0;
    bool operator<(const Best& other) const {
      if (value == kNever || std::abs(value - other.value) > 1e-9 * value)
        return value < other.value;
      return share < other.share;
    }
  };
  std::vector<std::vector<Best>> best(stages.size(), std::vector<Best>(layers + 1));
  for (size_t end = 1; end <= layers; ++end) {
    const Taken taken = taken_by(0, 0, end);
    best[0][end] = {taken.time, taken.share, 0};
  }
  for (size_t stage = 1; stage < stages.size(); ++stage) {
    for (size_t end = stage + 1; end <= layers; ++end) {
      for (size_t begin = stage; begin < end; ++begin) {
        const Best& before = best[stage - 1][begin];
        const Taken taken = taken_by(stage, begin, end);
        if (before.value == kNever || taken.time == kNever) continue;
        const Best tried = {
            purpose == CutFor::one ? before.value + taken.time : std::max(before.value, taken.time),
            std::max(before.share, taken.share), begin};
        if (tried < best[stage][end]) best[stage][end] = tried;
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
