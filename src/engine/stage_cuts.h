// stage_cuts.h -- where a trunk is cut into stages (ops/devices.h). Pure arithmetic.
//
// A stage's time is the bytes that a token reads there over the device's rate. Cuts are contiguous
// and every stage has a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace braid {

struct LayerNeeds {
  uint64_t fixed_bytes = 0;  // weights and state slots
  uint64_t block_bytes = 0;  // of a KV block of every sequence
  uint64_t read_bytes = 0;   // of one token
};
struct StageRoom {
  uint64_t bytes = 0;  // for layers, KV blocks and the ends below
  double rate = 1;     // bytes read in a second
  int32_t layers = 0;  // exactly; 0: any number
};
struct TrunkNeeds {
  std::vector<LayerNeeds> layers;
  LayerNeeds first, last;  // what comes on top in the first and the last stage
};

enum class CutFor : uint8_t {
  one,   // few requests: the least sum of the stages' times
  many,  // enough requests to keep all stages busy: the least maximum
};

// First layer of each stage, the first 0; nothing if `blocks` KV blocks fit with no cut. Of equal
// times it takes a cut that leaves much room in every stage. Exact in time by dynamic programming:
// O(layers^2 stages).
std::optional<std::vector<int32_t>> cut_trunk(const TrunkNeeds& needs,
                                              std::span<const StageRoom> stages, int64_t blocks,
                                              CutFor purpose);

// Layers in proportion to `shares`, at least one each.
std::vector<int32_t> cut_by_shares(int32_t layers, std::span<const double> shares);

}  // namespace braid
