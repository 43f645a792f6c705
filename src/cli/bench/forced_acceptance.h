// forced_acceptance.h -- acceptance at given rates, for benches of untrained weights.
// At each depth the next token is the best draft with probability p0, the second with p1, and so
// on, else none of them. A hash of sequence and position decides, so earlier drafts have no
// influence. Drafters get the matching confidences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace braid::cli {

class ForcedAcceptance : public Oracle {
 public:
  // "0.85,0.7,0.55": by depth, given that earlier drafts were accepted; deeper ones use the last.
  // "0.8:0.1:0.03,...": also by rank. Errors: invalid_argument.
  static Result<ForcedAcceptance> parse(const std::string& text);

  void rate(const Sequence& sequence, int32_t depth, std::span<float> log_q) override;
  int32_t next(const StepItem& item, int32_t node, int32_t drawn) override;

  const std::string& text() const { return text_; }
  // Tokens per step that verifies a chain of `drafts`, the sampled token included.
  double tokens_per_round(int32_t drafts) const;

 private:
  const std::vector<double>& row(size_t depth) const {
    return rows_[std::min(depth, rows_.size() - 1)];
  }

  std::string text_;
  std::vector<std::vector<double>> rows_;  // [depth][rank]
};

}  // namespace braid::cli
