// engine.h -- the one loop that moves every generation forward.
//
//   plan     the scheduler picks sequences and how far each goes
//   propose  the drafter may add uncertain tokens (the engine without speculation has no drafter)
//   run      the model runs once over everything (step/step.h)
//   judge    are these numbers?; then sampler and verifier: what survives, what comes next (step/judge.h)
//   commit   accepted paths become state, cells move, sequences advance
//   settle   events for clients are written down; finished sequences release everything at once
//
// A turn is one whole step and then, while sequences decode, a slice of an interleaved one: a prompt that
// would make them wait for its whole chunk goes through the layers between their steps, for as long as the
// pacer (pacer.h) allows. Both kinds are a Step; what follows their end is the same code.
//
// Clients are told at the end of the step, or, where the device has its own memory and works by itself, as
// soon as the next step is queued there.
//
// Every step has one output row for each sequence at least, its last certain one, also where nobody wants its
// logits: numbers that are none in any row of a chunk reach the chunk's last row through states and
// attention. Where that row holds such, the sequence ends with an error, and nothing of the step is kept: no
// block, no checkpoint, in memory or on disk.
//
// create() takes all memory from one plan; afterwards nothing on the device is allocated. The engine runs in
// its caller's thread: submit(), cancel() and step() are called from one thread (a Sink may call the first
// two). service.h gives it a thread of its own and may be called from any.
//
//   BRAID_ASSIGN(auto file, GgufFile::open(path));
//   BRAID_ASSIGN(auto engine, Engine::create(file, {}));
//   BRAID_ASSIGN(RequestId id, engine->submit(std::move(request), sink));
//   engine->run_until_idle();
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/disk/disk.h"
#include "engine/draft/budget/draft_budget.h"
#include "engine/engine_memory.h"
#include "engine/engine_options.h"
#include "engine/request/draft_stats.h"
#include "engine/request/events.h"
#include "engine/request/request.h"
#include "engine/schedule/scheduler.h"
#include "engine/step/judge.h"
#include "engine/step/records.h"
#include "engine/step/step.h"
#include "engine/step/step_outputs.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

struct EngineStats {
  uint64_t steps = 0;
  uint64_t rows = 0;         // tokens run through the model
  uint64_t prompt_rows = 0;  // of them, prompt tokens
  uint64_t generated = 0;    // tokens reported or ended by
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  DraftStats drafts;
};

class Engine {
 public:
  // Errors: corrupt, unsupported (the file), exhausted (does not fit: with numbers), invalid_argument
  // (options). The file must outlive the engine.
  static Result<std::unique_ptr<Engine>> create(const GgufFile& file, const EngineOptions& options);

