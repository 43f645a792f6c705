// decoder_model.h -- the layer loop of every architecture: attention and gated delta layers.
#pragma once

#include <vector>

#include "model/architectures.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/placer.h"

namespace braid {

class DecoderModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> open(const Architecture& architecture, const GgufFile& file,
                                             const ModelOptions& options);
  explicit DecoderModel(const GgufFile& file) : weights_(file) {}

  const ModelConfig& config() const override { return config_; }
  ModelWeights& weights() override { return weights_; }

  void split(std::span<const int32_t> first_layers, bool drafts_embed) override;
  size_t activation_bytes(int32_t stage, const StepSizes& sizes, DType activations) const override;
  Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const override;
  int64_t flops_per_token() const override;
  using Model::load;
  Status load(std::span<Device* const> stages, const StepSizes& sizes,
              const ModelWeights::Progress& progress) override;
  void forward_stage(int32_t stage, const Batch& batch, const SequenceMemory& memory) override;
  void hand_off(int32_t stage, int32_t rows) override { hand_off(stage, rows, false); }
  bool forward_interleaved(StepCursor& at, const Batch& batch, const SequenceMemory& memory,
                           StepPacing& pacing) override;
  void attach(StepTap& tap, std::vector<AttentionConfig> layers) override;
  void logits(Tensor logits, int32_t first, int32_t count) override;
  void draft(Tensor logits, const Batch& batch, const SequenceMemory& memory, bool first) override;
  const int32_t* draft_token_of() const override;
  void change_draft_rows(std::span<const DraftRow> changes) override;
  Tensor output_hidden() const override { return ended().hidden.top(last_outputs_); }

 private:
  // Tensors between the ops of one layer. Layers run one at a time and share this memory.
  struct LayerScratch {
    AttentionScratch attention;
    DeltaScratch delta;
    MlpScratch mlp;
    MoeScratch moe;
  };
  struct DraftScratch {
    Tensor before;  // [T, E] f32: hidden rows of the previous positions
    Tensor joined;  // [T, 2 E]: embedding and hidden row, each normed
    LayerScratch layer;
  };
  struct Lane {
    Tensor residual;                   // [T, E]
    Tensor normed;                     // [T, E]
    std::vector<Tensor> ropes;         // [ropes] of [T, rope dims]
    Tensor gathered;                   // [outputs, E]; of the last stage, as all below but layers
    Tensor hidden;                     // [outputs, E] after the output norm
    std::vector<LayerScratch> layers;  // [layers]; empty ones belong to other stages
    DraftScratch draft;                // of the MTP head; shares the layers' memory
  };
  // A range of layers on a device.
  struct Stage {
    Device* device = nullptr;
    Ops* ops = nullptr;
    StepCursor begin;
    int32_t end = 0;  // after its last layer
    Buffer activations;
    Lane whole;        // steps that run at once
    Lane interleaved;  // the interleaved step
    const Lane& lane(bool is_interleaved) const { return is_interleaved ? interleaved : whole; }
  };

  // Places a lane at `base` (null: only counts); returns its bytes. Residual, gathered, gate,
  // router and rope rows are f32, others `activations`.
  static size_t place_layer(LayerScratch& layer, const LayerConfig& c, const Placer& start,
                            int64_t t, DType act);
  size_t place(int32_t stage, Lane& lane, std::byte* base, int32_t max_tokens, int32_t max_outputs,
               DType activations) const;
  size_t lane_bytes(int32_t stage, int32_t max_tokens, int32_t max_outputs,
                    DType activations) const;

  struct Run {
    const Batch& batch;
    const SequenceMemory& memory;
    StepPacing& pacing;
    bool interleaved;
  };
  // Both return false if the step pauses. run.batch is the stage's own.
  bool run_layers(const Stage& stage, StepCursor& at, const Run& run);
  bool run_attention(const Stage& stage, StepCursor& at, const Run& run);
  bool run_outputs(const Stage& stage, const StepCursor& at, const Run& run);
  static void run_feed_forward(Ops& ops, Tensor x, Tensor h, const BlockNorm& norm,
                               const LayerConfig& config, const LayerWeights& w,
                               const LayerScratch& scratch);
  void hand_off(int32_t stage, int32_t rows, bool interleaved);
  template <typename Work>
  void catching_up(const Work& work);
  void keep_entries(const Lane& lane, const Run& run);
  void enter_head(const Lane& lane, const Batch& batch);
  const Lane& ended() const { return stages_.back().lane(ended_interleaved_); }
  Device& last_device() { return *stages_.back().device; }
  Ops& last_ops() { return *stages_.back().ops; }
  void choose_draft_vocabulary(int32_t wanted);
  Status load_draft_vocabulary();
  void show(const Stage& stage, const Lane& lane, size_t layer, const Batch& batch);

  ModelConfig config_;
  ModelWeights weights_;
  StepTap* tap_ = nullptr;          // may be null
  std::vector<Stage> stages_;       // once loaded
  bool ended_interleaved_ = false;  // the last ended step
  int32_t last_outputs_ = 0;
  Buffer draft_tokens_, draft_tokens_on_host_;  // [config_.draft_vocabulary] i32
};

}  // namespace braid
