// bench_speculation.h -- `braid bench --spec`: what speculation gives, against none.
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
  std::vector<std::string> specs;  // --spec: as --spec-type; several sources together: ngram+mtp
  std::string prompts;             // --prompts: file (prompt_sets.h); empty: random tokens
  std::vector<int> budgets = {
      0};  // --draft-max: drafts of a step at most; 0: as the drafter likes it
  std::vector<std::string> accept;  // --accept: forced_acceptance.h; empty: what the model accepts
  std::string svg;                  // --svg: plots go here
  // From the other options of the command.
  std::vector<int> batches = {1};
  int prompt_tokens = 512;  // of random prompts
  int generate = 128;
  int repetitions = 3;
  bool json = false;

  bool any() const { return !specs.empty(); }
};

// Returns --spec.
CLI::Option* add_speculation_bench_options(CLI::App& command, SpeculationFlags& flags);

// One line of the table: a way to speculate on one set of prompts, and plain decoding beside it.
struct SpeculationRow {
  std::string set, spec, accept;
  int batch = 1;
  int budget = 0;
  double plain_tok_s = 0, tok_s = 0;  // of all sequences
  double tokens_per_round = 0;        // of a sequence, its own token included
  double drafts_per_round = 0;
  std::vector<double>
      survival;  // [depth]: rounds that accepted so far, of those with drafts so deep
  double draft_share = 0, verify_share = 0, plain_share = 0, host_share = 0;  // of the time
  double lost_ms = 0;  // by the budget's ledger, in all runs
  int answers = 0, differing = 0;

  double speed_up() const { return plain_tok_s > 0 ? tok_s / plain_tok_s : 0; }
  // How plots and tables call it.
  std::string name() const { return accept.empty() ? spec : spec + " at " + accept; }
};

// Prints its table. Exit code 0, 2 (error) or 130 (interrupted).
int run_speculation_bench(const ModelFlags& model, const SpeculationFlags& flags);

}  // namespace braid::cli
