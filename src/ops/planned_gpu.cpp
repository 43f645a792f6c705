// planned_gpu.cpp -- see planned_gpu.h.
#include "ops/planned_gpu.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

class PlannedGpu final : public Device {
 public:
  PlannedGpu(int number, uint64_t free_bytes) : number_(number), free_bytes_(free_bytes) {}

  std::string description() const override { return fmt::format("planned GPU {}", number_); }
  int memory_number() const override { return number_; }
  uint64_t free_bytes() const override { return free_bytes_; }
  double read_bytes_s() const override { return 1e12; }  // all the same, and more than a CPU
  Result<Buffer> allocate(size_t, const char* label) override { return absent(label); }
  Status load_weights(std::span<Weight* const>, const WeightDone&) override {
    return absent("weights");
  }
  void copy_rows(const Weight&, const Weight&, std::span<const int32_t>) override { no_ops(); }
  size_t weight_bytes(const Weight& weight) const override { return gpu_weight_bytes(weight); }
  size_t expert_copy_bytes(const Weight& weight) const override {
    return gpu_expert_copy_bytes(weight);
  }
  size_t expert_staging_bytes(std::span<Weight* const> weights) const override {
    return gpu_expert_staging_bytes(weights);
  }
  DeltaRing delta_ring(int32_t uncertain) const override { return {8, uncertain, uncertain}; }
  DType activation_type() const override { return DType::f16; }
  DeviceTraits traits() const override { return {false, true, false, true, true, true}; }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds&) override { return absent("workspaces"); }
  void to_device(void*, const void*, size_t) override { no_ops(); }
  void to_host(void*, const void*, size_t) override { no_ops(); }
  void synchronize() override {}
  Ops& ops() override { no_ops(); }

  // Rows between products in f32, and the f16 image of one layer's quantized cells.
  size_t workspace_bytes(const WorkspaceNeeds& needs) const override {
    const int64_t row_elements = 2 * needs.max_width + 2 * needs.delta.channels() +
                                 needs.experts_used * (2 * needs.expert_width + needs.model_width);
    const int64_t blocks =
        needs.max_sequences * ((needs.max_context + kBlockTokens - 1) / kBlockTokens);
    const int64_t cells = needs.k_codec == nullptr ? 0 : blocks * kBlockTokens;
    return static_cast<size_t>(
        4 * (needs.max_tokens * row_elements + cells * needs.kv_heads * needs.head_dim));
  }

 private:
  Error absent(const char* label) const {
    return {ErrorKind::unsupported, fmt::format("{} has no {}", description(), label)};
  }
  [[noreturn]] static void no_ops() {
    check_failed(__FILE__, __LINE__, "a planned GPU runs nothing");
  }

  int number_;
  uint64_t free_bytes_;
};

}  // namespace

std::unique_ptr<Device> make_planned_gpu(int number, uint64_t free_bytes) {
  return std::make_unique<PlannedGpu>(number, free_bytes);
}

}  // namespace braid
