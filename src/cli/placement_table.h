// placement_table.h -- how much each expert was used, from CSV files of braid or of other tools.
//
// A file has one line for an expert. Columns are separated by commas, semicolons or tabs, whichever
// the first line has (tabs before semicolons before commas). A first line of names may put them in
// any order and add others. Without one they are layer, expert and score, in that order. Fields may
// be quoted. An expert without a line was never used.
//
// Pure functions. What a text can make them take is bounded by the limits below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/expert_profile.h"

namespace braid::cli {

inline constexpr size_t kMostPlacementBytes = size_t{64} << 20;
inline constexpr int32_t kMostPlacementLayers = 1024;
inline constexpr int32_t kMostPlacementExperts = 1024;  // of a layer

struct PlacementTable {
  // Of each layer with a line, ascending: its number in the file. Dense layers have no lines, so
  // the i-th is layer i of an expert profile (expert_profile.h).
  std::vector<int32_t> numbers;
  int32_t experts = 0;        // of each layer
  std::vector<float> scores;  // [layers][experts], 0 or from 1e-30 to 1e30

  ExpertCountsOfLayers layers() const { return ExpertCountsOfLayers(numbers.size(), experts); }
};

// `experts`: of each layer; 0: one more than the highest number. Errors: invalid_argument, with the
// line if there is one and without the file's name.
Result<PlacementTable> parse_placement(std::string_view text, int32_t experts);

struct LayerUse {
  int32_t number = 0;
  double use = 0;          // sum of scores
  int32_t never_used = 0;  // experts
  // [experts + 1]: the share of `use` that the n most used experts have; zeros if nothing is used.
  std::vector<double> served;
};
std::vector<LayerUse> layer_uses(const PlacementTable& table);

// With `slots` experts of each layer. Both are shares, from 0 to 1.
double served_of_all_use(std::span<const LayerUse> layers, int32_t slots);
double mean_served(std::span<const LayerUse> layers, int32_t slots);  // of layers with any use

// The nearest number of experts to a share, at least one.
int32_t experts_of_share(double share, int32_t experts);

}  // namespace braid::cli
