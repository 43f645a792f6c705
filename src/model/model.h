// model.h -- one loaded model: from a batch of tokens to hidden rows and logits.
//
// open() checks the file; load() brings weights to a device and allocates activations; forward()
// runs a batch; logits() applies the output matrix to rows of the last step. The caller owns the
// memory of sequences. The file must outlive the model. One thread calls it.
//
// With an MTP head, every step also stores the head's keys and values and the hidden rows, from
// which draft() continues. Skipping this (catch_up) makes drafts worse but never changes answers.
//
// An interleaved step runs a prompt a few layers at a time between decoding steps of other
// sequences. It has its own activations and touches nothing that those steps read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/batch.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "ops/state.h"

namespace braid {

// The memory of all sequences, as a step sees it on a rank. Layers of a kind in trunk order.
struct SequenceMemory {
  // [attention layers], then the MTP head's layer, then the layers of a drafter, if present.
  std::span<const KvLayer> kv;
  std::span<const DeltaLayer> delta;  // [delta layers]
  HiddenRing hidden;                  // with an MTP head
};

// For tests and tools. Tensors are valid during the call; the device is synchronized before it.
class Observer {
 public:
  virtual ~Observer() = default;
  // residual [T, E] after the feed-forward of `layer`.
  virtual void layer_output(int32_t layer, Tensor residual, const Batch& batch) {}
  // Before the softmax: q [T, H Dh] after norm and rope; keys and values are stored. `batch` has
  // the table of the layer's group. An observed model stores and attends by two ops.
  virtual void attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) {}
  // ids [T, used] i32 and weights [T, used] chosen by the router, heaviest first.
  virtual void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) {}
};

// Takes a drafter's inputs; its work is queued and recorded with the step's. `interleaved` marks
// the interleaved step, which may be at another layer.
class StepTap {
 public:
  virtual ~StepTap() = default;
  // Runs on the layer's stage.
  virtual void layer_output(int32_t layer, Tensor residual, bool interleaved) = 0;
  // After the last layer of a stage other than the last: its inputs move on. Never recorded.
  virtual void hand_off(int32_t stage, int32_t rows, bool interleaved) {}
  // After the last layer.
  virtual void step_output(const Batch& batch, const SequenceMemory& memory, bool interleaved) = 0;
};

struct StepSizes {
  int32_t tokens = 0;
  int32_t outputs = 0;
  int32_t interleaved_tokens = 0;  // of an interleaved step; 0: there will be none
  int32_t slots = 1;               // whole steps whose outputs are kept
};

// The parts of a step; it may pause before each.
enum class StepPart : uint8_t {
  embedding,
  delta_layer,
  attention_in,
  attention_rows,
  attention_out,
  outputs
};
inline constexpr int kStepParts = 6;

struct StepCursor {
  int32_t stage = 0;
  int32_t layer = -1;                           // -1: before the embedding
  int32_t kv = 0;                               // attention layers before `layer`
  int32_t delta = 0;                            // delta layers before it
  StepPart attention = StepPart::attention_in;  // next part of an attention layer
  bool catches_up = true;                       // as when the step began
  bool has_ropes = false;                       // the stage has its tables of angles
  int32_t row = 0;  // before attention_rows: the first row not attended yet
};

// Decides about each part of a step. This base class never pauses.
class StepPacing {
 public:
  virtual ~StepPacing() = default;
  // Whether attention over the cells is a part of its own, of some rows at a time.
  virtual bool splits_attention() const { return false; }
  // False: the step pauses here.
  virtual bool may_run(StepPart part) { return true; }
  // A batch of rows from first_row on; no tokens: the step pauses here.
  virtual Batch attention_rows(int32_t first_row) { return {}; }
  // The last allowed part has been queued on the device.
  virtual void queued() {}
};

struct ModelOptions {
  bool with_mtp = true;  // describe and load the MTP head if the file has one
  static constexpr int32_t kDraftTokensByModel =
      -1;                        // some of a large vocabulary, all of a small one
  int32_t draft_vocabulary = 0;  // tokens that the head drafts from; 0: all
  int32_t attention_window = 0;  // > 0: limit of all windows (ModelConfig::limit_windows)
};

// How a model is spread over devices (ops/devices.h).
struct ModelSplit {
  std::vector<int32_t> first_layers = {0};  // of each stage
  int32_t ranks = 1;                        // of each stage
  std::vector<double> rank_ratio;           // ShardMap::make(); empty: even
  bool drafts_embed = false;                // ModelWeights::split()
  // Ranks exchange rows as f32. Else rows of large steps travel as f16.
  bool exact_sums = true;
};

// A row of the draft matrix, and its token.
struct DraftRow {
  int32_t row;
  int32_t token;
};

class Model {
 public:
  // Errors: unsupported (unknown architecture or variant), corrupt.
  static Result<std::unique_ptr<Model>> open(const GgufFile& file,
                                             const ModelOptions& options = {});
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;  // of the whole model
  ModelWeights& weights() { return weights_of(0); }

