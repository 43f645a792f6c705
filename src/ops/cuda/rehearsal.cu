// rehearsal.cu -- see rehearsal.h.
#include "ops/cuda/rehearsal.h"

#include <cstdlib>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/exchange/exchange.h"
#include "ops/cuda/profile.h"
#include "ops/cuda/weights.h"

namespace braid::cuda {
namespace {

class Rehearsal final : public Device {
 public:
  Rehearsal(const Card& card, std::vector<KernelLaunch>& launches)
      : slots_(*this, context_), ops_(context_, slots_), profiler_(context_, ops_) {
    static_cast<Card&>(context_) = card;
    context_.name = "none";
    context_.rehearsal = &launches;
  }

  std::string description() const override { return "a GPU that is not there"; }
  Result<Buffer> allocate(size_t size_bytes, const char* label) override {
    // Untouched pages take no memory.
    void* data = std::calloc(size_bytes + 256, 1);
    if (data == nullptr) return Error{ErrorKind::exhausted, std::string("no memory for ") + label};
    return Buffer(data, size_bytes, [](void* at, size_t) { std::free(at); });
  }
  size_t weight_bytes(const Weight& weight) const override { return planned_bytes(weight); }
  Status load_weights(std::span<Weight* const> weights, const WeightDone&) override {
    for (Weight* w : weights) {
      weights_.push_back(std::make_unique<PackedWeight>(shape_of(*w)));
      weights_.back()->data = nothing_;
      w->device_data = weights_.back().get();
    }
    return {};
  }
  void copy_rows(const Weight&, const Weight&, std::span<const int32_t>) override {}
  Status accepts(const WorkspaceNeeds& needs) const override { return ops_.accepts(needs); }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override {
    return ops_.reserve(*this, needs);
  }
  void to_device(void*, const void*, size_t) override {}
  void to_host(void*, const void*, size_t) override {}
  DType activation_type() const override { return kActType; }
  DeviceTraits traits() const override { return {false, true, false, true, true}; }
  void synchronize() override {}
  Ops& ops() override { return profiler_; }
  Status health() const override {
    if (context_.healthy()) return {};
    return Error{ErrorKind::io, context_.fault()};
  }
  Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                            std::span<const LaneNeeds> lanes,
                                            const ExchangeOptions& options) override {
    std::vector<Rank> all;
    for (Device* rank : ranks) all.push_back({rank, &dynamic_cast<Rehearsal&>(*rank).context_});
    return cuda::connect(all, lanes, options);
  }

 private:
  alignas(256) uint8_t nothing_[256] = {};
  Context context_;
  std::vector<std::unique_ptr<PackedWeight>> weights_;
  ExpertSlots slots_;
  CudaOps ops_;
  Profiler profiler_;
};

}  // namespace

std::unique_ptr<Device> make_rehearsal(const Card& card, std::vector<KernelLaunch>& launches) {
  return std::make_unique<Rehearsal>(card, launches);
}

}  // namespace braid::cuda
