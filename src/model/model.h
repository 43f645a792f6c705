// model.h -- one loaded model: from a batch of tokens to hidden rows and logits.
//
// Life: open() reads and checks the file, nothing is loaded; load() brings the weights to a device and takes
// the memory of the activations; forward() runs every layer over a batch; logits() multiplies rows that
// forward() left with the output matrix. Sequences' memory (KV blocks, state slots) belongs to the caller.
//
// A model is a straight line of blocks (layers.h) over Ops: no graph, no callbacks except the Observer, which
// tests and tools use to look inside. One thread calls it. The file must outlive the model.
//
// A step can also be run in pieces, so that other steps run in between: a prompt's layers between the
// decoding steps of those who are reading. It has activations of its own and touches nothing that other steps
// of other sequences see.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  std::span<const KvLayer> kv;        // [attention layers]
  std::span<const DeltaLayer> delta;  // [delta layers]
  std::span<DeltaJournal> journals;   // [delta layers]; may be empty if no batch has uncertain rows
};

// Looks at a step from inside. The device is synchronized before each call; tensors are valid during the
// call.
class Observer {
 public:
  virtual ~Observer() = default;
  // residual [T, E] after the feed-forward of `layer`.
  virtual void layer_output(int32_t layer, Tensor residual, const Batch& batch) {}
  // ids [T, used] i32 and weights [T, used] chosen by the router of `layer`, heaviest first.
  virtual void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) {}
};

// The largest steps that will be run.
struct StepSizes {
  int32_t tokens = 0;
  int32_t outputs = 0;
  int32_t pieced_tokens = 0;  // of a step that is run in pieces; 0: none will be
};

// Where a step that is run in pieces stands.
struct StepCursor {
  enum class Piece : uint8_t { begin, delta_layer, attention_in, attention_rows, attention_out, end };
  Piece next = Piece::begin;
  int32_t layer = 0;
  int32_t kv = 0;     // attention layers before `layer`
  int32_t delta = 0;  // delta layers before it
  int32_t row = 0;    // before attention_rows: the first row that has not been attended yet
  bool done = false;
};

struct ModelOptions {
  bool with_mtp = true;  // describe and load the MTP head if the file has one
};

class Model {
 public:
  // Errors: unsupported (unknown architecture or a variant of a known one), corrupt.
  static Result<std::unique_ptr<Model>> open(const GgufFile& file, const ModelOptions& options = {});
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  ModelWeights& weights() { return weights_; }

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
  // `has_uncertain`: the batch has uncertain rows somewhere (known to the host, as it shapes the launch).
  virtual void forward(const Batch& batch, const SequenceMemory& memory, bool has_uncertain) = 0;

  // Runs the piece at `at` of a step whose batch is one sequence's certain rows, and moves on; the last one
  // leaves what forward() leaves. `part` is read before attention_rows only: the batch as if it were the rows
  // [at.row, at.row + part.tokens) of it and the rest did not exist.
  virtual void forward_piece(StepCursor& at, const Batch& batch, const Batch& part,
                             const SequenceMemory& memory) = 0;

  // logits [count, V] of output rows first .. first + count of the step that ended last.
  virtual void logits(Tensor logits, int32_t first, int32_t count) = 0;

  // Normed hidden rows [outputs, E] of the step that ended last.
  virtual Tensor output_hidden() const = 0;

  // Null: nobody looks.
  void observe(Observer* observer) { observer_ = observer; }
  bool observed() const { return observer_ != nullptr; }

 protected:
  ModelConfig config_;
  ModelWeights weights_;
  Observer* observer_ = nullptr;
};

// Architecture names that open() knows.
std::vector<std::string> known_architectures();

}  // namespace braid