  // Before load(); may be called again. Errors: those of ShardMap::make().
  virtual Status split(const ModelSplit& split) = 0;
  virtual int32_t ranks() const = 0;
  // The layers as a rank has them: heads and widths are its own. Rank 0 also has what is before and
  // after the trunk: output matrix, MTP heads and a drafter's layers.
  virtual const ModelConfig& config_of(int32_t rank) const = 0;
  virtual ModelWeights& weights_of(int32_t rank) = 0;

  // Bytes of activations of a rank in a stage, on a device with that activation type.
  virtual size_t activation_bytes(int32_t stage, int32_t rank, const StepSizes& sizes,
                                  DType activations = DType::f32) const = 0;
  // Needs of the device's workspaces, without those of sequences and context.
  virtual Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const = 0;
  // Multiplications and additions of one token without attention scores, head included.
  virtual int64_t flops_per_token() const = 0;

  // Of a rank's mailboxes: at most, before loading, and as taken.
  virtual size_t exchange_bytes(const StepSizes& sizes) const = 0;
  virtual size_t taken_exchange_bytes(int32_t stage, int32_t rank) const = 0;

  // Once. Devices stage by stage, as in Devices. Errors: exhausted, unsupported.
  virtual Status load(std::span<Device* const> devices, const StepSizes& sizes,
                      const ModelWeights::Progress& progress = nullptr) = 0;
  Status load(Device& device, const StepSizes& sizes) {
    Device* const one[] = {&device};
    return load(one, sizes);
  }
  // Batch::turn of the next step.
  virtual int32_t next_turn() = 0;
  // A device has failed: ranks that wait for its rows wait no longer.
  virtual void stop() = 0;

  // Runs all layers over the batch and keeps the normed hidden rows of batch.output_row in a slot
  // (StepSizes). `memory`: of each rank.
  void forward(const Batch& batch, std::span<const SequenceMemory> memory) {
    for (int32_t stage = 0; stage < config().stages; ++stage) {
      forward_stage(stage, batch, memory);
      hand_off(stage, batch.tokens, batch.tokens);
    }
  }
  // For one rank.
  void forward(const Batch& batch, const SequenceMemory& memory) {
    forward(batch, std::span(&memory, 1));
  }
  // The same in parts, in this order for each stage. A hand-off, to the next stage, cannot be
  // recorded.
  virtual void forward_stage(int32_t stage, const Batch& batch,
                             std::span<const SequenceMemory> memory, int32_t slot = 0) = 0;
  // `computed`: of the rows, those before the padding (Batch); the stage may have run without it.
  virtual void hand_off(int32_t stage, int32_t rows, int32_t computed) = 0;

  // Runs one sequence's certain rows from `at` on, with pauses for other sequences' steps. True: it
  // has ended, with the results of forward().
  virtual bool forward_interleaved(StepCursor& at, const Batch& batch,
                                   std::span<const SequenceMemory> memory, StepPacing& pacing) = 0;

  // Slot of the last interleaved step.
  static constexpr int32_t kInterleavedSlot = -1;
  // logits [count, V] of output rows first .. first + count of a slot's last step.
  virtual void logits(Tensor logits, int32_t first, int32_t count, int32_t slot = 0) = 0;

  // With an MTP head: one row per sequence, a token that no step has run, marked as certain. Writes
  // logits [tokens, draft_columns()] of the next token. `first`: the row directly follows the
  // sequence's cells; else it follows the same row of the previous draft(), which had at least as
  // many rows. The next step overwrites these cells.
  virtual void draft(Tensor logits, const Batch& batch, const SequenceMemory& memory,
                     bool first) = 0;
  int64_t draft_columns() const {
    return config().draft_vocabulary > 0 ? config().draft_vocabulary : config().vocabulary;
  }
  // Token of each column, [draft_columns()] on the device, initially the first ones; null:
  // identity.
  virtual const int32_t* draft_token_of() const = 0;
  // Changes tokens of rows for later work. The copy of the previous call must have finished.
  virtual void change_draft_rows(std::span<const DraftRow> changes) = 0;

  // Normed hidden rows of a slot's last step: the first Batch::outputs rows.
  virtual Tensor output_hidden(int32_t slot = 0) const = 0;

  // A drafter with KV layers after the trunk's. It must outlive the steps. Call before config() is
  // used for sizes.
  virtual void attach(StepTap& tap, std::vector<AttentionConfig> layers) = 0;
  // Whether later steps store inputs for an MTP head or drafter. Not where steps are recorded.
  void catch_up(bool wanted) { catches_up_ = wanted; }
  // Time of that since the last call; 0 for asynchronous devices.
  double take_catch_up_ms() { return std::exchange(catch_up_ms_, 0.0); }

  // May be null.
  void observe(Observer* observer) { observer_ = observer; }
  bool observed() const { return observer_ != nullptr; }

 protected:
  Observer* observer_ = nullptr;
  bool catches_up_ = true;
  double catch_up_ms_ = 0;
};

std::vector<std::string> known_architectures();

}  // namespace braid
