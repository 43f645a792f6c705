// pacer.h -- the inter-token latency of decoding sequences while a prompt is computed beside them.
//
// A prompt's step is interleaved with decoding steps (step/step.h). Nobody shall wait longer for a token than
// `gap_limit` times an undisturbed step: the pacer says how long the prompt may run between two decoding
// steps (the slice), how many tokens a chunk has so that its parts are small against that, and what a part
// will take. It knows what was measured:
//   step_ms        moving mean of decoding steps; the undisturbed ones count while as many decode as then
//   row_ms[part]   moving means per row of a part; attention's, which grows with the context, per row and
//                  position
// Changes speed only: what a sequence computes does not depend on how it was cut.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace braid {

class Pacer {
 public:
  explicit Pacer(double gap_limit) : gap_limit_(gap_limit) {}

  bool limits() const { return gap_limit_ > 0; }
  // Time for a prompt between two decoding steps; call it after the first of them.
  double slice_ms() const;
  // Rows of the next chunk of a prompt, at most `most`.
  int32_t chunk_rows(int32_t most) const;
  // Rows of attention from `position` on, at most `most`, that take `ms` at most, or the fewest sensible.
  int32_t attention_rows(int32_t position, double ms, int32_t most) const;
  double part_ms(StepPart part, int32_t rows, int32_t position) const;
  // Cost of one prompt token in whole steps; 0: not known yet.
  double token_ms() const { return token_ms_; }

  // A step of `decoding` sequences that take one token each. `disturbed`: parts of a prompt ran before it.
  void observe_step(int32_t decoding, double ms, bool disturbed);
  // A step that carried prompts as a whole.
  void observe_prompt(int32_t tokens, double ms);
  void observe_part(StepPart part, int32_t rows, int32_t position, double ms);

 private:
  static constexpr int kParts = kStepParts;
  static double weight(StepPart part, int32_t rows, int32_t position);
  double& row_ms(StepPart part) { return row_ms_[static_cast<int>(part)]; }
  double row_ms(StepPart part) const { return row_ms_[static_cast<int>(part)]; }

  double gap_limit_;
  int32_t decoding_ = 0;       // in the steps that the next two are about
  double undisturbed_ms_ = 0;  // 0: not measured with so many
  double disturbed_ms_ = 0;
  double token_ms_ = 0;
  double row_ms_[kParts] = {};
};

}  // namespace braid
