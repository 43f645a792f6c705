// cpu_device.h -- the CPU as a device: threads, memory, weights (linear.h) and ops (cpu_ops.h).
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "base/threads.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm/linear.h"
#include "ops/device.h"

namespace braid {

class CpuDevice final : public Device {
 public:
  static Result<std::unique_ptr<CpuDevice>> make(const DeviceOptions& options);

  std::string description() const override;
  std::string numerics() const override;
  int threads() const override { return pool_->size(); }
  ThreadPool* pool() override { return pool_; }
  Result<Buffer> allocate(size_t size_bytes, const char* label) override;
  Status load_weights(std::span<Weight* const> weights, const WeightDone& done) override;
  void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) override;
  size_t weight_bytes(const Weight& weight) const override;
  int32_t state_tile_columns(const DeltaShape& shape) const override;
  size_t workspace_bytes(const WorkspaceNeeds& needs) const override;
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override;
  void to_device(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  void to_host(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  bool expands(const KvCodec& codec, int32_t head_dim) const override;
  SparseCounts sparse_counts() override { return ops_.sparse_counts(); }
  void synchronize() override {}
  Ops& ops() override { return ops_; }
  Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                            std::span<const LaneNeeds> lanes,
                                            const ExchangeOptions& options) override;

 private:
  CpuDevice(std::unique_ptr<ThreadPool> own_pool, ThreadPool& pool,
            std::unique_ptr<cpu::Products> products)
      : own_pool_(std::move(own_pool)),
        pool_(&pool),
        products_(std::move(products)),
        ops_(*pool_, *products_) {}

  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* pool_;  // its own, or that of all CPU devices of a model
  std::unique_ptr<cpu::Products> products_;
  CpuOps ops_;
};

}  // namespace braid
