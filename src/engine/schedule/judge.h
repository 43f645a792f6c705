// judge.h -- from a step's outputs to verdicts on its sequences.
//
// A sequence fails if its last row has NaN or infinity; nothing of its step is kept. Otherwise its
// sampler draws under the request's mask, along its drafts while they agree. Whole rows are drawn
// together on a few threads, grouped by the plan, so verdicts do not depend on the number of
// threads. A failed allocation ends its sequence with an error.
//
// Engine's thread only. It allocates only events and room for more parallel draws than before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/schedule/oracle.h"
#include "engine/schedule/step_outputs.h"
#include "engine/schedule/step_plan.h"

namespace braid {

class Judge {
 public:
  // `threads`: the device's pool, idle between ops, must outlive the judge; null: its own threads.
  Judge(StepOutputs& outputs, int64_t vocabulary, int32_t most_tokens, ThreadPool* threads);

  void begin_step() { mask_steps_ = TokenMask::kStepsBetween; }
  // When the device has finished: appends a verdict per item, advances samplers and masks.
  void judge(std::span<const StepItem> items, std::vector<Verdict>& verdicts);

  // Null: off.
  void set_oracle(Oracle* oracle) { oracle_ = oracle; }

 private:
  struct Path {
    const StepItem* item = nullptr;
    Verdict* verdict = nullptr;
    int32_t node = -1;  // its row decides the next token; -1: last certain row

    int32_t output() const { return item->last_output() + 1 + node; }
    const Request& request() const { return item->sequence->request; }
  };
  // Log probabilities only if requested.
  struct Drawn {
    Scores scores;
    int32_t id = -1;
    double log_sum = 0;
    std::vector<std::pair<int32_t, float>> top;
  };
  struct WholeRow {
    int32_t output = 0;
    const Sampler* sampler = nullptr;
    std::span<const uint64_t> allowed;
    std::vector<uint64_t> bits;  // of `allowed`
    int32_t top_logprobs = -1;   // still to be computed
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
  std::vector<Path> waiting_;            // for whole rows, in plan order
  std::vector<WholeRow> rows_;           // of the first waiting paths
  Drawn drawn_;                          // from the best logits
  std::vector<uint64_t> mask_bits_;
  std::vector<uint64_t> open_bits_;  // all tokens but closed_
  std::vector<int32_t> closed_;
  int64_t mask_steps_ = 0;  // remaining allowance of masks
};

}  // namespace braid
