// gemm_wide_plan.cu -- see gemm_wide_plan.h.
#include "ops/cuda/gemm/gemm_wide_plan.h"

#include <algorithm>
#include <limits>

namespace braid::cuda {

// Takes runs of fewer than 16 units a warp; in longer ones gemm_wgmma.cuh, which starts later but
// needs fewer instructions, catches up.
bool plan_wide(const Context& context, const WideProduct& product, WidePlan& plan) {
  constexpr double kRingLoss[kWideStages + 1] = {0, 0, 0.05, 0.02, 0};
  const WideBlocks(&formats)[2] = product.formats;
  const int blocks = formats[0].count + formats[1].count;
  const bool mixed = formats[1].count > 0;
  const int piece = std::max(formats[0].piece_bytes, mixed ? formats[1].piece_bytes : 0);
  int64_t weight_bytes = 0;  // of all blocks, a unit along k
  int64_t unit_cost = 0;
  int piece_cost = 0;  // the highest
  for (const WideBlocks& f : formats) {
    if (f.count == 0) continue;
    const int cost = mixed ? div_up(f.piece_bytes, 256) : 1;
    weight_bytes += int64_t{f.count} * f.piece_bytes * (2 / f.piece_halves);
    unit_cost += int64_t{f.count} * cost * (2 / f.piece_halves);
    piece_cost = std::max(piece_cost, cost);
  }
  if (int64_t{blocks} * product.units >= int64_t{16} * kWideWarps * context.processors)
    return false;
  const int items = blocks / product.pair;
  const int64_t handed = int64_t{kWideWarps} * kWideSumBytes;
  const int64_t room = static_cast<int64_t>(context.shared_bytes_per_block) - 6 * 1024 - handed;
  const int64_t stage = int64_t{kWideWarps} * piece;
  double best = 0;
  for (int slices = 1; slices <= std::min({product.units, 16, context.processors}); ++slices) {
    const int units = div_up(product.units, slices);
    const int64_t x_bytes = int64_t{units} * kMostWideRows * 512;
    const auto stages = static_cast<int>(std::min<int64_t>((room - x_bytes) / stage, kWideStages));
    if (x_bytes >= room || stages < 2) continue;
    const int ctas = context.processors / slices;
    const int grid = ctas * slices;
    const int64_t sums = int64_t{slices} * (blocks + ctas) * kWideSumBytes;
    const int64_t own_items = div_up(items, grid) + 1;
    if (sums > int64_t{context.processors} * kWideBytes || own_items > kMostWideItems ||
        own_items * product.pair * slices > kMostWideEntries)
      continue;
    if ((unit_cost * units + 1) * ctas * kWideWarps > std::numeric_limits<int>::max()) continue;
    if (unit_cost * (product.units / slices) < int64_t{piece_cost} * ctas) continue;  // idle CTAs
    const double bytes =
        static_cast<double>(weight_bytes) * units / ctas + 0.25 * static_cast<double>(stage);
    const double clocks = bytes / 18.5 * (1 + kRingLoss[stages]) +
                          static_cast<double>(x_bytes) / 35 +
                          static_cast<double>(sums) / context.processors / 12 + 400.0 * slices;
    if (best != 0 && clocks >= best) continue;
    best = clocks;
    const auto by = [](int64_t bits, int64_t number) {
      return ((int64_t{1} << bits) + number - 1) / number;
    };
    plan.slices = slices;
    plan.by_slices = static_cast<int>(by(16, slices));
    plan.longer = product.units % slices;
    plan.ctas = ctas;
    plan.blocks = blocks;
    plan.second = formats[0].count;
    for (int i = 0; i < 2; ++i) {
      plan.unit_log2[i] = formats[i].piece_halves == 2 ? 0 : 1;
      plan.cost[i] = mixed ? div_up(formats[i].piece_bytes, 256) : 1;
      plan.by_cost[i] = static_cast<uint32_t>(plan.cost[i] == 1 ? 0 : by(32, plan.cost[i]));
    }
    for (int more = 0; more < 2; ++more) {
      WideCut& cut = plan.cuts[1 - more];
      cut.units = product.units / slices + more;
      const int64_t cost = unit_cost * cut.units;
      const int64_t warps = int64_t{ctas} * kWideWarps;
      cut.run = static_cast<uint64_t>(((cost << 32) + warps - 1) / warps);
      cut.warps = static_cast<uint64_t>((warps << 32) / cost);
      for (int i = 0; i < 2; ++i) {
        const int pieces = cut.units << plan.unit_log2[i];
        cut.by_pieces[i] = static_cast<uint32_t>(pieces == 1 ? 0 : by(32, pieces));
      }
    }
    plan.by_entries = static_cast<int>(by(16, int64_t{slices} * product.pair));
    plan.tasks = static_cast<uint32_t>(((int64_t{items} * 2 * kWideTiles << 16) + grid - 1) / grid);
    plan.pair_log2 = product.pair - 1;
    plan.stages = stages;
    plan.stage_bytes = piece;
    plan.x_bytes = static_cast<int>(x_bytes);
    plan.grid = grid;
    plan.shared_bytes = static_cast<int>(x_bytes + stages * stage + handed);
  }
  return best != 0;
}

}  // namespace braid::cuda
