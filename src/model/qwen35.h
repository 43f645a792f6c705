// qwen35.h -- the layer loop of qwen35 (dense) and qwen35moe: delta layers braided with attention layers.
#pragma once

#include "model/blocks.h"
#include "model/model.h"

namespace braid {

class Qwen35Model : public Model {
 public:
  static Result<std::unique_ptr<Model>> open(const GgufFile& file, const ModelOptions& options);

  size_t activation_bytes(int32_t max_tokens, int32_t max_outputs, DType activations) const override;
  Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const override;
  int64_t flops_per_token() const override;
  Status load(Device& device, int32_t max_tokens, int32_t max_outputs,
              const ModelWeights::Progress& progress) override;
  void forward(const Batch& batch, const SequenceMemory& memory, bool has_uncertain) override;
  void logits(Tensor logits, int32_t first, int32_t count) override;
  Tensor output_hidden() const override { return hidden_.top(last_outputs_); }

 private:
  // Places every activation in one stretch of memory that starts at `base` (null: only counts). Returns its
  // bytes. What travels between ops has type `activations`; the residual stream, gathered rows of it, gate
  // and router rows and the rope table are f32.
  size_t place_activations(std::byte* base, int32_t max_tokens, int32_t max_outputs, DType activations);

  void show(int32_t layer, const Batch& batch);

  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  Buffer activations_;
  int32_t last_outputs_ = 0;
  Tensor residual_;  // [T, E]
  Tensor normed_;    // [T, E]
  Tensor rope_;      // [T, rope dims]
  Tensor gathered_;  // [outputs, E]
  Tensor hidden_;    // [outputs, E] after the output norm
  AttentionScratch attention_;
  DeltaScratch delta_;
  MlpScratch mlp_;
  MoeScratch moe_;
};

}  // namespace braid
