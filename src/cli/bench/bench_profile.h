// bench_profile.h -- `braid bench --profile`: where a step's time goes, op by op.
#pragma once

#include "cli/load_model.h"

namespace braid::cli {

struct ProfileFlags {
  int sequences = 1;  // that decode (--batch, the first)
  int prompt =
      512;  // tokens that each has behind it, and of the profiled prompt step (-p, the first)
  int drafts = 0;     // > 0: also a step in which each sequence verifies so many
  bool tree = false;  // they branch
  int fill = 0;       // > 0: Engine::fill_prompts_from
  bool json = false;
};

// Prints its tables. Exit code 0, 2 (error) or 130 (interrupted).
int run_profile_bench(const ModelFlags& model, const ProfileFlags& flags);

}  // namespace braid::cli
