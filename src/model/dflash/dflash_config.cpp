// dflash_config.cpp -- checks that a drafter belongs to a target; see dflash_config.h.
#include "model/dflash/dflash_config.h"

#include <fmt/format.h>

#include <cmath>

#include "model/metadata_keys.h"

namespace braid {
namespace {

// Default taps of published drafters for a trunk of `layers`.
std::vector<int32_t> even_taps(int64_t count, int64_t layers) {
  std::vector<int32_t> taps;
  for (int64_t k = 0; k < count; ++k) {
    const double step =
        count > 1 ? static_cast<double>(layers - 4) / static_cast<double>(count - 1) : 0;
    const double at =
        count > 1 ? 1 + static_cast<double>(k) * step : static_cast<double>(layers / 2);
    taps.push_back(static_cast<int32_t>(std::lround(at)));
  }
  return taps;
}

}  // namespace

Status fit(DflashConfig& config, const ModelConfig& target, uint64_t fc_columns,
           const std::string& name) {
  const auto other = [&](const std::string& why) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{}: this drafter does not fit the model: {}", name, why)};
  };
  const auto layers = static_cast<int64_t>(target.layers.size());
  if (config.width != target.width)
    return other(fmt::format("its width is {}, the model's {}", config.width, target.width));
  if (config.vocabulary != 0 && config.vocabulary != target.vocabulary)
    return other(fmt::format("its vocabulary has {} tokens, the model's {}", config.vocabulary,
                             target.vocabulary));
  if (config.target_layers != 0 && config.target_layers != layers)
    return other(
        fmt::format("it was made for {} layers, the model has {}", config.target_layers, layers));
  if (config.mask_token >= target.vocabulary)
    return other(fmt::format("its mask token {} is outside the vocabulary of {} tokens",
                             config.mask_token, target.vocabulary));
  const auto width = static_cast<uint64_t>(config.width);
  if (fc_columns % width != 0 || fc_columns == 0 || fc_columns > kMaxWidth ||
      fc_columns / width > DflashConfig::kMaxTaps)
    return other(
        fmt::format("its features have {} columns, the model's layers {}", fc_columns, width));
  if (config.taps.empty())
    config.taps = even_taps(static_cast<int64_t>(fc_columns / width), layers);
  for (const int32_t tap : config.taps)
    if (tap < 0 || tap >= layers)
      return other(fmt::format("it reads layer {}, the model has {} layers", tap, layers));
  if (static_cast<uint64_t>(config.features()) != fc_columns)
    return other(fmt::format("its features have {} columns, {} layers of the model {}", fc_columns,
                             config.taps.size(), config.features()));
  return {};
}

}  // namespace braid
