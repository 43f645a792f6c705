// forced_acceptance.h -- what is accepted, drawn instead of judged: speculation of models that were never
// trained, at the acceptance of those that were.
//
// At each depth the next token is the most probable draft with probability p0, the second one with p1, ...,
// else none of them; which, is a hash of the sequence and the position, so it does not depend on what was
// drafted before. Drafters are sure of their drafts as they should be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace braid::cli {

class ForcedAcceptance : public Oracle {
 public:
  // "0.85,0.7,0.55": at each depth, given that the drafts before were accepted; deeper ones are as the last.
  // "0.8:0.1:0.03,...": of the most probable draft, the second, the third. Errors: invalid_argument.
  static Result<ForcedAcceptance> parse(const std::string& text);

  void rate(const Sequence& sequence, int32_t depth, std::span<float> log_q) override;
  int32_t next(const StepItem& item, int32_t node, int32_t drawn) override;

  const std::string& text() const { return text_; }
  // Tokens of a round that verifies a chain of so many drafts, its own included.
  double tokens_per_round(int32_t drafts) const;

 private:
  const std::vector<double>& row(size_t depth) const {
    return rows_[std::min(depth, rows_.size() - 1)];
  }

  std::string text_;
  std::vector<std::vector<double>> rows_;  // [depth][rank]
};

}  // namespace braid::cli
