// logit_quality.h -- how far the next-token distributions of one run are from those of another, row by row.
//
//   LogitQuality quality;
//   for (...) quality.add(logits, changed);   rows of the same position
//   quality.summary()
//
// Divergence: the Kullback-Leibler divergence of softmax(logits) from softmax(changed), in nats, sums in
// double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

struct LogitSummary {
  int64_t rows = 0;
  double mean = 0, median = 0, p99 = 0, most = 0;  // of the divergence
  // Share of the rows whose likeliest token is another one; and of those whose two likeliest were apart by
  // more than kClearMargin of a nat.
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
