// bench_speculation.h -- `braid bench --spec`: speculative against plain decoding.
#pragma once

#include <string>
#include <vector>

#include "cli/load_model.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace braid::cli {

struct SpeculationFlags {
  std::vector<std::string> specs;   // --spec: as --spec-type; ngram+mtp combines sources
  std::string prompts;              // --prompts: file (prompt_sets.h); empty: random tokens
  std::vector<int> budgets = {0};   // --draft-max: speculative tokens per step; 0: the default
  std::vector<std::string> accept;  // --accept: forced_acceptance.h; empty: the model decides
  std::string svg;                  // --svg: file of the plot
  std::vector<int> batches = {1};
  int prompt_tokens = 512;  // of random prompts
  int generate = 128;
  int repetitions = 3;
  bool json = false;

  bool any() const { return !specs.empty(); }
};

// Returns --spec.
CLI::Option* add_speculation_bench_options(CLI::App& command, SpeculationFlags& flags);

struct SpeculationRow {
  std::string set, spec, accept;
  int batch = 1;
  int budget = 0;
  double plain_tok_s = 0, tok_s = 0;  // of all sequences
  double tokens_per_round = 0;  // per sequence and step with drafts, the sampled token included
  double drafts_per_round = 0;
  // [depth]: the share of steps with drafts of this depth that accepted as many.
  std::vector<double> survival;
  double draft_share = 0, verify_share = 0, plain_share = 0, host_share = 0;  // of the run's time
  double lost_ms = 0;  // as DraftBudget counts it, over all runs
  int answers = 0, differing = 0;

  double speed_up() const { return plain_tok_s > 0 ? tok_s / plain_tok_s : 0; }
  std::string name() const { return accept.empty() ? spec : spec + " at " + accept; }
};

int run_speculation_bench(const ModelFlags& model, const SpeculationFlags& flags);

}  // namespace braid::cli
