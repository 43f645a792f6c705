// model.h -- one loaded model: from a batch of tokens to hidden rows and logits.
//
// Life: open() reads and checks the file, nothing is loaded; load() brings the weights to a device and takes
// the memory of the activations; forward() runs every layer over a batch; logits() multiplies rows that
// forward() left with the output matrix. Sequences' memory (KV blocks, state slots) belongs to the caller.
//
// A model is a straight line of blocks (layers.h) over Ops: no graph, no callbacks except the Observer, which
// tests and tools use to look inside. One thread calls it. The file must outlive the model.
//
// A head that drafts (MTP) is loaded with the model where ModelOptions say so and the file has one. Every
// step then also writes, for all of its rows, the keys and values that the head would have of them, and their
// hidden rows to the ring: what draft() goes on from is memory of the sequence like any other. That may be
// left out for a while: what is missing then makes worse drafts, and never another answer.
//
// A step can also be interleaved with others: a prompt's layers run some at a time, between the decoding
// steps of other sequences. It has activations of its own and touches nothing that other sequences' steps
// see.
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

// The bytes of all sequences, as a step sees them. Layers of a kind in trunk order.
struct SequenceMemory {
  // [attention layers], then that of the head that drafts, then those of a drafter, where there are such.
  std::span<const KvLayer> kv;
  std::span<const DeltaLayer> delta;  // [delta layers]
  HiddenRing hidden;                  // with a head that drafts
};

// Looks at a step from inside. The device is synchronized before each call; tensors are valid during the
// call.
class Observer {
 public:
  virtual ~Observer() = default;
  // residual [T, E] after the feed-forward of `layer`.
  virtual void layer_output(int32_t layer, Tensor residual, const Batch& batch) {}
  // Before the softmax of an attention layer: q [T, H Dh] as they meet the keys, which are in the rows' cells
  // with the values. `batch` has the table of the layer's group. What is observed stores and attends by two
  // ops, also where a device has one for both.
  virtual void attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) {}
  // ids [T, used] i32 and weights [T, used] chosen by the router of `layer`, heaviest first.
  virtual void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) {}
};

// Takes what a drafter needs of a step out of its layers. Its work is queued with the step's, and recorded
// with it. `interleaved`: of the step that is interleaved with others, which need not be at the same layer.
class StepTap {
 public:
  virtual ~StepTap() = default;
  // residual [T, E] after the feed-forward of `layer`.
  virtual void layer_output(int32_t layer, Tensor residual, bool interleaved) = 0;
  // After the last layer.
  virtual void step_output(const Batch& batch, const SequenceMemory& memory, bool interleaved) = 0;
};

// The largest steps that will be run.
struct StepSizes {
  int32_t tokens = 0;
  int32_t outputs = 0;
  int32_t interleaved_tokens = 0;  // of a step that is interleaved with others; 0: none will be
};

// What a step does one after the other, and before each of which it may be paused.
enum class StepPart : uint8_t {
  embedding,
  delta_layer,
  attention_in,
  attention_rows,
  attention_out,
  outputs
};
inline constexpr int kStepParts = 6;

// Where a paused step goes on.
struct StepCursor {
  int32_t layer = -1;                           // -1: before the embedding
  int32_t kv = 0;                               // attention layers before `layer`
  int32_t delta = 0;                            // delta layers before it
  StepPart attention = StepPart::attention_in;  // in an attention layer: its next part
  bool catches_up = true;                       // as it was when the step began
  int32_t row = 0;                              // before attention_rows: the first row not attended yet
};

// Asked by a step before each of its parts. This one never pauses.
class StepPacing {
 public:
  virtual ~StepPacing() = default;
  // Whether attention over the cells is a part of its own, of some rows at a time.
  virtual bool splits_attention() const { return false; }
  // False: the step pauses here.
  virtual bool may_run(StepPart part) { return true; }
  // Rows from first_row on as if they were the whole batch; no tokens: the step pauses here.
  virtual Batch attention_rows(int32_t first_row) { return {}; }
  // The part that was allowed last is queued on the device.
  virtual void queued() {}
};

