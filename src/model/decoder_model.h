// decoder_model.h -- the layer loop of every architecture: a stack of attention and gated delta layers, each
// with a feed-forward, as its configuration says (config.h).
#pragma once

#include <vector>

#include "model/architectures/architectures.h"
#include "model/layers/layers.h"
#include "model/model.h"
#include "model/placer.h"

namespace braid {

class DecoderModel final : public Model {
 public:
  // Errors: those of the architecture.
  static Result<std::unique_ptr<Model>> open(const Architecture& architecture, const GgufFile& file,
                                             const ModelOptions& options);
  explicit DecoderModel(const GgufFile& file) : weights_(file) {}

  const ModelConfig& config() const override { return config_; }
  ModelWeights& weights() override { return weights_; }

  size_t activation_bytes(const StepSizes& sizes, DType activations) const override;
  Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const override;
  int64_t flops_per_token() const override;
  Status load(Device& device, const StepSizes& sizes, const ModelWeights::Progress& progress) override;
  void forward(const Batch& batch, const SequenceMemory& memory) override;
  bool forward_interleaved(StepCursor& at, const Batch& batch, const SequenceMemory& memory,
                           StepPacing& pacing) override;
  void attach(StepTap& tap, std::vector<AttentionConfig> layers) override;
  void logits(Tensor logits, int32_t first, int32_t count) override;
  void draft(Tensor logits, const Batch& batch, const SequenceMemory& memory, bool first) override;
  const int32_t* draft_token_of() const override;
  void change_draft_rows(std::span<const DraftRow> changes) override;
  Tensor output_hidden() const override { return ended_->hidden.top(last_outputs_); }

 private:
  // Everything that lives between the ops of one layer; layers run one at a time and share one stretch of
  // memory.
  struct LayerScratch {
    AttentionScratch attention;
    DeltaScratch delta;
    MlpScratch mlp;
    MoeScratch moe;
  };
  // Beside residual and normed rows, which the head takes for its own.
  struct DraftScratch {
    Tensor before;  // [T, E] f32: hidden rows of the positions before
    Tensor joined;  // [T, 2 E]: embedding and hidden row, each normed
    LayerScratch layer;
  };
  // Everything that lives between the ops of one step.
  struct Lane {
    Tensor residual;                   // [T, E]
    Tensor normed;                     // [T, E]
    std::vector<Tensor> ropes;         // [ropes] of [T, rope dims]
    Tensor gathered;                   // [outputs, E]
    Tensor hidden;                     // [outputs, E] after the output norm
    std::vector<LayerScratch> layers;  // [layers]
    DraftScratch draft;                // of the head that drafts; shares the layers' memory
  };

  // Places a lane in one stretch of memory that starts at `base` (null: only counts). Returns its bytes. What
  // travels between ops has type `activations`; the residual stream, gathered rows of it, gate and router
  // rows and the rope table are f32.
  static size_t place_layer(LayerScratch& layer, const LayerConfig& c, const Placer& start, int64_t t,
                            DType act);
  size_t place(Lane& lane, std::byte* base, int32_t max_tokens, int32_t max_outputs, DType activations) const;
  size_t lane_bytes(int32_t max_tokens, int32_t max_outputs, DType activations) const;

  // What all layers of a step work on.
  struct Run {
    const Batch& batch;
    const SequenceMemory& memory;
    StepPacing& pacing;
  };
  bool run_layers(const Lane& lane, StepCursor& at, const Run& run);
  bool run_attention(const Lane& lane, StepCursor& at, const Run& run);
  void run_feed_forward(Tensor x, Tensor h, const LayerConfig& config, const LayerWeights& w,
                        const LayerScratch& scratch);
  void leave_outputs(const Lane& lane, const Run& run);
  template <typename Work>
  void catching_up(const Work& work);
  // draft_head.cpp
  void keep_entries(const Lane& lane, const Run& run);
  void enter_head(const Lane& lane, const Batch& batch);
  void choose_draft_vocabulary(int32_t wanted);
  Status load_draft_vocabulary();
  void show(const Lane& lane, size_t layer, const Batch& batch);

  ModelConfig config_;
  ModelWeights weights_;
  StepTap* tap_ = nullptr;  // null: nobody listens
  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  Buffer activations_;
  Lane whole_;        // steps that run at once
  Lane interleaved_;  // the step that is interleaved with them
  const Lane* ended_ = &whole_;
  int32_t last_outputs_ = 0;
  Buffer draft_tokens_, draft_tokens_on_host_;  // [config_.draft_vocabulary] i32
};

}  // namespace braid
