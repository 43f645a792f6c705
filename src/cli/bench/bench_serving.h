// bench_serving.h -- serving: --batch, --shared-prefix, --interference, --conversation.
#pragma once

#include <string>
#include <vector>

#include "cli/load_model.h"

namespace braid::cli {

struct ServingBenchFlags {
  std::vector<int> batches;      // --batch: sequences that decode together
  int shared_prefix = 0;         // --shared-prefix: common tokens of the prompts
  int requests = 32;             // --requests
  int tail = 20;                 // --tail: own tokens of each prompt
  int interference = 0;          // --interference: length of the arriving prompt
  int users = 8;                 // --users: sequences that decode meanwhile
  int conversation = 0;          // --conversation: tokens after the last turn
  int turns = 10;                // --turns
  std::vector<int> prompts;      // -p: --batch uses the first
  std::vector<int> generations;  // -n: likewise
  int repetitions = 1;
  int fill = 0;  // > 0: Engine::fill_prompts_from
  bool json = false;

  bool any() const {
    return !batches.empty() || shared_prefix > 0 || interference > 0 || conversation > 0;
  }
};

// Context of each of `sequences` for `prompt` and `generated` tokens when all arrive at once. A
// sequence whose prompt is done decodes one token in each prompt chunk of the others.
int batch_context(int sequences, int prompt, int generated, int ubatch);
// Suffix of a name if its prompt is partly filled (Engine::fill_prompts_from), else empty.
std::string filled_from(int fill, int prompt);
Error early_end(const Finished& end, const Engine& engine);

int run_serving_bench(const ModelFlags& model, const ServingBenchFlags& flags);

}  // namespace braid::cli