  // The plan that create() would make, without loading anything.
  static Result<MemoryPlan> plan_memory(const GgufFile& file, const EngineOptions& options);

  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request; `sink` must live until its finished(). Errors: invalid_argument (empty, longer than the
  // context, token outside the vocabulary, sampling values).
  Result<RequestId> submit(Request request, Sink& sink);

  // The same in two parts: what takes time in proportion to the prompt, from any thread; and what the engine's thread
  // does, under an id that the caller keeps unique.
  Result<std::unique_ptr<Sequence>> prepare(Request request) const;
  Status submit_as(RequestId id, std::unique_ptr<Sequence> sequence, Sink& sink);

  // It is removed in the next step; its sink hears of no token any more, only of the end. Unknown ids are
  // ignored (the request may just have ended).
  void cancel(RequestId id);
  void cancel_all();

  // One turn. False when there was nothing to do.
  bool step();
  void run_until_idle();
  bool idle() const { return scheduler_->idle(); }

  const ModelConfig& config() const { return model_->config(); }
  const MemoryPlan& memory() const { return memory_.plan; }
  const EngineStats& stats() const { return stats_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  // Prompt and answer of one request can have so many tokens.
  int32_t most_tokens() const { return scheduler_->most_tokens(); }
  const Device& device() const { return *device_; }
  Device& device() { return *device_; }
  const DiskTier* disk() const { return disk_.get(); }
  Model& model() { return *model_; }
  int32_t context_tokens() const { return memory_.plan.context_tokens; }
  int32_t ubatch_tokens() const { return options_.ubatch_tokens; }
  // Bytes of weights one decoding step reads.
  uint64_t step_read_bytes() { return model_->weights().step_read_bytes(model_->config()); }

  // Drafts in place of the one of EngineOptions; null: nobody. Needs max_drafts > 0. The drafter must outlive
  // the engine or be replaced.
  void set_drafter(Drafter* drafter);
  Drafter* drafter() { return drafter_; }
  // Benches: decides in place of the model what is accepted (step/oracle.h); null: nobody. It must outlive
  // the engine or be replaced.
  void set_oracle(Oracle* oracle);
  // Benches of decoding behind long contexts: chunks of prompts that begin at this position or behind it are
  // not computed, but for the last one. Their cells are copies of those before and states stand still, so
  // answers mean nothing. A prompt that uses the cache or is scored is computed, and so are interleaved steps
  // (gap_limit 0: there are none). A multiple of kBlockTokens; 0: all is computed.
  void fill_prompts_from(int32_t tokens);
  // Looks inside the model's steps (tests, tools); null: nobody.
  void observe(Observer* observer) { model_->observe(observer); }

  // Not ok after the device has failed: every request ends with this error.
  const Status& health() const { return health_; }
  // Stops the program if the books do not balance.
  void check() const { scheduler_->check(); }

 private:
  Engine() = default;
  Status open(const GgufFile& file, const EngineOptions& options);
  Status load();
  Status make_drafter(int32_t block_table);
  void choose_drafts();

  bool turn();
  bool run_whole(Step& step, Clock::time_point begin);
  bool run_interleaved(int32_t answering);
  bool end_step(Step& step);
  void fill_prompts(StepPlan& plan);
  void fill_blocks(const Sequence& sequence);
  void propose(StepPlan& plan);
  void draft(StepPlan& plan);
  void count_drafts(const StepItem& item);
  void count_accepted(const StepItem& item, const Verdict& verdict);
  DraftBudget* budget() { return drafter_ == own_drafter_.get() ? budget_.get() : nullptr; }
  void fork(StepPlan& plan, std::vector<Verdict>& verdicts);
  void commit(const Step& step, std::span<const Verdict> verdicts);
  void commit_drafts(const Step& step, std::span<const Verdict> verdicts);
  void settle(const StepPlan& plan, std::span<Verdict> verdicts);
  void announce(Sequence& sequence);
  void finish(std::unique_ptr<Sequence> sequence, Finished end);
  // After it was waited for. False: it has failed, and everybody's request with it.
  bool device_works();
  void fail_all(const Error& error);
  void install_hooks();
  Status validate(const Request& request) const;

  EngineOptions options_;
  std::unique_ptr<Device> device_;  // outlives everything that holds its memory
  std::unique_ptr<Model> model_;
  std::unique_ptr<Dflash> dflash_;  // taps the model's steps
  PrefixSecret secret_{};           // of this process, or of options_.cache_dir
  PrefixHash fingerprint_;          // of everything that cached prefixes depend on
  EngineMemory memory_;
  StepOutputs outputs_;
  std::unique_ptr<DiskTier> disk_;  // its threads use memory_.disk_memory
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Records> records_;  // of the runner and of own_drafter_
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Judge> judge_;
  std::optional<Step> interleaved_;       // the prompt's step that is under way
  bool disturbed_ = false;                // some of it has run since the last decoding step
  std::unique_ptr<Drafter> own_drafter_;  // of options_.spec_type
  int32_t head_depth_ = 0;                // of own_drafter_, if it has the model's head
  Drafter* drafter_ = nullptr;
  std::unique_ptr<DraftBudget> budget_;        // of own_drafter_; null: it drafts always
  std::optional<Clock::time_point> proposed_;  // when the whole step under way was ready to be queued
  std::vector<Verdict> verdicts_;              // of the step that ends
  EventQueue events_;
  bool late_events_ = false;  // clients hear of a step while the device works on the next
  EngineStats stats_;
  Status health_;
  RequestId next_id_ = 1;
  int32_t filled_from_ = 0;  // fill_prompts_from()
};

}  // namespace braid
