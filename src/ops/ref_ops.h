// ref_ops.h -- the reference device: every op of ops.h as plain loops.
// It is the specification for tests of other devices, not a fallback for users: formulas before
// speed. Sums are double; results are rounded to f32 once, when stored. Weights are decoded to f32
// at load, rows of tables at use. Recurrent states have one tile [key_dim][value_dim] per head.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ops/device.h"
#include "ops/ops.h"

namespace braid {

class RefOps final : public Ops {
 public:
  void embed(Tensor y, const Weight& table, const Batch& batch) override;
  void linear(std::span<const LinearPart> parts, Tensor x) override;
  void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) override;
  void logits(Tensor logits, const Weight& w, Tensor x) override;
  void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
             const int32_t* token_of) override;

  void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) override;
  void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) override;

  void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                          const AttentionWeights& w, const AttentionParams& params,
                          const KvLayer& kv, const Batch& batch) override;
  void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                 const Batch& batch) override;
  void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
                   const AttentionParams& params, const KvLayer& kv, const Batch& batch) override;
  void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) override;
  void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) override;
  void block_copy(const KvLayer& kv, int32_t dst, int32_t src) override;

  void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                  const Batch& batch) override;
  void delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) override;
  void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                  const Batch& batch) override;
  void state_copy(float* dst, const float* src, int64_t elements) override;

  void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) override;
  void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) override;
  void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                   const Batch& batch) override;

  void send(const Letter& letter, Tensor x, const Batch& batch) override;
  void collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) override;
  void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                  const Batch& batch) override;

  void short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                  const Batch& batch) override;
  void pair_scores(Tensor scores, Tensor confidence, const PairInputs& in, const PairWeights& w,
                   const Batch& batch) override;

  void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) override;
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) override;

  SparseCounts sparse_counts;
};

class RefDevice final : public Device {
 public:
  explicit RefDevice(const DeviceOptions& options) : options_(options) {}

  std::string description() const override { return "reference"; }
  // Periodic folds as on a GPU, so that machines without one test them.
  DeltaRing delta_ring(int32_t uncertain) const override { return {8, uncertain, uncertain}; }
  Result<Buffer> allocate(size_t size_bytes, const char* label) override;
  Status load_weights(std::span<Weight* const> weights, const WeightDone& done) override;
  void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) override;
  size_t weight_bytes(const Weight& weight) const override;
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override;
  void to_device(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  void to_host(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  SparseCounts sparse_counts() override { return ops_.sparse_counts; }
  void synchronize() override {}
  Ops& ops() override { return ops_; }
  Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                            std::span<const LaneNeeds> lanes,
                                            const ExchangeOptions& options) override;

 private:
  DeviceOptions options_;
  RefOps ops_;
  std::vector<std::vector<float>> decoded_;  // [weight][experts * n * k]
};

}  // namespace braid
