// pacer.h -- how long a prompt may have the device while others are reading, and how much of it fits.
//
// While sequences decode, a prompt is computed in pieces of layers between their steps (engine.h), so that
// nobody waits longer for a token than `gap_limit` undisturbed steps: the pacer says how long the pieces
// between two steps may take together (slice), how many tokens a chunk has so that its pieces are small
// against that, and what a piece will take. It knows what was measured:
//   step_ms        moving mean of decoding steps; the undisturbed ones count while as many decode as then
//   row_ms[kind]   moving means per row of a piece; attention's, which grows with the context, per row and
//                  position
// Changes speed only: what a sequence computes does not depend on how it was cut.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace braid {

class Pacer {
 public:
  using Piece = StepCursor::Piece;
  explicit Pacer(double gap_limit) : gap_limit_(gap_limit) {}

  bool limits() const { return gap_limit_ > 0; }
  // Time for pieces between two steps of `decoding` sequences; call it after the first of them.
  double slice_ms() const;
  // Rows of the next chunk of a prompt, at most `most`.
  int32_t chunk_rows(int32_t most) const;
  // Rows of attention from `position` on, at most `most`, that take `ms` at most, or the fewest sensible.
  int32_t attention_rows(int32_t position, double ms, int32_t most) const;
  double piece_ms(Piece kind, int32_t rows, int32_t position) const;
  // Cost of one prompt token in whole steps; 0: not known yet.
  double token_ms() const { return token_ms_; }

  // A step of `decoding` sequences that take one token each. `disturbed`: pieces of a prompt ran before it.
  void observe_step(int32_t decoding, double ms, bool disturbed);
  // A step that carried prompts as a whole.
  void observe_prompt(int32_t tokens, double ms);
  void observe_piece(Piece kind, int32_t rows, int32_t position, double ms);

 private:
  static constexpr int kKinds = 6;
  static double weight(Piece kind, int32_t rows, int32_t position);
  double& row_ms(Piece kind) { return row_ms_[static_cast<int>(kind)]; }
  double row_ms(Piece kind) const { return row_ms_[static_cast<int>(kind)]; }

  double gap_limit_;
  int32_t decoding_ = 0;       // in the steps that the next two are about
  double undisturbed_ms_ = 0;  // 0: not measured with so many
  double disturbed_ms_ = 0;
  double token_ms_ = 0;
  double row_ms_[kKinds] = {};
};

}  // namespace braid
