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
  explicit DecoderModel(const GgufFile& file) : file_(file), weights_(file) {}

  const ModelConfig& config() const override { return config_; }
  Status split(const ModelSplit& split) override;
  int32_t ranks() const override { return split_.ranks; }
  const ModelConfig& config_of(int32_t rank) const override {
    return shards_.empty() ? config_ : shards_[static_cast<size_t>(rank)]->config;
  }
  ModelWeights& weights_of(int32_t rank) override {
    return shards_.empty() ? weights_ : shards_[static_cast<size_t>(rank)]->weights;
  }
  size_t activation_bytes(int32_t stage, int32_t rank, const StepSizes& sizes,
                          DType activations) const override;
  Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const override;
  int64_t flops_per_token() const override;
  size_t exchange_bytes(const StepSizes& sizes) const override;
  size_t taken_exchange_bytes(int32_t stage, int32_t rank) const override {
    const Stage& own = stages_[static_cast<size_t>(stage)];
    return own.exchange == nullptr ? 0 : own.exchange->bytes(rank);
  }
  using Model::load;
  Status load(std::span<Device* const> devices, const StepSizes& sizes,
              const ModelWeights::Progress& progress) override;
  int32_t next_turn() override;
  void stop() override;
  void forward_stage(int32_t stage, const Batch& batch, std::span<const SequenceMemory> memory,
                     int32_t slot) override;
  void hand_off(int32_t stage, int32_t rows, int32_t computed) override {
    hand_off(stage, rows, computed, false);
  }
  bool forward_interleaved(StepCursor& at, const Batch& batch,
                           std::span<const SequenceMemory> memory, StepPacing& pacing) override;
  void attach(StepTap& tap, std::vector<AttentionConfig> layers) override;
  void logits(Tensor logits, int32_t first, int32_t count, int32_t slot) override;
  void draft(Tensor logits, const Batch& batch, const SequenceMemory& memory, bool first) override;
  const int32_t* draft_token_of() const override;
  void change_draft_rows(std::span<const DraftRow> changes) override;
  Tensor output_hidden(int32_t slot) const override {
    const Part& part = last();
    return slot == kInterleavedSlot ? part.interleaved.hidden[0]
                                    : part.whole.hidden[static_cast<size_t>(slot)];
  }

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
    Tensor residual;                   // [T, E]; the same on all ranks
    Tensor partial;                    // [T, E] f32: what a rank gives to the residual
    Tensor zeros;                      // [T, E] f32: one row
    Tensor normed;                     // [T, E]
    std::vector<Tensor> ropes;         // [ropes] of [T, rope dims]
    Tensor gathered;                   // [outputs, E]; of the last device, as all below but layers
    std::vector<Tensor> hidden;        // [slots] of [outputs, E] after the output norm
    std::vector<LayerScratch> layers;  // [layers]; empty ones belong to other stages
    DraftScratch draft;                // of the MTP head; shares the layers' memory
  };
  // A stage's layers, or a rank's shards of them, on a device.
  struct Part {
    Device* device = nullptr;
    Ops* ops = nullptr;
    int32_t index = 0;  // of the device
    int32_t rank = 0;
    const ModelConfig* config = nullptr;
    const ModelWeights* weights = nullptr;
    Buffer activations;
    Lane whole;        // steps that run at once
    Lane interleaved;  // the interleaved step
    const Lane& lane(bool is_interleaved) const { return is_interleaved ? interleaved : whole; }
  };
  struct Stage {
    StepCursor begin;
    int32_t end = 0;  // after its last layer
    std::vector<Part> parts;
    std::unique_ptr<Exchange> exchange;  // null: one rank
  };
  // A rank's shards.
  struct Shard {
    explicit Shard(const GgufFile& file) : weights(file) {}
    ModelConfig config;
    ModelWeights weights;
  };

  // Places a lane at `base` (null: only counts); returns its bytes. Residual, gathered, gate,
  // router and rope rows are f32, others `activations`.
  static size_t place_layer(LayerScratch& layer, const LayerConfig& c, const Placer& start,
                            int64_t t, DType act);
  size_t place(int32_t stage, int32_t rank, Lane& lane, std::byte* base, int32_t max_tokens,
               int32_t max_outputs, int32_t slots, DType activations) const;
  size_t lane_bytes(int32_t stage, int32_t rank, int32_t max_tokens, int32_t max_outputs,
                    int32_t slots, DType activations) const;
  Status make_shards();
  Status load_part(Part& part, int32_t stage, const StepSizes& sizes);
  Status connect(Stage& stage, const StepSizes& sizes);

  struct Run {
    const Batch& batch;  // of the first device
    std::span<const SequenceMemory> memory;
    StepPacing& pacing;
    bool interleaved;
    int32_t slot = kInterleavedSlot;
  };
  // All return false if the step pauses.
  bool run_layers(const Stage& stage, StepCursor& at, const Run& run);
  bool run_delta(const Stage& stage, StepCursor& at, const Run& run);
  bool run_attention(const Stage& stage, StepCursor& at, const Run& run);
  bool run_outputs(const Stage& stage, const StepCursor& at, const Run& run);
  void run_feed_forward(const Stage& stage, int32_t layer, const Run& run);
  static void feed_forward_block(Ops& ops, Tensor x, Tensor h, const BlockNorm& norm,
                                 const LayerConfig& config, const LayerWeights& w,
                                 const LayerScratch& scratch, const BlockSum& sum,
                                 const Batch& batch);
  // Where a part's block puts its result; between ranks the sums meet in exchange_sums().
  static BlockSum sum_of(const Stage& stage, const Part& part, const Run& run);
  enum class Sum : uint8_t { mixer, feed_forward };  // of a layer, in the order of letters
  void exchange_sums(const Stage& stage, int32_t layer, Sum sum, const Run& run);
  void hand_off(int32_t stage, int32_t rows, int32_t computed, bool interleaved);
  template <typename Work>
  void catching_up(const Work& work);
  void keep_entries(const Lane& lane, const Batch& batch, const SequenceMemory& memory);
  void enter_head(const Lane& lane, const Batch& batch);
  // Rank 0 of the last stage.
  const Part& last() const { return stages_.back().parts[0]; }
  const ModelWeights& ends() const { return shards_.empty() ? weights_ : shards_[0]->weights; }
  MtpWeights& mtp() { return weights_of(0).mtp[0]; }
  void choose_draft_vocabulary(int32_t wanted);
  Status load_draft_vocabulary();
  void show(const Part& part, const Lane& lane, size_t layer, const Batch& batch);

  const GgufFile& file_;
  ModelConfig config_;
  ModelWeights weights_;  // with several ranks only described
  ModelSplit split_;
  std::vector<std::unique_ptr<Shard>> shards_;  // [ranks], if there are several
  StepTap* tap_ = nullptr;                      // may be null
  std::vector<Stage> stages_;                   // once loaded
  Buffer draft_tokens_, draft_tokens_on_host_;  // [config_.draft_vocabulary] i32
};

}  // namespace braid
