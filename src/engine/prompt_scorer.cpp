// prompt_scorer.cpp -- see prompt_scorer.h.
#include "engine/prompt_scorer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid {

// The prompt that runs. It is its sink.
class PromptScorer::Current final : public Sink {
 public:
  explicit Current(PromptToScore of) : prompt(std::move(of)) {}
  void token(RequestId, const TokenEvent&) override {}
  void progress(RequestId, int32_t done, int32_t total) override {
    if (prompt.progress) prompt.progress(done, total);
  }
  void finished(RequestId, const Finished& event) override { end = event; }

  PromptToScore prompt;
  std::optional<Finished> end;
};

EngineOptions PromptScorer::engine_options(EngineOptions options) {
  options.max_sequences = 1;
  options.prefix_cache = false;
  options.cache_dir.clear();
  options.state_memory_bytes = options.swap_memory_bytes = 0;
  options.spec_type = SpecType::none;
  options.draft_model.clear();
  options.max_drafts = options.draft_depth = 0;
  options.max_batch_tokens = 0;
  options.split = Split::none;
  options.expert_profile.clear();
  return options;
}

Result<std::unique_ptr<PromptScorer>> PromptScorer::create(std::unique_ptr<Engine> engine,
                                                           const TailScoreOptions& options) {
  std::unique_ptr<PromptScorer> made(new PromptScorer);
  made->engine_ = std::move(engine);
  BRAID_ASSIGN(made->scorer_, TailScorer::create(*made->engine_, options));
  made->engine_->observe(made->scorer_.get());
  return made;
}

PromptScorer::~PromptScorer() {
  if (scorer_ != nullptr) engine_->observe(nullptr);
}

Engine& PromptScorer::lend() {
  BRAID_CHECK(idle());
  engine_->observe(nullptr);
  return *engine_;
}

void PromptScorer::submit(PromptToScore prompt) {
  waiting_.push_back(std::move(prompt));
  if (current_ == nullptr) begin_next();
}

void PromptScorer::cancel(RequestId id) {
  if (current_ != nullptr && current_->prompt.id == id) return engine_->cancel(id);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const PromptToScore& prompt) { return prompt.id == id; });
  if (found == waiting_.end()) return;
  const ScoresDone done = std::move(found->done);
  waiting_.erase(found);
  done(Error{ErrorKind::cancelled, "interrupted"});
}

void PromptScorer::cancel_all() {
  engine_->cancel_all();
  for (PromptToScore& prompt : std::exchange(waiting_, {}))
    prompt.done(Error{ErrorKind::cancelled, "interrupted"});
}

void PromptScorer::fail_all(const Error& error) {
  if (const std::unique_ptr<Current> failed = std::move(current_)) failed->prompt.done(error);
  for (PromptToScore& prompt : std::exchange(waiting_, {})) prompt.done(error);
}

void PromptScorer::begin_next() {
  while (current_ == nullptr && !waiting_.empty()) {
    auto next = std::find_if(waiting_.begin(), waiting_.end(), [this](const PromptToScore& prompt) {
      return prompt.client != last_client_;
    });
    if (next == waiting_.end()) next = waiting_.begin();
    current_ = std::make_unique<Current>(std::move(*next));
    waiting_.erase(next);
    PromptToScore& prompt = current_->prompt;
    last_client_ = prompt.client;
    Request request;
    request.prompt = std::move(prompt.ids);
    request.max_tokens = 0;
    request.use_cache = false;
    const auto tokens = static_cast<int32_t>(request.prompt.size());
    auto sequence = engine_->prepare(std::move(request));
    Status begun = sequence.ok() ? Status() : Status(sequence.error());
    if (begun.ok()) {
      engine_->observe(scorer_.get());
      scorer_->begin(tokens);
      begun = engine_->submit_as(prompt.id, std::move(*sequence), *current_);
    }
    if (begun.ok()) return;
    const std::unique_ptr<Current> failed = std::move(current_);
    failed->prompt.done(begun.error());
  }
}

void PromptScorer::end_if_done() {
  // Without memory a prompt may never have reached the engine.
  if (!current_->end && engine_->idle())
    current_->end = {FinishReason::error, {}, "there is no memory left for the prompt", {}, {}};
  if (!current_->end) return;
  const std::unique_ptr<Current> ended = std::move(current_);
  const Finished& end = *ended->end;
  if (end.reason == FinishReason::cancelled) {
    ended->prompt.done(Error{ErrorKind::cancelled, "interrupted"});
  } else if (end.reason == FinishReason::error) {
    ended->prompt.done(Error{ErrorKind::io, end.error});
  } else {
    ended->prompt.done(scorer_->scores());
  }
  begin_next();
}

void PromptScorer::step() {
  if (current_ == nullptr) begin_next();
  if (current_ == nullptr) return;
  engine_->step();
  end_if_done();
}

void PromptScorer::step_beside(double slice_ms) {
  if (current_ == nullptr) begin_next();
  if (current_ == nullptr) return;
  engine_->step_beside(slice_ms);
  end_if_done();
}

}  // namespace braid
