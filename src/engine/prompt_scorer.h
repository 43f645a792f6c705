// prompt_scorer.h -- scores the tokens of prompts with a small model, one prompt at a time.
//
// An engine, its TailScorer and a queue. Clients take turns: after a prompt of one client comes the
// oldest prompt of another, if there is one. One thread calls everything but engine(), whose fixed
// parts any thread may read. Done is called once for each prompt, in any call but engine()
// and idle(), and must neither block nor throw.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/prompt_to_score.h"
#include "engine/tail_scorer.h"

namespace braid {

class PromptScorer {
 public:
  // The options that an engine for scoring needs: one sequence, no prefix cache, no drafts.
  static EngineOptions engine_options(EngineOptions options);
  // Errors: those of TailScorer::create().
  static Result<std::unique_ptr<PromptScorer>> create(std::unique_ptr<Engine> engine,
                                                      const TailScoreOptions& options);
  ~PromptScorer();

  void submit(PromptToScore prompt);
  // Ends it soon with `cancelled`. Ignores unknown ids.
  void cancel(RequestId id);
  void cancel_all();
  // All prompts end with `error`. The engine is not used any more.
  void fail_all(const Error& error);

  // A bounded part of the work: a step of the model, or `slice_ms` of one (Engine::step_beside()).
  void step();
  void step_beside(double slice_ms);
  bool idle() const { return current_ == nullptr && waiting_.empty(); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }

  const Engine& engine() const { return *engine_; }
  SparseCounts sparse_counts() { return engine_->sparse_counts(); }
  // For the owner's own requests, while idle() and until the next submit().
  Engine& lend();

 private:
  class Current;
  PromptScorer() = default;
  void begin_next();
  void end_if_done();

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TailScorer> scorer_;  // observes the engine
  std::deque<PromptToScore> waiting_;
  std::unique_ptr<Current> current_;
  std::string last_client_;
};

}  // namespace braid
