// own_memory_test.h -- a CPU or reference device with the traits of a GPU: its own memory, which
// the host must not touch, and copies that end later. For engines with a CPU before a GPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/devices.h"

namespace braid::testing_devices {

class OwnMemory final : public Device {
 public:
  explicit OwnMemory(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  DeviceTraits traits() const override {
    DeviceTraits traits = inner_->traits();
    traits.host_visible = false;
    traits.asynchronous = true;
    traits.own_memory = true;
    return traits;
  }
  int memory_number() const override { return 0; }
  uint64_t free_bytes() const override { return uint64_t{1} << 30; }

  std::string description() const override { return inner_->description(); }
  int threads() const override { return inner_->threads(); }
  ThreadPool* pool() override { return inner_->pool(); }
  Result<Buffer> allocate(size_t bytes, const char* label) override {
    return inner_->allocate(bytes, label);
  }
  Status load_weights(std::span<Weight* const> weights, const WeightDone& done) override {
    return inner_->load_weights(weights, done);
  }
  void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) override {
    inner_->copy_rows(to, from, rows);
  }
  size_t weight_bytes(const Weight& weight) const override { return inner_->weight_bytes(weight); }
  int32_t state_tile_columns(const DeltaShape& shape) const override {
    return inner_->state_tile_columns(shape);
  }
  DeltaRing delta_ring(int32_t uncertain) const override { return inner_->delta_ring(uncertain); }
  size_t workspace_bytes(const WorkspaceNeeds& needs) const override {
    return inner_->workspace_bytes(needs);
  }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override {
    return inner_->reserve_workspaces(needs);
  }
  void to_device(void* to, const void* from, size_t bytes) override {
    inner_->to_device(to, from, bytes);
  }
  void to_host(void* to, const void* from, size_t bytes) override {
    inner_->to_host(to, from, bytes);
  }
  void synchronize() override {}
  Ops& ops() override { return inner_->ops(); }

  // Copies end when they are waited for, or at the second look.
  uint64_t copy_beside(std::span<const Copy> copies) override {
    pending_.insert(pending_.end(), copies.begin(), copies.end());
    return ++last_;
  }
  uint64_t copies_done() override {
    if (looked_++ % 2 == 1) finish();
    return done_;
  }
  void order_after_copies(uint64_t number) override { wait_for_copies(number); }
  void wait_for_copies(uint64_t number) override {
    if (number > done_) finish();
  }

 private:
  void finish() {
    (void)inner_->copy_beside(std::exchange(pending_, {}));
    done_ = last_;
  }

  std::unique_ptr<Device> inner_;
  std::vector<Copy> pending_;
  uint64_t last_ = 0, done_ = 0;
  int looked_ = 0;
};

}  // namespace braid::testing_devices
