// bench_profile.h -- `braid bench --profile`: the time of each op of a step.
#pragma once

#include "cli/load_model.h"

namespace braid::cli {

struct ProfileFlags {
  int sequences = 1;  // that decode together (--batch, first value)
  int prompt = 512;   // context of each sequence, tokens of the prompt step (-p, first value)
  int drafts = 0;     // > 0: also a step that verifies this many per sequence
  bool tree = false;  // drafts form a tree
  int fill = 0;       // > 0: Engine::fill_prompts_from
  bool json = false;
};

int run_profile_bench(const ModelFlags& model, const ProfileFlags& flags);

}  // namespace braid::cli
