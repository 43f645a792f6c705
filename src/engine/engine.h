// engine.h -- the one loop that moves every generation forward.
//
//   plan     the scheduler picks sequences, their tokens and their blocks
//   propose  the drafter may add uncertain tokens
//   run      the model runs once over everything (step/step.h)
//   judge    checks for NaN, samples, verifies drafts (step/judge.h)
//   commit   accepted paths become state, cells move, sequences advance
//   settle   events are recorded; finished sequences release everything
//
// A turn ends one whole step and, while sequences decode, runs a slice of a prompt's interleaved
// step (pacer.h). On several stages it first queues further steps, so that each stage has one to
// work at: of other sequences, or of a prompt's next chunk. Steps end in the order of queueing.
// Events are delivered at a step's end or, if the device has its own memory, after the next step is
// queued.
//
// Every step outputs the last certain row of each sequence, even if unused: NaN in any row of a
// chunk reaches it through states and attention. The sequence then ends with an error, and nothing
// of the step is kept.
//
// create() takes all device memory from one plan. One thread calls submit(), cancel() and step(); a
// Sink may call the first two. service.h adds a thread and may be called from any.
//
//   BRAID_ASSIGN(auto file, GgufFile::open(path));
//   BRAID_ASSIGN(auto engine, Engine::create(file, {}));
//   BRAID_ASSIGN(RequestId id, engine->submit(std::move(request), sink));
//   engine->run_until_idle();
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/draft/draft_budget.h"
#include "engine/draft_stats.h"
#include "engine/engine_memory.h"
#include "engine/engine_options.h"
#include "engine/events.h"
#include "engine/prefix/disk.h"
#include "engine/request.h"
#include "engine/schedule/judge.h"
#include "engine/schedule/records.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step.h"
#include "engine/schedule/step_outputs.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "ops/devices.h"

namespace braid {

struct EngineStats {
  uint64_t steps = 0;
  uint64_t ahead = 0;        // of them, queued while others ran
  uint64_t rows = 0;         // tokens run through the model
  uint64_t prompt_rows = 0;  // of them, prompt tokens
  uint64_t generated = 0;    // tokens reported, or that ended an answer
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  DraftStats drafts;
};

class Engine {
 public:
  // The file must outlive the engine. Errors: corrupt, unsupported (the file), exhausted (does not
  // fit), invalid_argument (options).
  static Result<std::unique_ptr<Engine>> create(const GgufFile& file, const EngineOptions& options);
  // With the given devices instead of those that `options` name; engines may share them.
  static Result<std::unique_ptr<Engine>> create(const GgufFile& file, const EngineOptions& options,
                                                std::shared_ptr<Devices> devices);

