// judge.h -- from a step's outputs to verdicts on its sequences: what survives, what comes next.
//
// A sequence whose last row is no numbers fails, and nothing of its step is kept. Otherwise its sampler
// draws, under the request's token mask, along its drafts for as long as they say the same.
//
// What the best logits of a row decide is drawn at once. Sequences that need whole rows draw together, each
// on one of a few threads, and the others wait for the slowest. Who draws together depends on the plan alone, and
// each draw on its row and sequence alone, so verdicts are the same on any number of threads. A draw for which
// there is no memory ends its sequence with an error.
//
// Called on the engine's thread. Masks and outputs are used there alone; nothing is allocated but the events
// that a client will hear, and room for as many draws as there have never been at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/oracle.h"
#include "engine/step/step_outputs.h"

namespace braid {

class Judge {
 public:
  // Prompt and answer of one request can have most_tokens. `threads`: those of the device, if it has any, idle
  // between its ops; null: the judge has some of its own. It must outlive the judge.
  Judge(StepOutputs& outputs, int64_t vocabulary, int32_t most_tokens, ThreadPool* threads);

  // Before the verdicts of a step.
  void begin_step() { mask_steps_ = TokenMask::kStepsBetween; }
  // After the device was waited for: appends a verdict for each item, in order. Moves the sequences' samplers
  // and masks on, nothing else of them.
  void judge(std::span<const StepItem> items, std::vector<Verdict>& verdicts);

  // Null: nobody but the model decides.
  void set_oracle(Oracle* oracle) { oracle_ = oracle; }

 private:
  // A sequence's way along its drafts.
  struct Path {
    const StepItem* item = nullptr;
    Verdict* verdict = nullptr;
    int32_t node = -1;  // the draft whose row decides what comes next; -1: the last certain token

    int32_t output() const { return item->last_output() + 1 + node; }
    const Request& request() const { return item->sequence->request; }
  };
  // What was drawn from a row, and log probabilities if the request asks for them.
  struct Drawn {
    Scores scores;
    int32_t id = -1;
    double log_sum = 0;
    std::vector<std::pair<int32_t, float>> top;
  };
  // A whole row that a path needs.
  struct WholeRow {
    int32_t output = 0;
    const Sampler* sampler = nullptr;
    std::span<const uint64_t> allowed;
    std::vector<uint64_t> bits;  // of `allowed`
    int32_t top_logprobs = -1;   // that are not known yet
    Drawn drawn;
    bool failed = false;
  };

  void begin(const StepItem& item, Verdict& verdict);
  void report_scores(const StepItem& item);
  bool follow(Path& path);
  bool bring_row(const Path& path, size_t at);
  void draw_rows(size_t count);
  static void draw(WholeRow& row, SamplerScratch& scratch);
  bool take_row(Path& path, WholeRow& row);
  bool take(Path& path, Drawn& drawn);
  static std::string why_no_token(const WholeRow& row, Verdict& verdict);
  std::optional<Scores> best_of(const Path& path) const;
  std::span<const uint64_t> allowed_by(TokenMask* mask);

  StepOutputs& outputs_;
  int64_t vocabulary_;
  int32_t most_tokens_;
  Oracle* oracle_ = nullptr;
  std::unique_ptr<ThreadPool> own_threads_;
  ThreadPool& threads_;
  Counter next_row_;
  std::vector<SamplerScratch> scratch_;  // of each worker
  std::vector<Path> waiting_;            // for whole rows, in the order of the plan
  std::vector<WholeRow> rows_;           // of the first who wait
  Drawn drawn_;                          // from the best
  std::vector<uint64_t> mask_bits_;
  std::vector<uint64_t> open_bits_;  // of all tokens but closed_
  std::vector<int32_t> closed_;
  int64_t mask_steps_ = 0;  // that masks may still take
};

}  // namespace braid
