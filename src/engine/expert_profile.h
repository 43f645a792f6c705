// expert_profile.h -- how much each expert was used, in a file, so that a new start knows which
// experts to give slots (ops/device.h). It is a seed only: a wrong one costs time, not answers.
//
// A line is "layer,expert,score", layers counted from 0 among those with slots; a first line of
// names may come before. Experts without a line have score 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/devices.h"

namespace braid {

// Experts of each layer.
using ExpertCountsOfLayers = std::vector<int32_t>;

// Scores of all layers, one after the other. Error: invalid_argument, with the line.
Result<std::vector<float>> parse_expert_profile(std::string_view text,
                                                const ExpertCountsOfLayers& layers);
std::string format_expert_profile(std::span<const float> scores,
                                  const ExpertCountsOfLayers& layers);

// The file for a model: `path`, or in a folder one named after the model's file. Error:
// invalid_argument, if it is neither a regular file nor absent, or cannot be written.
Result<std::string> expert_profile_path(const std::string& path, const std::string& model);
// Gives slots by the file, if it is there; nothing without slots. Errors: invalid_argument, io.
Status load_expert_profile(const std::string& path, Devices& devices);
// Replaces the file as a whole. Waits for the ops queued so far. Errors: io, exhausted.
Status save_expert_profile(const std::string& path, Devices& devices);

}  // namespace braid
