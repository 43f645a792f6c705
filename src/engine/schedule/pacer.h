// pacer.h -- bounds the token gaps of decoding sequences while a prompt is computed beside them.
//
// A gap stays below `gap_limit` decoding steps without a prompt. Measured times give the prompt's
// time between two decoding steps (the slice), its chunk size, and the time of parts:
// - step_ms: moving average of decoding steps; without a prompt, for decoding_ sequences.
// - row_ms[part]: moving averages per row; for attention per row and position.
//
// Results do not depend on where a step is paused.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace braid {

class Pacer {
 public:
  explicit Pacer(double gap_limit) : gap_limit_(gap_limit) {}

  bool limits() const { return gap_limit_ > 0; }
  // Sequences of another engine decode on this thread: the slice is theirs to give. -1: none do.
  void set_outer_slice_ms(double ms) { outer_slice_ms_ = ms; }
  bool has_outer_slice() const { return outer_slice_ms_ >= 0; }
  // The share of its slice that this engine uses; the rest is another engine's.
  void set_share(double share) { share_ = share; }
  // The prompt's time between two decoding steps; call it after the first of them.
  double slice_ms() const;
  int32_t chunk_rows(int32_t most) const;
  // Rows of attention from `position` on that take at most `ms`, or the minimum.
  int32_t attention_rows(int32_t position, double ms, int32_t most) const;
  double part_ms(StepPart part, int32_t rows, int32_t position) const;
  // Cost of one prompt token in whole steps; 0: unknown.
  double token_ms() const { return token_ms_; }

  // `decoding` sequences took one token each. `disturbed`: parts of a prompt ran before the step.
  void observe_step(int32_t decoding, double ms, bool disturbed);
  void observe_prompt(int32_t tokens, double ms);
  void observe_part(StepPart part, int32_t rows, int32_t position, double ms);

 private:
  static constexpr int kParts = kStepParts;
  static double weight(StepPart part, int32_t rows, int32_t position);
  double& row_ms(StepPart part) { return row_ms_[static_cast<int>(part)]; }
  double row_ms(StepPart part) const { return row_ms_[static_cast<int>(part)]; }

  double gap_limit_;
  double outer_slice_ms_ = -1;
  double share_ = 1;
  int32_t decoding_ = 0;       // for which the next two hold
  double undisturbed_ms_ = 0;  // 0: unknown for this number
  double disturbed_ms_ = 0;
  double token_ms_ = 0;
  double row_ms_[kParts] = {};
};

}  // namespace braid
