// qwen35.h -- the layer loop of qwen35 (dense) and qwen35moe: delta layers braided with attention layers.
#pragma once

#include "model/layers/layers.h"
#include "model/model.h"

namespace braid {

class Qwen35Model : public Model {
 public:
  static Result<std::unique_ptr<Model>> open(const GgufFile& file, const ModelOptions& options);

  size_t activation_bytes(const StepSizes& sizes, DType activations) const override;
  Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const override;
  int64_t flops_per_token() const override;
  Status load(Device& device, const StepSizes& sizes, const ModelWeights::Progress& progress) override;
  void forward(const Batch& batch, const SequenceMemory& memory, bool has_uncertain) override;
  bool forward_interleaved(StepCursor& at, const Batch& batch, const SequenceMemory& memory,
                           StepPacing& pacing) override;
  void logits(Tensor logits, int32_t first, int32_t count) override;
  Tensor output_hidden() const override { return ended_->hidden.top(last_outputs_); }

 private:
  // Everything that lives between the ops of one step.
  struct Lane {
    Tensor residual;  // [T, E]
    Tensor normed;    // [T, E]
    Tensor rope;      // [T, rope dims]
    Tensor gathered;  // [outputs, E]
    Tensor hidden;    // [outputs, E] after the output norm
    AttentionScratch attention;
    DeltaScratch delta;
    MlpScratch mlp;
    MoeScratch moe;
  };

  // Places a lane in one stretch of memory that starts at `base` (null: only counts). Returns its bytes. What
  // travels between ops has type `activations`; the residual stream, gathered rows of it, gate and router
  // rows and the rope table are f32.
  size_t place(Lane& lane, std::byte* base, int32_t max_tokens, int32_t max_outputs, DType activations) const;
  size_t lane_bytes(int32_t max_tokens, int32_t max_outputs, DType activations) const;

  // What all layers of a step work on.
  struct Run {
    const Batch& batch;
    const SequenceMemory& memory;
    bool has_uncertain = false;
    StepPacing& pacing;
  };
  bool run_layers(const Lane& lane, StepCursor& at, const Run& run);
  bool run_attention(const Lane& lane, StepCursor& at, const Run& run);
  void run_feed_forward(const Lane& lane, int32_t layer, const Batch& batch);
  void leave_outputs(const Lane& lane, const Batch& batch);
  void show(const Lane& lane, int32_t layer, const Batch& batch);

  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  Buffer activations_;
  Lane whole_;        // steps that run at once
  Lane interleaved_;  // the step that is interleaved with them
  const Lane* ended_ = &whole_;
  int32_t last_outputs_ = 0;
};

}  // namespace braid
