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
#include <atomic>
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

  // `device` outlives it. Several may use one device: what one records is its own.
  explicit Records(Device& device) : device_(device) {}
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() {
    for (const auto& [key, record] : kept_) device_.forget_record(record.id);
  }

  // Queues what `enqueue` queues on the device, or replays it. Works of equal shape queue the same ops on the
  // same memory. No recorded work is under way. Errors: those of Device::end_record().
  template <typename Enqueue>
  Status queue(Work work, uint64_t shape, Enqueue enqueue) {
    const uint64_t key = static_cast<uint64_t>(work) << kShapeBits | shape;
    const Clock::time_point begin = Clock::now();
    if (is_due(key) && device_.begin_record()) {
      enqueue();
      const uint64_t id = ++last_id();
      BRAID_TRY(device_.end_record(id));
      if (device_.has_record(id)) {
        kept_[key].id = id;
      } else {
        most_ = kept_.size();
        seen_.erase(key);
      }
      making_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    if (has_record(key)) {
      Record& record = kept_.at(key);
      record.turn = ++turn_;
      device_.replay(record.id);
    } else {
      enqueue();
    }
    return {};
  }

  size_t count() const { return kept_.size(); }
  // What recording took since the last call: once for a shape, and no part of what such work takes.
  double take_making_ms() { return std::exchange(making_ms_, 0.0); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    uint64_t id = 0;    // the device's key
    uint64_t turn = 0;  // when it was wanted last
  };

  // Of the process: no two records of a device have the same.
  static std::atomic<uint64_t>& last_id() {
    static std::atomic<uint64_t> id{0};
    return id;
  }

  // Not while the device is profiled.
  bool has_record(uint64_t key) const {
    const auto it = kept_.find(key);
    return it != kept_.end() && device_.has_record(it->second.id);
  }

  bool is_due(uint64_t key) {
    if (most_ == 0 || kept_.contains(key)) return false;
    if (int& queued = seen_[key]; queued < kQueuedBefore) {
      ++queued;
      return false;
    }
    if (kept_.size() >= most_) {
      const auto oldest = std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
        return a.second.turn < b.second.turn;
      });
      device_.forget_record(oldest->second.id);
      seen_.erase(oldest->first);
      kept_.erase(oldest);
    }
    return true;
  }

  Device& device_;
  static constexpr int kQueuedBefore = 2;
  size_t most_ = 192;             // a record takes memory of the host and the driver
  std::map<uint64_t, int> seen_;  // how often what has no record was queued, up to kQueuedBefore
  std::map<uint64_t, Record> kept_;
  uint64_t turn_ = 0;
  double making_ms_ = 0;
};

}  // namespace braid
