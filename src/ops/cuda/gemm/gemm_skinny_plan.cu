// gemm_skinny_plan.cu -- see gemm_skinny_plan.h.
#include "ops/cuda/gemm/gemm_skinny_plan.h"

namespace braid::cuda {

// Fitted to an H200. Clusters with more items get more of the memory.
double skinny_clocks(const Context& context, const SkinnyWork (&work)[2],
                     const SkinnyChoice& choice, int64_t at_once) {
  const SkinnyCut& cut = choice.cut;
  const int64_t clusters = choice.clusters[0] + choice.clusters[1];
  const auto bytes = static_cast<double>(work[0].items * work[0].item_bytes() +
                                         work[1].items * work[1].item_bytes());
  const auto most = static_cast<double>(
      std::max(work[0].most_bytes(choice.clusters[0]), work[1].most_bytes(choice.clusters[1])));
  const double share = bytes / context.processors / 18.5;
  const double uneven = most * static_cast<double>(std::max(clusters, at_once)) / bytes - 1;
  const double meeting[] = {0, 2600, 5000, 11000};
  const bool sparse =
      cut.density == 1 && (work[0].items + work[1].items) * cut.slices > context.processors;
  // Exchange of sums, 3 bytes a clock.
  const auto blocks =
      static_cast<double>(work[0].items * work[0].pair + work[1].items * work[1].pair);
  const double sums =
      (blocks + static_cast<double>(work[0].warps * clusters)) * cut.slices * work[0].rows * 128;
  return share * (1 + uneven * (clusters < at_once ? 0.8 : 0.45) + (sparse ? 0.12 : 0)) +
         (sparse ? 5500 : 0) + meeting[log2_of(cut.slices)] + sums / context.processors / 3 +
         static_cast<double>(cut.density * work[0].x_bytes(cut)) / 25;
}

bool share_out(const SkinnyWork (&work)[2], SkinnyChoice& choice, int64_t at_once, int64_t room) {
  int64_t(&clusters)[2] = choice.clusters;
  if (work[1].items == 0) {
    clusters[0] = std::min(at_once, work[0].items);
    // If sums do not fit: more, shorter clusters than run at once.
    for (int wave = 0;
         wave < 3 && clusters[0] < work[0].items && !work[0].fits(choice.cut, clusters[0], room);
         ++wave)
      clusters[0] = std::min(2 * clusters[0], work[0].items);
    return work[0].fits(choice.cut, clusters[0], room);
  }
  int64_t best = 0;
  for (int64_t first = 1; first < at_once; ++first) {
    const int64_t now[2] = {std::min(first, work[0].items),
                            std::min(at_once - first, work[1].items)};
    const int64_t most = std::max(work[0].most_bytes(now[0]), work[1].most_bytes(now[1]));
    if (best != 0 && most >= best) continue;
    if (!work[0].fits(choice.cut, now[0], room) || !work[1].fits(choice.cut, now[1], room))
      continue;
    best = most;
    clusters[0] = now[0];
    clusters[1] = now[1];
  }
  return best != 0;
}

int64_t fill_plan(SkinnyPlan& plan, SkinnyWork (&work)[2], const SkinnyChoice& best,
                  int second_block, int64_t room) {
  plan.slices_log2 = log2_of(best.cut.slices);
  plan.pair_log2 = log2_of(work[0].pair);
  plan.by_row = (1 << 16) / plan.rows + 1;
  int64_t shared = 0;
  for (int i = 0; i < 2; ++i) {
    if (work[i].items == 0) continue;
    work[i].rows = plan.rows;
    SkinnyShare& share = plan.shares[i];
    share.first = i == 0 ? 0 : second_block;
    share.clusters = static_cast<int>(best.clusters[i]);
    share.items = static_cast<int>(work[i].items / best.clusters[i]);
    share.more = static_cast<int>(work[i].items % best.clusters[i]);
    share.sources = work[i].sources(best.clusters[i]);
    share.sums_bytes = static_cast<int>(work[i].sums_bytes_of(best.cut, best.clusters[i]));
    for (int warp = 0; warp < work[i].warps; ++warp)
      share.source_of |= static_cast<uint32_t>(warp % share.sources) << 4 * warp;
    const int64_t beside =
        work[i].x_bytes(best.cut) + work[i].exchange_bytes(best.cut, best.clusters[i]);
    const int64_t most =
        std::min<int64_t>(work[i].most_halves(best.cut, best.clusters[i]), kSkinnyStages);
    share.stages = static_cast<int>(std::min((room - beside) / work[i].stage_bytes(), most));
    share.x_bytes = static_cast<int>(work[i].x_bytes(best.cut));
    shared = std::max(shared, share.stages * work[i].stage_bytes() + beside);
  }
  return shared;
}

}  // namespace braid::cuda
