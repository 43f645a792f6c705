// cuda_device.h -- one NVIDIA GPU: memory, a stream of ops and one of copies, recorded steps.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/profile.h"
#include "ops/cuda/weights.h"
#include "ops/device.h"

namespace braid {

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> make(const DeviceOptions& options);
  ~CudaDevice() override;

  const cuda::Card& card() const { return context_; }
  std::string description() const override { return description_; }
  std::string numerics() const override { return numerics_; }
  uint64_t free_bytes() const override;
  double read_bytes_s() const override;
  int memory_number() const override { return context_.gpu; }
  Result<Buffer> allocate(size_t size_bytes, const char* label) override;
  Result<Buffer> allocate_host(size_t size_bytes, const char* label,
                               const BytesDone& done) override;
  using Device::allocate_host;
  Status load_weights(std::span<Weight* const> weights, const WeightDone& done) override;
  void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) override;
  size_t weight_bytes(const Weight& weight) const override;
  size_t expert_copy_bytes(const Weight& weight) const override {
    return gpu_expert_copy_bytes(weight);
  }
  size_t expert_staging_bytes(std::span<Weight* const> weights) const override {
    return gpu_expert_staging_bytes(weights);
  }
  std::vector<ExpertLayer> expert_layers() const override { return slots_.layers(); }
  std::vector<float> expert_scores() override;
  Status prefer_experts(std::span<const float> scores) override;
  Status route_by(const RouteTrace& trace) override;
  int32_t padded_rows(int32_t rows) const override;
  int32_t state_tile_columns(const DeltaShape&) const override { return 1; }
  DeltaRing delta_ring(int32_t uncertain) const override {
    return {cuda::kFoldEvery, uncertain, uncertain};
  }
  Status accepts(const WorkspaceNeeds& needs) const override { return ops_.accepts(needs); }
  size_t workspace_bytes(const WorkspaceNeeds& needs) const override {
    return ops_.workspace_bytes(needs);
  }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override {
    return ops_.reserve(*this, needs);
  }
  void to_device(void* dst, const void* src, size_t size_bytes) override;
  void to_host(void* dst, const void* src, size_t size_bytes) override;
  void rows_to_device(const Copy& copy) override;
  uint64_t copy_beside(std::span<const Copy> copies) override;
  void receive(Tensor to, Device& from, Tensor x) override;
  uint64_t copies_done() override;
  void order_after_copies(uint64_t number) override;
  void wait_for_copies(uint64_t number) override;
  DType activation_type() const override;
  DeviceTraits traits() const override { return {false, true, false, true, true, has_slots_}; }
  void synchronize() override;
  uint64_t fence() override;
  void wait_for(uint64_t fence) override;
  Ops& ops() override { return profiler_; }
  Status health() const override;
  Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                            std::span<const LaneNeeds> lanes,
                                            const ExchangeOptions& options) override;
#if defined(BRAID_COUNT_CLAMPS)
  uint64_t clamped() const override;
#endif
  SparseCounts sparse_counts() override;
  void fail_on_purpose(bool lasting) override;

  bool begin_record() override;
  Status end_record(uint64_t key) override;
  bool has_record(uint64_t key) const override {
    return !profiler_.active() && records_.count(key) != 0;
  }
  void replay(uint64_t key) override;
  void forget_record(uint64_t key) override;

  bool start_profile() override;
  std::vector<OpTime> stop_profile() override;
  Result<DevicePeaks> measure_peaks() override;

 private:
  CudaDevice() : slots_(*this, context_), ops_(context_, slots_), profiler_(context_, ops_) {}
  cudaEvent_t end_of_copies(uint64_t number);
  void reach(int gpu);

  cuda::Context context_;
  std::string description_;
  std::string numerics_;
  std::map<uint64_t, cudaGraphExec_t> records_;
  cudaEvent_t sent_ = nullptr;      // what receive() of another device waits for
  cudaEvent_t received_ = nullptr;  // what the sender of the last receive() waits for
  std::array<cudaEvent_t, kFences> fences_{};
  uint64_t last_fence_ = 0;
  std::vector<int> reached_;  // GPUs that receive() has seen
  cudaStream_t copy_stream_ = nullptr;
  cudaEvent_t ops_end_ = nullptr;  // position of the ops when copies were last queued
  struct Copies {
    uint64_t number;
    cudaEvent_t end;
  };
  std::deque<Copies> copies_;             // not known to be done
  std::vector<cudaEvent_t> idle_events_;  // for reuse
  uint64_t last_copies_ = 0;
  std::vector<std::unique_ptr<cuda::PackedWeight>> weights_;
  bool has_slots_ = false;
  cuda::ExpertSlots slots_;
  CudaOps ops_;
  cuda::Profiler profiler_;
};

}  // namespace braid
