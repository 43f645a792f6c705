// dflash.h -- the DFlash drafter of one loaded model: context from the trunk's steps, blocks of drafts.
//
// Context: features of a row are what the trunk's tapped layers leave in its residual, side by side; c =
// rms(fc * features) goes into the key and value products of every drafter layer, without the layer's norm.
// So keys and values of a token depend on its prefix alone. They are written for every row of every step, at
// the row's cell, in KV layers that stand behind the trunk's (SequenceMemory): what moves, copies or drops
// cells of the trunk does the same to them.
//
// Draft block: rows [x, mask, mask, ...] at the positions after the context, x the newest token, which has no
// features yet. They see the context and each other (ops/batch.h); row j's logits are about the token at its
// own position, or about the one behind it where the first row predicts, too (DflashConfig::from_anchor).
// Their keys and values go to cells that the next step writes again.
//
// Guesses: the best tokens of the rows that predict, and where the drafter has an opinion on it, which of
// them follows which. A head of its own may know fewer tokens: token() says which its numbers are.
//
// Life: open() reads and checks the file against its target, which it is then attached to (Model::attach);
// load() comes after the target's. One thread calls it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/dflash/dflash_config.h"
#include "model/dflash/dflash_file.h"
#include "model/dflash/dflash_weights.h"
#include "model/layers/layers.h"
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
  // Of all layers, for memory: cells behind windows are kept, too.
  std::vector<AttentionConfig> kv_layers() const;

  // What it will be asked for at most.
  struct Sizes {
    StepSizes step;          // of the trunk's steps
    int32_t block_rows = 0;  // of all blocks together
  };
  size_t activation_bytes(const Sizes& sizes, DType activations) const;
  // Makes the workspaces large enough for it, too.
  void add_needs(Device::WorkspaceNeeds& needs, const Sizes& sizes) const;
  // Once. `target` lends its embedding and output matrix. Errors: exhausted, unsupported.
  Status load(Device& device, const ModelWeights& target, const Sizes& sizes);

  void layer_output(int32_t layer, Tensor residual, bool interleaved) override;
  void step_output(const Batch& batch, const SequenceMemory& memory, bool interleaved) override;

  // Runs draft blocks of config().block rows, all certain, one for each sequence of the batch. last_position
  // [T]: of the last row of the row's block. Keeps the normed hidden rows of batch.output_row.
  void forward(const Batch& blocks, const int32_t* last_position, const SequenceMemory& memory);
  // logits [count, V] of output rows first .. first + count of the blocks that ran last.
  void logits(Tensor logits, int32_t first, int32_t count);

  // What logits have columns of.
  int64_t head_tokens() const { return head_->n; }
  int32_t token(int32_t id) const {
    const std::vector<int32_t>& token_of = weights_.token_of();
    return token_of.empty() ? id : token_of[static_cast<size_t>(id)];
  }
  // All [outputs, ...] of the blocks that ran last; K = ids.cols.
  struct Guesses {
    Tensor ids;         // [outputs, K] i32, the likeliest first
    Tensor values;      // [outputs, K]: their logits
    Tensor log_sums;    // [outputs, 1]: log of the sum of exp over all logits
    Tensor scores;      // [outputs, K * K] as pair_scores() says; empty unless has_pairs()
    Tensor confidence;  // [outputs, K], of predecessors; empty unless has_confidence()
  };
  bool has_pairs() const { return config_.pairs != DflashPairs::none; }
  bool has_confidence() const { return bool{weights_.hidden_confidence}; }
  // From logits() of all of them.
  void guess(const Guesses& guesses, Tensor logits, const Batch& blocks);
  // That a row's draft is accepted if those before it are, from what guess() leaves.
  float acceptance(float confidence) const;

 private:
  // Between a step's layers and the cells; one for whole steps, one for interleaved ones.
  struct ContextLane {
    Tensor features;  // [T, taps E]
    Tensor fused;     // [T, E] f32
    Tensor normed;    // [T, E]
    Tensor rope;      // [T, rope dims]
    Tensor k, v;      // [T, Hkv Dh]
  };
  struct BlockScratch {
    Tensor residual, normed, rope;
    AttentionScratch attention;
    MlpScratch mlp;
    Tensor mixed;             // [T, E]: a sublayer's input, after the convolution
    Tensor given;             // [T, E] f32: what it gives, before the other
    Tensor mix;               // [T, 2 taps E / group] f32
    Tensor gathered, hidden;  // [outputs, E]
    Tensor gate;              // [outputs, rank] f32
    Tensor confidence;        // [outputs, 1] f32
  };
  size_t place(ContextLane& lane, std::byte* base, int32_t tokens, DType activations) const;
  size_t place(BlockScratch& scratch, std::byte* base, int32_t rows, DType activations) const;
  void run_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position, const KvLayer& kv);
  void run_mixed_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position,
                       const KvLayer& kv);
  void attend(const DflashLayer& layer, const KvLayer& kv, const Batch& batch, const int32_t* last_position);
  // Its part of a sequence's memory.
  std::span<const KvLayer> own(const SequenceMemory& memory) const;

  DflashFile file_;
  DflashConfig config_;
  DflashWeights weights_;
  const Weight* embedding_ = nullptr;  // its own or the target's
  const Weight* head_ = nullptr;
  Ops* ops_ = nullptr;
  Buffer activations_;
  ContextLane whole_;
  ContextLane interleaved_;
  BlockScratch block_;
  int32_t outputs_ = 0;  // of the blocks that ran last
};

}  // namespace braid