struct ModelOptions {
  bool with_mtp = true;  // describe and load the head that drafts if the file has one
  static constexpr int32_t kDraftTokensByModel = -1;  // some of a large vocabulary, all of a small one
  int32_t draft_vocabulary = 0;                       // tokens among which the head guesses; 0: all
  int32_t attention_window = 0;  // > 0: no attention layer sees more positions (ModelConfig::limit_windows)
};

// A row of the matrix that guesses are made with, and its token.
struct DraftRow {
  int32_t row;
  int32_t token;
};

class Model {
 public:
  // Errors: unsupported (unknown architecture or a variant of a known one), corrupt.
  static Result<std::unique_ptr<Model>> open(const GgufFile& file, const ModelOptions& options = {});
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual ModelWeights& weights() = 0;

  // Bytes of activations on a device with that activation type.
  virtual size_t activation_bytes(const StepSizes& sizes, DType activations = DType::f32) const = 0;
  // What the device's workspaces must fit, apart from sequences and context.
  virtual Device::WorkspaceNeeds workspace_needs(int32_t max_tokens) const = 0;
  // Multiplications and additions of one token without attention scores, head included.
  virtual int64_t flops_per_token() const = 0;

  // Once. Errors: exhausted, unsupported.
  virtual Status load(Device& device, const StepSizes& sizes,
                      const ModelWeights::Progress& progress = nullptr) = 0;

  // Runs all layers over the batch and keeps the normed hidden rows of batch.output_row.
  virtual void forward(const Batch& batch, const SequenceMemory& memory) = 0;

  // The same for a step of one sequence's certain rows that may be paused, from `at` on; other sequences'
  // steps may run in between. True: it has ended and left what forward() leaves.
  virtual bool forward_interleaved(StepCursor& at, const Batch& batch, const SequenceMemory& memory,
                                   StepPacing& pacing) = 0;

  // logits [count, V] of output rows first .. first + count of the step that ended last.
  virtual void logits(Tensor logits, int32_t first, int32_t count) = 0;

  // With a head that drafts: a row for each sequence, a token that no step has run and that is certain as far
  // as the head knows. logits of what follows it: [tokens, draft_columns()], of the tokens of draft_token_of().
  // `first`: the row comes right after what the sequence holds. Else it follows the same row of the draft()
  // before, which had as many rows or more. What it writes to cells, the next step writes again.
  virtual void draft(Tensor logits, const Batch& batch, const SequenceMemory& memory, bool first) = 0;
  int64_t draft_columns() const {
    return config().draft_vocabulary > 0 ? config().draft_vocabulary : config().vocabulary;
  }
  // With a draft vocabulary: [draft_columns()] on the device; else null, a column is its token. At first the
  // first tokens.
  virtual const int32_t* draft_token_of() const = 0;
  // Rows get other tokens, for what is queued from now on. Not while a copy of the last call may be under way.
  virtual void change_draft_rows(std::span<const DraftRow> changes) = 0;

  // Normed hidden rows [outputs, E] of the step that ended last.
  virtual Tensor output_hidden() const = 0;

  // A drafter with a file of its own, whose layers keep K and V behind the trunk's. Before anything is sized
  // by config(). It must outlive the steps.
  virtual void attach(StepTap& tap, std::vector<AttentionConfig> layers) = 0;
  // Whether steps that begin from now on catch up for a head or an attached drafter. Not where steps are
  // recorded.
  void catch_up(bool wanted) { catches_up_ = wanted; }
  // How long that took since the last call; 0 where the device works by itself.
  double take_catch_up_ms() { return std::exchange(catch_up_ms_, 0.0); }

  // Null: nobody looks.
  void observe(Observer* observer) { observer_ = observer; }
  bool observed() const { return observer_ != nullptr; }

 protected:
  Observer* observer_ = nullptr;
  bool catches_up_ = true;
  double catch_up_ms_ = 0;
};

// Architecture names that open() knows.
std::vector<std::string> known_architectures();

}  // namespace braid
