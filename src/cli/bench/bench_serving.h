// bench_serving.h -- `braid bench` as a server feels it: --batch, --shared-prefix, --interference,
// --conversation.
#pragma once

#include <string>
#include <vector>

#include "cli/load_model.h"

namespace braid::cli {

struct ServingBenchFlags {
  std::vector<int> batches;      // --batch: sequences that decode together
  int shared_prefix = 0;         // --shared-prefix: tokens that --requests prompts begin with
  int requests = 32;             // --requests
  int tail = 20;                 // --tail: tokens of each prompt after the shared ones
  int interference = 0;          // --interference: length of the prompt that arrives
  int users = 8;                 // --users: sequences that decode when it does
  int conversation = 0;          // --conversation: tokens that --turns turns grow to
  int turns = 10;                // --turns
  std::vector<int> prompts;      // -p: for --batch, the first one
  std::vector<int> generations;  // -n
  int repetitions = 1;
  int fill = 0;  // > 0: Engine::fill_prompts_from
  bool json = false;

  bool any() const {
    return !batches.empty() || shared_prefix > 0 || interference > 0 || conversation > 0;
  }
};

// Context that each of `sequences` needs to have `prompt` tokens and `generated` more, when all come at once
// and whoever is done with the prompt decodes while the others are not: one token in each step, of which
// there are as many as chunks.
int batch_context(int sequences, int prompt, int generated, int ubatch);
// What a bench says of prompts that are filled (Engine::fill_prompts_from); empty if none is so long.
std::string filled_from(int fill, int prompt);
// Why a sequence that should have gone on has ended.
Error early_end(const Finished& end, const Engine& engine);

// Prints its tables. Exit code 0, 2 (error) or 130 (interrupted).
int run_serving_bench(const ModelFlags& model, const ServingBenchFlags& flags);

}  // namespace braid::cli
