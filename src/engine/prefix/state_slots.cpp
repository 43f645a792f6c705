// state_slots.cpp -- see state_slots.h.
#include "engine/prefix/state_slots.h"

#include "base/check.h"

namespace braid {

SlotPool::SlotPool(int32_t slots) : held_(static_cast<size_t>(slots), false) {
  for (int32_t s = slots - 1; s >= 0; --s) free_.push_back(s);
}

int32_t SlotPool::take() {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  held_[slot] = true;
  if (told_of_unused_) told_of_unused_(slot);
  return slot;
}

void SlotPool::give_back(int32_t slot) {
  BRAID_CHECK(slot >= 0 && slot < total() && held_[slot]);
  held_[slot] = false;
  free_.push_back(slot);
  if (told_of_unused_) told_of_unused_(slot);
}

void SlotPool::check(std::span<const int32_t> slots) const {
  std::vector<int32_t> roles(held_.size(), 0);
  for (const int32_t s : slots) {
    BRAID_CHECK(s >= 0 && s < total() && held_[s]);
    ++roles[s];
  }
  for (const int32_t s : free_) {
    BRAID_CHECK(!held_[s]);
    ++roles[s];
  }
  for (const int32_t count : roles) BRAID_CHECK(count == 1);
}

}  // namespace braid
