// slot_simulation.h -- the policy of expert slots (expert_policy.h) over a trace, without a GPU.
#pragma once

#include <cstdint>
#include <span>

namespace braid::cli {

// Experts of all counted tokens, each as often as it was chosen. Hits are those that had a slot.
struct SlotCounts {
  int64_t chosen = 0;
  int64_t kept = 0;       // read, and given a slot
  int64_t passed_by = 0;  // read for the token alone

  int64_t hits() const { return chosen - kept - passed_by; }
};

// One layer and one sequence: ids [tokens][used], each below `experts` and once in a token. The
// first `uncounted` tokens fill the slots, which begin with the first experts. All missing experts
// are read: the CPU's share depends on time. 1 <= slots <= experts <= 1024.
SlotCounts simulate_slots(std::span<const int32_t> ids, int32_t used, int32_t experts,
                          int32_t slots, int32_t uncounted);

}  // namespace braid::cli