  // create()'s plan, without loading.
  static Result<MemoryPlan> plan_memory(const GgufFile& file, const EngineOptions& options);

  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `sink` must live until its finished(). Errors: invalid_argument (empty, longer than the
  // context, token outside the vocabulary, sampling values).
  Result<RequestId> submit(Request request, Sink& sink);

  // submit() in two parts. prepare() takes time proportional to the prompt, on any thread. The rest
  // runs on the engine's thread; the caller keeps ids unique.
  Result<std::unique_ptr<Sequence>> prepare(Request request) const;
  Status submit_as(RequestId id, std::unique_ptr<Sequence> sequence, Sink& sink);

  // Takes effect in the next step; no token follows, only the end. Unknown ids are ignored.
  void cancel(RequestId id);
  void cancel_all();

  bool step();
  // A step while sequences of another engine decode on this thread: at most `slice_ms` of prompts,
  // which pause in the middle of a step. Needs EngineOptions::beside_another.
  bool step_beside(double slice_ms);
  // What others may take between two steps; infinite if no sequence decodes. `share`: of the time
  // for prompts, what this engine keeps for its own.
  double slice_for_others_ms(double share);
  // Other work of this thread ran, so the next step is not the baseline of the pacer.
  void was_disturbed() { disturbed_ = true; }
  // Those that wait for the next step to be queued; call it before other work of this thread.
  void deliver_events() { events_.deliver(); }
  void run_until_idle();
  bool idle() const { return scheduler_->idle(); }

  const ModelConfig& config() const { return model_->config(); }
  const MemoryPlan& memory() const { return memory_.plan; }
  // Formats of the cache without kernels on this device, "q5_0 and tq3_0"; empty: there are none.
  std::string slow_kv_formats() const;
  // A sentence if some layers are on the CPU, or no GPU takes those meant for one; else empty.
  std::string note_on_layers() const;
  // Writes EngineOptions::expert_profile, if there is one; between steps. Logs an error.
  void keep_expert_profile();
  const EngineStats& stats() const { return stats_; }
  // Key blocks that prompts have read (Device::sparse_counts); zeros without a threshold. Waits for
  // all devices: for tools, or at long intervals.
  SparseCounts sparse_counts();
  const Scheduler& scheduler() const { return *scheduler_; }
  int32_t most_tokens() const { return scheduler_->most_tokens(); }
  const Devices& devices() const { return *devices_; }
  Devices& devices() { return *devices_; }
  const DiskTier* disk() const { return disk_.get(); }
  Model& model() { return *model_; }
  int32_t context_tokens() const { return memory_.plan.context_tokens; }
  int32_t ubatch_tokens() const { return options_.ubatch_tokens; }
  uint64_t step_read_bytes() { return model_->weights().step_read_bytes(model_->config()); }

  // Null: no drafts. Needs max_drafts > 0. The drafter must outlive the engine or be replaced.
  void set_drafter(Drafter* drafter);
  Drafter* drafter() { return drafter_; }
  // For benches (step/oracle.h); null: off. It must outlive the engine or be replaced.
  void set_oracle(Oracle* oracle);
  // For benches: prompt chunks from this position on, except the last, are copies of earlier cells,
  // so answers are meaningless. Prompts that use the cache or are scored, and interleaved steps,
  // are computed. A multiple of kBlockTokens; 0: off.
  void fill_prompts_from(int32_t tokens);
  // Observes the model's steps (tests, tools); null: off.
  void observe(Observer* observer) { model_->observe(observer); }

  // Not ok after the device has failed: every request ends with this error.
  const Status& health() const { return health_; }
  void check() const { scheduler_->check(); }

 private:
  Engine() = default;
  Status open(const GgufFile& file, const EngineOptions& options, std::shared_ptr<Devices> devices);
  Status choose_devices();
  Status place_gpu_layers(EngineOptions& asked) const;
  Status plan(std::shared_ptr<Devices> devices);
  Status load();
  Status make_drafter(int32_t block_table);
  void choose_drafts();

  bool turn();
  bool goes_ahead() const;
  bool drafts() const;
  void queue(StepPlan&& plan, Clock::time_point begin);
  bool end_oldest();
  void withdraw(Sequence& s, int32_t from);
  bool run_interleaved(int32_t answering);
  bool end_step(Step& step);
  void fill_prompts(StepPlan& plan);
  void fill_blocks(const Sequence& sequence);
  void propose(Step& step);
  void draft(StepPlan& plan);
  void observe_drafts(const Step& step, std::span<const Verdict> verdicts);
  void count_drafts(const StepItem& item);
  void count_accepted(const StepItem& item, const Verdict& verdict);
  DraftBudget* budget() { return drafter_ == own_drafter_.get() ? budget_.get() : nullptr; }
  void fork(StepPlan& plan, std::vector<Verdict>& verdicts);
  void commit(const Step& step, std::span<const Verdict> verdicts);
  void commit_drafts(const Step& step, std::span<const Verdict> verdicts);
  void settle(const StepPlan& plan, std::span<Verdict> verdicts);
  void announce(Sequence& sequence);
  void finish(std::unique_ptr<Sequence> sequence, Finished end);
  // Call after a wait. False: the device has failed, and all requests end.
  bool device_works();
  void fail_all(const Error& error);
  // Time that recording has taken since the last call, which is not the work's own.
  double take_making_ms();
  void install_hooks();
  Status validate(const Request& request) const;

  EngineOptions options_;
  std::shared_ptr<Devices> devices_;  // outlive all holders of their memory
  std::unique_ptr<Model> model_;
  std::unique_ptr<Dflash> dflash_;  // taps the model's steps
  PrefixSecret secret_{};           // of this process or of options_.cache_dir
  PrefixHash fingerprint_;          // of all that cached prefixes depend on
  EngineMemory memory_;
  StepOutputs outputs_;
  std::unique_ptr<DiskTier> disk_;  // its threads use memory_.disk_memory
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<Records> records_;  // [stages], CUDA graphs; the last also of own_drafter_
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Judge> judge_;
  std::deque<Step> in_flight_;            // queued whole steps, the oldest first
  Clock::time_point last_end_;            // of a whole step
  std::optional<Step> interleaved_;       // the prompt's step in progress
  bool disturbed_ = false;                // part of it ran since the last decoding step
  std::unique_ptr<Drafter> own_drafter_;  // of options_.spec_type
  int32_t head_depth_ = 0;                // of own_drafter_, if it uses the model's head
  Drafter* drafter_ = nullptr;
  std::unique_ptr<DraftBudget> budget_;  // of own_drafter_; null: it always drafts
  std::vector<Verdict> verdicts_;        // of the ending step
  EventQueue events_;
  bool late_events_ = false;  // deliver events while the next step runs
  EngineStats stats_;
  Status health_;
  RequestId next_id_ = 1;
  int32_t filled_from_ = 0;  // fill_prompts_from()
};

}  // namespace braid
