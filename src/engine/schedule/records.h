// records.h -- repeated work of equal shape: queued twice, recorded the third time, then replayed.
//
// The first run initializes kernels, which must not be recorded; the second avoids recording short
// draft trials. Devices without graphs always queue. One engine shares the room. If it is full, or
// the device has no memory, the least recently used shape is dropped and counts from zero again, so
// rare shapes do not displace frequent ones.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/device.h"

namespace braid {

class Records {
 public:
  enum class Work : uint8_t { step, head, draft_blocks };
  static constexpr int kShapeBits = 61;

  // The devices must outlive it: those of a stage, whose work is recorded together. Several objects
  // may use one device.
  explicit Records(std::span<Device* const> devices) : devices_(devices.begin(), devices.end()) {}
  explicit Records(Device& device) : devices_{&device} {}
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() {
    for (const auto& [key, record] : kept_) forget(record.id);
  }

  // Work of equal shape must queue the same ops on the same memory. Do not nest. Errors: those of
  // Device::end_record().
  template <typename Enqueue>
  Status queue(Work work, uint64_t shape, Enqueue enqueue) {
    const uint64_t key = static_cast<uint64_t>(work) << kShapeBits | shape;
    const Clock::time_point begin = Clock::now();
    if (is_due(key) && begin_record()) {
      enqueue();
      const uint64_t id = ++last_id();
      BRAID_TRY(end_record(id));
      if (all_have(id)) {
        kept_[key].id = id;
      } else {
        forget(id);
        most_ = kept_.size();
        seen_.erase(key);
      }
      making_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    if (has_record(key)) {
      Record& record = kept_.at(key);
      record.turn = ++turn_;
      for (Device* device : devices_) device->replay(record.id);
    } else {
      enqueue();
    }
    return {};
  }

  size_t count() const { return kept_.size(); }
  // Recording time since the last call, which is not part of the work's own time.
  double take_making_ms() { return std::exchange(making_ms_, 0.0); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    uint64_t id = 0;    // the device's key
    uint64_t turn = 0;  // of the last use
  };

  static std::atomic<uint64_t>& last_id() {
    static std::atomic<uint64_t> id{0};
    return id;
  }

  // False while the device is profiled.
  bool has_record(uint64_t key) const {
    const auto it = kept_.find(key);
    return it != kept_.end() && all_have(it->second.id);
  }
  bool all_have(uint64_t id) const {
    return std::all_of(devices_.begin(), devices_.end(),
                       [&](const Device* device) { return device->has_record(id); });
  }
  // On all devices or on none.
  bool begin_record() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i]->begin_record()) continue;
      const uint64_t none = ++last_id();
      for (size_t j = 0; j < i; ++j) {
        (void)devices_[j]->end_record(none);  // empty
        devices_[j]->forget_record(none);
      }
      return false;
    }
    return true;
  }
  // Ends the recording of all devices; the first error.
  Status end_record(uint64_t id) {
    Status status;
    for (Device* device : devices_)
      if (Status own = device->end_record(id); status.ok()) status = std::move(own);
    return status;
  }
  void forget(uint64_t id) {
    for (Device* device : devices_) device->forget_record(id);
  }

  bool is_due(uint64_t key) {
    if (most_ == 0 || kept_.contains(key)) return false;
    if (int& queued = seen_[key]; queued < kQueuedBefore) {
      ++queued;
      return false;
    }
    if (kept_.size() >= most_) {
      const auto oldest = std::min_element(
          kept_.begin(), kept_.end(),
          [](const auto& a, const auto& b) { return a.second.turn < b.second.turn; });
      forget(oldest->second.id);
      seen_.erase(oldest->first);
      kept_.erase(oldest);
    }
    return true;
  }

  std::vector<Device*> devices_;
  static constexpr int kQueuedBefore = 2;
  size_t most_ = 192;             // each takes host and driver memory
  std::map<uint64_t, int> seen_;  // runs without a record, up to kQueuedBefore
  std::map<uint64_t, Record> kept_;
  uint64_t turn_ = 0;
  double making_ms_ = 0;
};

}  // namespace braid
