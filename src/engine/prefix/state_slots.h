// state_slots.h -- which of several equal places are held: device state slots, host block images.
//
// Slots are not cleared: a sequence at position 0 starts from the zero state (ops/batch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace braid {

class SlotPool {
 public:
  explicit SlotPool(int32_t slots);

  int32_t total() const { return static_cast<int32_t>(held_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }

  // -1 when all are held.
  int32_t take();
  void give_back(int32_t slot);

  // Called for each slot taken or given back; tests fill it with poison.
  void on_unused(std::function<void(int32_t)> told) { told_of_unused_ = std::move(told); }

  // Aborts on inconsistencies. `slots`: those that sequences hold.
  void check(std::span<const int32_t> slots) const;

 private:
  std::vector<int32_t> free_;
  std::vector<bool> held_;
  std::function<void(int32_t)> told_of_unused_;
};

}  // namespace braid
