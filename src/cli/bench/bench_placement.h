// bench_placement.h -- braid bench --placement: speed by the share of experts on the GPU, beside
// what the link allows.
#pragma once

#include <vector>

#include "cli/load_model.h"

namespace braid::cli {

struct PlacementFlags {
  std::vector<int> slots;        // expert slots of each layer; 0: all
  std::vector<int> prompts;      // prompt lengths
  std::vector<int> generations;  // answers: the first counts
  std::vector<int> batches;      // sequences that decode together
  bool json = false;
};

int run_placement_bench(const ModelFlags& model, const PlacementFlags& flags);

}  // namespace braid::cli
