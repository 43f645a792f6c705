// cuda_ops.h -- the ops of one GPU.
//
// Every op queues kernels on the one compute stream and returns. Batch arrays, activations, pools
// and small weights are device memory; shapes come from the host. Values that vary from step to
// step are read on the device (batch.h describes padded rows), so a step can be recorded. Ops that
// take lists from the host (delta_move, hidden_move, kv_move, kv_seal) cannot be recorded. Scratch
// is zero-filled once (workspace.cu).
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/context.h"
#include "ops/cuda/gemm/expert_slots.h"
#include "ops/cuda/ordered_rows.h"
#include "ops/cuda/workspace.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid {

namespace cuda {
size_t gemm_bytes(const Context& context, const Device::WorkspaceNeeds& needs);
size_t moe_bytes(const Device::WorkspaceNeeds& needs);
size_t top_k_bytes();
}  // namespace cuda

class CudaOps final : public Ops {
 public:
  CudaOps(cuda::Context& context, cuda::ExpertSlots& slots) : context_(context), slots_(slots) {}

  // Sizes the workspaces (device.h), in bytes.
  static Status accepts(const Device::WorkspaceNeeds& needs);
  size_t workspace_bytes(const Device::WorkspaceNeeds& needs) const;
  Result<size_t> reserve(Device& device, const Device::WorkspaceNeeds& needs);

  // [2], device memory (SparseWorkspace); null: no sparse attention.
  const unsigned long long* sparse_counts() const { return sequence_work_.sparse.counts; }

  void embed(Tensor y, const Weight& table, const Batch& batch) override;
  void linear(std::span<const LinearPart> parts, Tensor x) override;
  void norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                   const float* weight, float eps) override;
  void announce_product(std::span<const LinearPart> parts, Tensor x) override;
  void logits(Tensor logits, const Weight& w, Tensor x) override;
  void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) override;
  void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
             const int32_t* token_of) override;

  void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) override;
  void fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) override;
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) override;
  void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits, const RouteParams& params,
           const MoeWeights& w, const Batch& batch) override;

  void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) override;

  void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) override;
  void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                          const AttentionWeights& w, const AttentionParams& params,
                          const KvLayer& kv, const Batch& batch) override;

  void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) override;

  void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                 const Batch& batch) override;
  void store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                    Tensor rope_table, const AttentionWeights& w, const AttentionParams& params,
                    const KvLayer& kv, const Batch& batch) override;
  void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
                   const AttentionParams& params, const KvLayer& kv, const Batch& batch) override;

  void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                  const Batch& batch) override;
  void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                  const Batch& batch) override;

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

  void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) override;
  void state_copy(float* dst, const float* src, int64_t elements) override;
  void block_copy(const KvLayer& kv, int32_t dst, int32_t src) override;

 private:
  struct WorkspaceParts {
    size_t sequence, gemm, moe, top_k;
    size_t sum() const { return sequence + gemm + moe + top_k; }
  };
  bool collects_late(const Letter& letter) const;
  void run_experts(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w);

  WorkspaceParts workspace_parts(const Device::WorkspaceNeeds& needs) const;

  cuda::Context& context_;
  cuda::ExpertSlots& slots_;
  Device::WorkspaceNeeds needs_;
  Buffer workspace_;
  // Parts of workspace_, 256-byte aligned.
  cuda::SequenceWorkspace sequence_work_;
  std::byte* gemm_work_ = nullptr;
  std::byte* moe_work_ = nullptr;
  std::byte* top_k_work_ = nullptr;
  cuda::AnnouncedProduct announced_;
  uint64_t sent_at_ = 0;  // launches when the last letter had been sent
};

}  // namespace braid
