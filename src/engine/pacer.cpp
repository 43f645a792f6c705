// pacer.cpp -- see pacer.h.
#include "engine/pacer.h"

#include <algorithm>

namespace braid {
namespace {

constexpr int32_t kFewest = 4;  // a prompt always moves, by two tokens at least (Scheduler::chunk)
constexpr int32_t kTileRows = 8;
constexpr double kAim = 0.92;  // of the limit
constexpr double kNew = 0.25;  // weight of a new measurement

void follow(double& mean, double value) { mean = mean == 0 ? value : mean + kNew * (value - mean); }

}  // namespace

int32_t Pacer::prompt_tokens(int32_t decoding, int32_t budget) const {
  if (gap_limit_ <= 0 || decoding == 0 || undisturbed_ms_ == 0) return budget;
  // A step of more sequences takes longer, but less than in proportion: the smaller guess is the safe one.
  const double token_ms = token_ms_ > 0 ? token_ms_ : 2 * alone_token_ms_;
  if (token_ms == 0) return std::min(budget, kFewest);
  const double spare_ms = (gap_limit_ * kAim - 1) * undisturbed_ms_;
  const auto tokens = static_cast<int32_t>(std::min(spare_ms / token_ms, static_cast<double>(budget)));
  // Products take rows by tiles: a step of whole ones costs less per row, if not much is lost by rounding.
  const int32_t whole = (decoding + tokens) / kTileRows * kTileRows - decoding;
  return std::min(budget, std::max(kFewest, tokens >= 4 * kTileRows ? whole : tokens));
}

void Pacer::observe(int32_t decoding, int32_t prompt, double ms) {
  if (decoding == 0) {
    if (prompt > 0) {
      follow(alone_token_ms_, ms / prompt);
      token_ms_ = 0;  // another time, another prompt
    }
    return;
  }
  if (prompt == 0) {
    follow(undisturbed_ms_, ms);
    return;
  }
  if (undisturbed_ms_ > 0) follow(token_ms_, std::max(ms - undisturbed_ms_, 0.1 * ms) / prompt);
}

}  // namespace braid
