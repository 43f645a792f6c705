// pacer.h -- how many prompt tokens a step may carry so that those who are reading do not notice.
//
// While sequences decode, a step that also carries a prompt makes everybody wait for it. The pacer measures
// what steps cost and keeps such a step below `gap_limit` times an undisturbed one. With nobody decoding, or
// with a limit of 0, prompts get the whole budget.
//
//   undisturbed_ms  moving mean over steps without prompts
//   token_ms        moving mean of (step - undisturbed) / prompt tokens; it follows a prompt as it grows
//   longer tokens          (target - undisturbed) / token_ms, with the target a little below the limit, since
//   a
//                   step's time is a guess
// Changes speed only: what a sequence computes does not depend on how it was cut.
#pragma once

#include <cstdint>

namespace braid {

class Pacer {
 public:
  explicit Pacer(double gap_limit) : gap_limit_(gap_limit) {}

  // Prompt tokens for the next step, at most `budget`.
  int32_t prompt_tokens(int32_t decoding, int32_t budget) const;
  // What a step of `decoding` sequences and `prompt` tokens took.
  void observe(int32_t decoding, int32_t prompt, double ms);

  // Measured cost of one prompt token; 0 before the first.
  double token_ms() const { return token_ms_ > 0 ? token_ms_ : alone_token_ms_; }

 private:
  double gap_limit_;
  double undisturbed_ms_ = 0;
  double token_ms_ = 0;        // in steps with decoders
  double alone_token_ms_ = 0;  // in steps without
};

}  // namespace braid
