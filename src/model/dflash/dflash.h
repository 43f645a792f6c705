// dflash.h -- the DFlash drafter of one loaded model: context from the trunk's steps, draft blocks.
//
// - Context: c = rms(fc * features), where features are the residuals after the trunk's tapped
//   layers, concatenated. c goes into the K and V products of every drafter layer, without its
//   norm, so K and V depend only on the token's prefix. Each step writes them at the row's cell, in
//   KV layers after the trunk's (SequenceMemory), so they move with the trunk's cells.
// - Draft block: rows [x, mask, mask, ...] after the context; x is the newest token, still without
//   features. Rows see the context and each other. Row j predicts the token at its own position, or
//   the next one with DflashConfig::from_anchor. The next step overwrites their K and V.
// - Guesses: the best tokens of the predicting rows, and pair scores if the drafter has them. A
//   separate head may have fewer tokens; token() converts its numbers.
//
// Order: open(), Model::attach, load() after the target's. One thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/dflash/dflash_config.h"
#include "model/dflash/dflash_file.h"
#include "model/dflash/dflash_weights.h"
#include "model/layers.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

class Dflash final : public StepTap {
 public:
  // Errors: those of DflashFile::open(); invalid_argument (it belongs to another model).
  static Result<std::unique_ptr<Dflash>> open(const std::string& path, const ModelConfig& target);
  static Result<std::unique_ptr<Dflash>> open(DflashFile file, const ModelConfig& target);
  explicit Dflash(DflashFile file) : file_(std::move(file)) {}

  const DflashConfig& config() const { return config_; }
  DflashWeights& weights() { return weights_; }
  // All layers, for the memory plan. Cells outside of windows are kept too.
  std::vector<AttentionConfig> kv_layers() const;

  struct Sizes {
    StepSizes step;          // of the trunk's steps
    int32_t block_rows = 0;  // of all blocks together
  };
  // On the device of a stage of `target`: the last has all but the inputs from earlier stages.
  size_t activation_bytes(int32_t stage, const ModelConfig& target, const Sizes& sizes,
                          DType activations) const;
  void add_needs(Device::WorkspaceNeeds& needs, const Sizes& sizes) const;
  // Whether it has no token table of its own.
  bool borrows_embedding() const { return !weights_.own_embedding; }
  // Once, to the last of the target's stages. Borrows the embedding and output matrix of `target`.
  // Errors: exhausted, unsupported.
  Status load(std::span<Device* const> stages, const ModelConfig& target,
              const ModelWeights& weights, const Sizes& sizes);

  void layer_output(int32_t layer, Tensor residual, bool interleaved) override;
  void hand_off(int32_t stage, int32_t rows, bool interleaved) override;
  void step_output(const Batch& batch, const SequenceMemory& memory, bool interleaved) override;

  // Runs a draft block of config().block certain rows per sequence. last_position [T]: position of
  // the last row of the block. Keeps the normed hidden rows of batch.output_row.
  void forward(const Batch& blocks, const int32_t* last_position, const SequenceMemory& memory);
  // logits [count, V] of output rows first .. first + count of the last blocks.
  void logits(Tensor logits, int32_t first, int32_t count);

  int64_t head_tokens() const { return head_->n; }
  int32_t token(int32_t id) const {
    const std::vector<int32_t>& token_of = weights_.token_of();
    return token_of.empty() ? id : token_of[static_cast<size_t>(id)];
  }
  // [outputs, ...] of the last blocks; K = ids.cols.
  struct Guesses {
    Tensor ids;         // [outputs, K] i32, the likeliest first
    Tensor values;      // [outputs, K]: logits of ids
    Tensor log_sums;    // [outputs, 1]: log of the sum of exp over all logits
    Tensor scores;      // [outputs, K * K] of pair_scores(); empty unless has_pairs()
    Tensor confidence;  // [outputs, K], of predecessors; empty unless has_confidence()
  };
  bool has_pairs() const { return config_.pairs != DflashPairs::none; }
  bool has_confidence() const { return bool{weights_.hidden_confidence}; }
  // `logits` must be those of all output rows.
  void guess(const Guesses& guesses, Tensor logits, const Batch& blocks);
  // Probability that a row's draft is accepted if those before it are, from the results of guess().
  float acceptance(float confidence) const;

 private:
  // Between the layers and the cells; one for whole steps, one for interleaved ones.
  struct ContextLane {
    Tensor features;  // [T, taps E]
    Tensor arrived;   // [T, E] f32: a residual of another stage
    Tensor fused;     // [T, E] f32
    Tensor normed;    // [T, E]
    Tensor rope;      // [T, rope dims]
    Tensor k, v;      // [T, Hkv Dh]
  };
  struct BlockScratch {
    Tensor residual, normed, rope;
    AttentionScratch attention;
    MlpScratch mlp;
    Tensor mixed;             // [T, E]: convolved input of a sublayer
    Tensor given;             // [T, E] f32: output of a sublayer before its convolution
    Tensor mix;               // [T, 2 taps E / group] f32
    Tensor gathered, hidden;  // [outputs, E]
    Tensor gate;              // [outputs, rank] f32
    Tensor confidence;        // [outputs, 1] f32
  };
  // A tap of an earlier stage: the residuals that wait for the hand-off.
  struct EarlyTap {
    size_t tap = 0;
    int32_t stage = 0;
    Device* device = nullptr;
    Tensor whole, interleaved;  // [T, E] f32
    Tensor& rows(bool is_interleaved) { return is_interleaved ? interleaved : whole; }
  };
  int32_t stage_of_tap(size_t tap, const ModelConfig& target) const;
  bool has_early_taps(const ModelConfig& target) const;
  Status make_early_taps(std::span<Device* const> stages, const ModelConfig& target,
                         const StepSizes& sizes);
  void take(const ContextLane& lane, size_t tap, Tensor residual);
  size_t place(ContextLane& lane, std::byte* base, int32_t tokens, DType activations,
               bool has_early_taps) const;
  size_t place(BlockScratch& scratch, std::byte* base, int32_t rows, DType activations) const;
  void run_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position,
                 const KvLayer& kv);
  void run_mixed_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position,
                       const KvLayer& kv);
  void attend(const DflashLayer& layer, const KvLayer& kv, const Batch& batch,
              const int32_t* last_position);
  std::span<const KvLayer> own(const SequenceMemory& memory) const;

  DflashFile file_;
  DflashConfig config_;
  DflashWeights weights_;
  const Weight* embedding_ = nullptr;  // its own or the target's
  const Weight* head_ = nullptr;
  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  Buffer activations_;
  std::vector<Buffer> early_memory_;
  std::vector<EarlyTap> early_taps_;
  ContextLane whole_;
  ContextLane interleaved_;
  BlockScratch block_;
  int32_t outputs_ = 0;  // of the last blocks
};

}  // namespace braid
