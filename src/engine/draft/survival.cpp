// survival.cpp -- see survival.h.
#include "engine/draft/survival.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

constexpr double kForgetting = 0.99;  // per judged draft

double logit_of(float log_q) {
  const double q = std::clamp(std::exp(static_cast<double>(log_q)), 1e-3, 0.99);
  return std::log(q / (1 - q));
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

double Survival::probability(int32_t depth, float log_q) const {
  const Fit& fit = fits_[std::min(depth, known_ - 1)];
  return sigmoid(fit.w * logit_of(log_q) + fit.b);
}

// One step of logistic regression; each weight is the curvature accumulated along its parameter.
void Survival::judged(int32_t depth, float log_q, bool accepted) {
  for (; known_ <= std::min(depth, kDepths - 1); ++known_) {
    fits_[known_].w = fits_[known_ - 1].w;
    fits_[known_].b = fits_[known_ - 1].b;
  }
  Fit& fit = fits_[std::min(depth, kDepths - 1)];
  const double m = logit_of(log_q);
  const double a = sigmoid(fit.w * m + fit.b);
  const double miss = (accepted ? 1 : 0) - a;
  const double curvature = std::max(a * (1 - a), 0.02);
  fit.b_weight = std::max(kForgetting * fit.b_weight, 2.0) + curvature;
  fit.w_weight = std::max(kForgetting * fit.w_weight, 4.0) + curvature * m * m;
  fit.b = std::clamp(fit.b + miss / fit.b_weight, -6.0, 6.0);
  fit.w = std::clamp(fit.w + miss * m / fit.w_weight, 0.0, 3.0);
}

}  // namespace braid
