// tail_scorer.h -- how much attention the last tokens of a prompt pay to each token before them.
//
// A small model reads the prompt. In each attention layer without a window, the last `rows` tokens
// are queries to all positions. The score of a position is the mean over these tokens of the
// largest probability over layers and heads (Ops::tail_scores). It says which parts of a prompt a
// question at its end asks for.
//
// Use: engine.observe(&scorer), and for each prompt begin(), a request of its tokens without the
// prefix cache, then scores(). Nothing else may run on the engine meanwhile. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace braid {

struct TailScoreOptions {
  int32_t rows = 8;  // 1 to kMostTailRows
  // Whether positions count. Rotation makes far keys weaker, so without angles early facts are
  // found as well as late ones.
  bool angles = false;
  int32_t last_layers = 0;  // the last attention layers alone; 0: all
};

class TailScorer final : public Observer {
 public:
  // Takes device memory for prompts of the engine's context. The engine must outlive the scorer.
  // Errors: unsupported (several devices, no attention layer that sees all positions), exhausted,
  // invalid_argument (options).
  static Result<std::unique_ptr<TailScorer>> create(Engine& engine,
                                                    const TailScoreOptions& options);

  // At most the engine's context; at least 1.
  void begin(int32_t prompt_tokens);
  // [prompt_tokens], after the request has ended. NaN where the model is damaged. Error: io.
  Result<std::vector<float>> scores();

  void attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) override;

 private:
  TailScorer(Engine& engine, const TailScoreOptions& options)
      : engine_(engine), options_(options) {}
  Status allocate();

  Engine& engine_;
  TailScoreOptions options_;
  int32_t positions_ = 0;     // that fit
  int32_t first_layer_ = -1;  // attention layer
  int32_t scored_from_ = 0;   // first scored layer
  Buffer scores_memory_;
  std::vector<Buffer> rope_memory_;  // [ropes]; empty with angles
  Tensor scores_;                    // [rows, positions_]
  std::vector<Tensor> ropes_;        // [positions_, dims]
  int32_t prompt_ = 0;
  int32_t at_ = 0;    // first position of the step
  int32_t next_ = 0;  // of the next step
};

}  // namespace braid
