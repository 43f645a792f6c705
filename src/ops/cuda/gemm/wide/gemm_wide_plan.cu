// gemm_wide_plan.cu -- see gemm_wide_plan.h.
#include "ops/cuda/gemm/wide/gemm_wide_plan.h"

#include <algorithm>

namespace braid::cuda {

// Taken are runs of 2 to 8 rings of each warp. Shorter ones are all start and end, and neither form is the
// faster one. In longer ones gemm_wgmma.cuh, which begins some microseconds later but then reads more a
// second, catches up (output matrices). Nor what leaves more than kWideBytes of sums a CTA: short k.
//
// Clocks of a multiprocessor: its share of memory, which rings of two stages do not quite fill; x and sums
// through L2, which mostly run beside it.
bool plan_wide(const Context& context, int64_t items, int pair, int halves, int piece_bytes, WidePlan& plan) {
  constexpr double kRingLoss[kWideStages + 1] = {0, 0, 0.12, 0.03, 0};
  const int64_t rings = items * pair * halves / (int64_t{kWideStages} * kWideWarps * context.processors);
  if (rings < 2 || rings >= 8) return false;
  const auto room = static_cast<int64_t>(context.shared_bytes_per_block) - 4 * 1024;
  const int64_t stage = int64_t{kWideWarps} * piece_bytes;
  double best = 0;
  for (int slices = 1; slices <= std::min({halves, 16, context.processors}); ++slices) {
    const int64_t x_bytes = int64_t{div_up(halves, slices)} * kMostWideRows * 256;
    const auto stages = static_cast<int>(std::min<int64_t>((room - x_bytes) / stage, kWideStages));
    if (x_bytes >= room || stages < 2) continue;
    const int64_t clusters = std::min<int64_t>(context.processors / slices, items);
    const int64_t blocks = pair * div_up(items, clusters);
    const int64_t visits = blocks + kWideWarps - 1;
    if (visits > kMostWideVisits) continue;
    const auto bytes = static_cast<double>(blocks * halves * piece_bytes);
    const double clocks = bytes / slices / 18.5 * (1 + kRingLoss[stages]) +
                          static_cast<double>(x_bytes) / 35 +
                          static_cast<double>(visits * kWideSumBytes) / 25;
    if (best != 0 && clocks >= best) continue;
    best = clocks;
    plan.items = static_cast<int>(items / clusters);
    plan.more = static_cast<int>(items % clusters);
    plan.slices = slices;
    plan.pair_log2 = pair - 1;
    plan.stages = stages;
    plan.x_bytes = static_cast<int>(x_bytes);
    plan.visits = static_cast<int>(visits);
    plan.grid = static_cast<int>(clusters) * slices;
    plan.shared_bytes = static_cast<int>(x_bytes + stages * stage);
  }
  return best != 0;
}

}  // namespace braid::cuda
