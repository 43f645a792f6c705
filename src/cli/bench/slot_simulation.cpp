// slot_simulation.cpp -- see slot_simulation.h.
#include "cli/bench/slot_simulation.h"

#include <memory>
#include <vector>

#include "base/check.h"
#include "ops/cuda/gemm/expert_policy.h"

namespace braid::cli {

SlotCounts simulate_slots(std::span<const int32_t> ids, int32_t used, int32_t experts,
                          int32_t slots, int32_t uncounted) {
  BRAID_CHECK(1 <= slots && slots <= experts && experts <= cuda::kMostSlotExperts && used > 0);
  const auto all = static_cast<size_t>(experts);
  std::vector<int32_t> place(all, cuda::kNoSlot), owner(static_cast<size_t>(slots)), slot_of(all);
  std::vector<float> score(all);
  std::vector<uint32_t> last(all);
  for (int32_t s = 0; s < slots; ++s) {
    const auto at = static_cast<size_t>(s);
    place[at] = owner[at] = slot_of[at] = s;
  }
  uint32_t clock = 0;
  int32_t staged = 0;
  unsigned long long counts[cuda::kCounts] = {};
  cuda::SlotTable table;
  table.experts = experts;
  table.slots = slots;
  table.half_life = cuda::half_life_of(slots, used);
  table.place = place.data();
  table.owner = owner.data();
  table.score = score.data();
  table.last = last.data();
  table.clock = &clock;
  table.slot_of = slot_of.data();
  table.staged = &staged;
  table.counts = counts;

  const cuda::Team alone;
  const auto choice = std::make_unique<cuda::ExpertChoice>();
  for (int32_t token = 0; !ids.empty(); ++token) {
    if (token == uncounted)
      for (auto& count : counts) count = 0;
    cuda::clear_choice(alone, *choice);
    for (const int32_t id : ids.first(static_cast<size_t>(used)))
      cuda::count_use(alone, *choice, table, id, true);
    ids = ids.subspan(static_cast<size_t>(used));
    const int missing = cuda::find_missing(alone, *choice, table);
    cuda::score_all(alone, *choice, table);
    if (missing > 0) cuda::choose_slots(alone, *choice, table);
    cuda::publish(alone, *choice, table);
  }
  return {static_cast<int64_t>(counts[1]), static_cast<int64_t>(counts[2]),
          static_cast<int64_t>(counts[3])};
}

}  // namespace braid::cli
