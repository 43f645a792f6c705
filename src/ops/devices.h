// devices.h -- the devices that one model runs on.
//
// A grid of stages and ranks. A model's layers are cut into stages: a range of layers each. A step
// runs through the stages in order; between two of them its residual rows move (Device::receive).
// The ranks of a stage have a shard of each of its layers, and add up what these give (letter.h).
// Devices of one list are of one kind, but for CPUs before GPUs, which have the first layers of a
// model that is too large for the GPUs. One thread (the engine's) calls them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/device.h"

namespace braid {

class Devices {
 public:
  // At least one; stage by stage, `ranks` each.
  explicit Devices(std::vector<std::unique_ptr<Device>> list, int32_t ranks = 1);
  explicit Devices(std::unique_ptr<Device> only);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  int32_t count() const { return static_cast<int32_t>(pointers_.size()); }
  // CPU devices of one list share their threads.
  void keep(std::shared_ptr<ThreadPool> pool) { pool_ = std::move(pool); }

  int32_t ranks() const { return ranks_; }
  int32_t stages() const { return count() / ranks_; }
  int32_t index(int32_t stage, int32_t rank) const { return stage * ranks_ + rank; }
  Device& at(int32_t index) { return *pointers_[static_cast<size_t>(index)]; }
  const Device& at(int32_t index) const { return *pointers_[static_cast<size_t>(index)]; }
  Device& first() { return at(0); }
  const Device& first() const { return at(0); }
  // Rank 0 of the last stage, which has the output matrix and what drafts.
  int32_t last_index() const { return index(stages() - 1, 0); }
  Device& last() { return at(last_index()); }
  const Device& last() const { return at(last_index()); }
  std::span<Device* const> all() const { return pointers_; }
  std::span<Device* const> of_stage(int32_t stage) const {
    return all().subspan(static_cast<size_t>(index(stage, 0)), static_cast<size_t>(ranks_));
  }
  // What holds for all of them; of asynchronous, own_memory and records: for any.
  DeviceTraits traits() const { return traits_; }
  // CPUs before GPUs: memory of both, and rows move through the host.
  bool mixed() const { return first().traits().own_memory != last().traits().own_memory; }

  // "cuda:0 (...), cuda:1 (...)"; of one device its own.
  std::string description() const;
  // As Device::numerics(); of equal devices that of one.
  std::string numerics() const;

  void synchronize();
  // The end of what is queued on all devices; of the last Device::kFences calls only.
  uint64_t fence();
  void wait_for(uint64_t fence);
  // Ok, or the first error of a device. Call it after synchronize() or wait_for().
  Status health() const;

  // Copies beside the steps (Device::copy_beside), one list for each device; the lists are emptied.
  // In order also between devices that copy at once and those that do not.
  // One number stands for all of them.
  uint64_t copy_beside(std::span<std::vector<Device::Copy>> lists);
  uint64_t copies_done();
  void order_after_copies(uint64_t number);
  void wait_for_copies(uint64_t number);

 private:
  struct Copies {
    uint64_t number = 0;
    std::vector<uint64_t> last_of_device;  // the last of each device up to this number
  };
  // The last copies up to `number` that are not known to be done; null: there are none.
  const Copies* find(uint64_t number) const;

  std::shared_ptr<ThreadPool> pool_;  // outlives its users
  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<Device*> pointers_;
  int32_t ranks_ = 1;
  DeviceTraits traits_;
  uint64_t last_fence_ = 0;
  std::vector<std::array<uint64_t, Device::kFences>> fences_;  // [devices]
  std::deque<Copies> copies_;  // not known to be done; with several devices
  std::vector<uint64_t> last_of_device_;
  uint64_t last_copies_ = 0;
};

// `to` = `from` on another device of any kind, after the ops queued there. From a GPU to the host
// it waits for them. Dense f32 rows of equal shape.
void move_rows(Device& to_device, Tensor to, Device& from_device, Tensor from);

}  // namespace braid
