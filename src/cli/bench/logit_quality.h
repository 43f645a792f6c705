// logit_quality.h -- how much the next-token distributions of two runs differ, row by row.
//   LogitQuality quality;
//   for (...) quality.add(logits, changed);   rows of the same position
//   quality.summary()
// The divergence is Kullback-Leibler, from softmax(logits) to softmax(changed), in nats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

struct LogitSummary {
  int64_t rows = 0;
  double mean = 0, median = 0, p99 = 0, most = 0;  // of the divergence
  // Share of rows whose best token changes, of all and of those with a margin above kClearMargin.
  double flips = 0, clear_flips = 0;
};

class LogitQuality {
 public:
  static constexpr double kClearMargin = 0.1;

  // [vocabulary] each, finite.
  void add(std::span<const float> logits, std::span<const float> changed);
  LogitSummary summary() const;

 private:
  std::vector<double> divergences_;
  int64_t flips_ = 0, clear_ = 0, clear_flips_ = 0;
};

}  // namespace braid
