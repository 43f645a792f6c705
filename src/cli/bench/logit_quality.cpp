// logit_quality.cpp -- see logit_quality.h.
#include "cli/bench/logit_quality.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace braid {

namespace {

struct Row {
  double log_sum = 0;  // log of the sum of exp(logit)
  size_t best = 0;
  double margin = 0;  // best minus second-best logit
};

Row look_at(std::span<const float> logits) {
  Row row;
  row.best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const double top = logits[row.best];
  double sum = 0, second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(logits[i] - top);
    if (i != row.best) second = std::max(second, double{logits[i]});
  }
  row.log_sum = top + std::log(sum);
  row.margin = top - second;
  return row;
}

// Nearest rank.
double quantile(const std::vector<double>& sorted, double q) {
  const double rank = std::ceil(q * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace

void LogitQuality::add(std::span<const float> logits, std::span<const float> changed) {
  BRAID_CHECK(!logits.empty() && logits.size() == changed.size());
  const Row before = look_at(logits), after = look_at(changed);
  double divergence = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = logits[i] - before.log_sum;
    divergence += std::exp(log_p) * (log_p - (changed[i] - after.log_sum));
  }
  divergences_.push_back(std::max(divergence, 0.0));  // rounding may make it negative
  const bool flipped = before.best != after.best;
  const bool clear = before.margin > kClearMargin;
  flips_ += flipped;
  clear_ += clear;
  clear_flips_ += flipped && clear;
}

LogitSummary LogitQuality::summary() const {
  LogitSummary out;
  out.rows = static_cast<int64_t>(divergences_.size());
  if (out.rows == 0) return out;
  const auto rows = static_cast<double>(out.rows);
  std::vector<double> sorted = divergences_;
  std::sort(sorted.begin(), sorted.end());
  for (const double d : sorted) out.mean += d / rows;
  out.median = quantile(sorted, 0.5);
  out.p99 = quantile(sorted, 0.99);
  out.most = sorted.back();
  out.flips = static_cast<double>(flips_) / rows;
  out.clear_flips =
      clear_ > 0 ? static_cast<double>(clear_flips_) / static_cast<double>(clear_) : 0;
  return out;
}

}  // namespace braid
