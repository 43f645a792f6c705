// records.h -- work of the same shape, again and again: queued the first two times, recorded the third, replayed
// from then on.
//
// Whatever a kernel sets up once must not be recorded, hence not the first time. Recording takes as long as some
// steps, and what a trial of drafts needs once or twice is not worth it, hence not the second. On devices that
// record nothing it is always queued. All that an engine records is counted here, whoever asks for it: steps, and the
// networks that draft for them. Of more shapes than there is room for, that which was wanted last the longest ago is
// forgotten, and must come as often again: shapes that are rare do not push out those that are not. Where the
// device has no memory for one more, there is room for as many as there are.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

#include "base/result.h"
#include "ops/device.h"

namespace braid {

class Records {
 public:
  enum class Work : uint8_t { step, head, draft_blocks };
  // A shape is below this.
  static constexpr int kShapeBits = 61;

  explicit Records(Device& device) : device_(device) {}

  // Queues what `enqueue` queues on the device, or replays it. Works of equal shape queue the same ops on the
  // same memory. No recorded work is under way. Errors: those of Device::end_record().
  template <typename Enqueue>
  Status queue(Work work, uint64_t shape, Enqueue enqueue) {
    const uint64_t key = static_cast<uint64_t>(work) << kShapeBits | shape;
    const Clock::time_point begin = Clock::now();
    if (is_due(key) && device_.begin_record()) {
      enqueue();
      BRAID_TRY(device_.end_record(key));
      if (!device_.has_record(key)) {
        most_ = wanted_.size();
        seen_.erase(key);
      }
      making_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    if (device_.has_record(key)) {
      wanted_[key] = ++turn_;
      device_.replay(key);
    } else {
      enqueue();
    }
    return {};
  }

  size_t count() const { return wanted_.size(); }
  // What recording took since the last call: once for a shape, and no part of what such work takes.
  double take_making_ms() { return std::exchange(making_ms_, 0.0); }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due(uint64_t key) {
    if (most_ == 0 || device_.has_record(key)) return false;
    if (int& queued = seen_[key]; queued < kQueuedBefore) {
      ++queued;
      return false;
    }
    if (wanted_.size() >= most_) {
      const auto oldest = std::min_element(wanted_.begin(), wanted_.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
      device_.forget_record(oldest->first);
      seen_.erase(oldest->first);
      wanted_.erase(oldest);
    }
    return true;
  }

  Device& device_;
  static constexpr int kQueuedBefore = 2;
  size_t most_ = 192;                    // a record takes memory of the host and the driver
  std::map<uint64_t, int> seen_;         // how often what has no record was queued, up to kQueuedBefore
  std::map<uint64_t, uint64_t> wanted_;  // recorded ones: the turn in which they were last
  uint64_t turn_ = 0;
  double making_ms_ = 0;
};

}  // namespace braid
