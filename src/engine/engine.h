// engine.h -- the one loop that moves every generation forward.
//
//   plan     the scheduler picks sequences and how far each goes
//   propose  the drafter may add uncertain tokens (the engine without speculation has no drafter)
//   forward  the model runs once over everything
//   judge    are these numbers?; then sampler and verifier: what survives, what comes next
//   commit   accepted paths become state, cells move, sequences advance
//   settle   news for clients is written down; finished sequences release everything at once
//
// Clients are told at the end of the step, or, where the device has its own memory and works by itself, as
// soon as the next step is queued there.
//
// While sequences decode, a prompt that is to be run would make them wait for its whole chunk. It has a lane
// of its own in the model and goes through the layers in pieces, some after each decoding step, as long as
// the pacer (pacer.h) allows; at the end of its last piece it is judged, committed and settled like any step.
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

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/disk/disk.h"
#include "engine/memory_plan.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/request/events.h"
#include "engine/request/request.h"
#include "engine/schedule/scheduler.h"
#include "engine/step_batch.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

struct EngineOptions {
  int32_t context_tokens = 0;    // per sequence; 0: what the model was made for, less if memory is short
  int32_t max_sequences = 1;     // running at the same time
  int32_t ubatch_tokens = 512;   // prompt tokens a step may always carry
  int32_t max_batch_tokens = 0;  // all tokens of a step, if that is more; 0: ubatch_tokens
  double gap_limit = 3.95;       // longest time between steps of those who decode, in steps (pacer.h); 0: any
  int32_t max_drafts = 0;        // uncertain tokens of one sequence in one step; 0: no speculation
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;
  std::string device = "cpu";  // or "ref"
  int threads = 0;             // 0: the device chooses
  Activations activations = Activations::i8;
  bool deterministic = false;  // a request's bytes depend on nothing but itself (DeviceOptions)
  bool with_mtp = true;
  uint64_t memory_limit_bytes = 0;  // 0: what the machine has available
  uint64_t kv_memory_bytes = 0;     // KV blocks; 0: all contexts at once, less if memory is short
  int64_t state_memory_bytes = -1;  // checkpoints in host memory; -1: chosen, 0: none
  int64_t swap_memory_bytes = -1;   // blocks of preempted sequences in host memory; -1: chosen, 0: none
  bool prefix_cache = true;
  int32_t checkpoint_interval = -1;  // a checkpoint every so many tokens; -1: chosen, 0: none on the way
  std::string cache_dir;             // prefixes are kept here too (disk.h); empty: nowhere
  uint64_t cache_dir_bytes = uint64_t{8} << 30;  // of all files there
  int32_t checkpoint_spacing = -1;  // at least so many tokens between those of one prompt; -1: chosen
  Preemption preemption = Preemption::cheaper;
  bool poison_unused = false;   // tests: memory that nobody may read is filled with what spoils any sum
  uint64_t shuffle_blocks = 0;  // tests: seed of a random order of free blocks
  bool late_news = false;       // tests: clients hear of a step during the next on any device
  enum class Fault : uint8_t { none, passing, lasting };
  Fault fault = Fault::none;  // tests: the device fails in step `fault_step`
  uint64_t fault_step = 0;
  ModelWeights::Progress progress;       // while weights load
  ModelWeights::Progress host_progress;  // while host memory for checkpoints and swap is taken
};

struct EngineStats {
  uint64_t steps = 0;
  uint64_t rows = 0;         // tokens run through the model
  uint64_t prompt_rows = 0;  // of them, prompt tokens
  uint64_t generated = 0;    // tokens reported or ended by
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  double host_ms = 0;  // of whole steps: from the end of one's work on the device until the next is queued
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
  // The same under an id that the caller keeps unique.
  Status submit_as(RequestId id, Request request, Sink& sink);
  // What submit() would refuse. From any thread.
  Status validate(const Request& request) const;

  // It is removed in the next step; its sink hears of no token any more, only of the end. Unknown ids are
  // ignored (the request may just have ended).
  void cancel(RequestId id);
  void cancel_all();

  // One turn. False when there was nothing to do.
  bool step();
  void run_until_idle();
  bool idle() const { return scheduler_->idle(); }

  const ModelConfig& config() const { return model_->config(); }
  const MemoryPlan& memory() const { return plan_; }
  const EngineStats& stats() const { return stats_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  // Prompt and answer of one request can have so many tokens.
  int32_t most_tokens() const { return scheduler_->most_tokens(); }
  const Device& device() const { return *device_; }
  Device& device() { return *device_; }
  const DiskTier* disk() const { return disk_.get(); }
  Model& model() { return *model_; }
  int32_t context_tokens() const { return plan_.context_tokens; }
  int32_t ubatch_tokens() const { return options_.ubatch_tokens; }
  // Bytes of weights one decoding step reads.
  uint64_t step_read_bytes() { return model_->weights().step_read_bytes(model_->config()); }

  // Speculation; null: none. Needs max_drafts > 0. The drafter must outlive the engine or be replaced.
  void set_drafter(Drafter* drafter);
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

  bool turn();
  bool run_plan(Plan& plan, Clock::time_point begin);
  bool run_pieces(int32_t decoding);
  bool end_step(const Batch& batch, Plan& plan);
  void propose(Plan& plan);
  Verdict judge(const PlanItem& item);
  bool is_sound(int32_t output);
  std::string why_no_token(int32_t output, std::span<const uint64_t> allowed, Verdict& verdict);
  void fork(Plan& plan, std::vector<Verdict>& verdicts);
  void judge_path(const PlanItem& item, Verdict& verdict);
  void report_scores(const PlanItem& item);
  void commit(const Batch& batch, const Plan& plan, std::span<const Verdict> verdicts);
  void settle(const Plan& plan, std::span<Verdict> verdicts);
  void announce(Sequence& sequence);
  void finish(std::unique_ptr<Sequence> sequence, Finished end);
  Status plan_blocks(const EngineOptions& options);
  void plan_host_images(const EngineOptions& options);
  Status plan_disk(const EngineOptions& options);
  DiskKind disk_kind() const;
  SchedulerLimits scheduler_limits() const;
  std::span<const uint64_t> allowed_by(TokenMask* mask);
  std::span<const float> masked(std::span<const float> row, std::span<const uint64_t> allowed);
  // Logits of output row `output`; at least `together` rows from it on are valid until the next call.
  std::span<const float> logits_row(int32_t output, int32_t together);
  // The best of an output row, if the device has found them.
  std::optional<TopLogits> best_of(int32_t output) const;
  // Everything from the batch's upload to the best logits: what is recorded for plain decoding.
  void enqueue(const Batch& batch);
  void begin_outputs(const Plan& plan, const Batch& batch);
  // Logits of all outputs, their best, and those to the host.
  void find_best(const Batch& batch);
  void run(Batch& batch);
  // After it was waited for. False: it has failed, and everybody's request with it.
  bool device_works();
  void fail_all(const Error& error);
  Status allocate_best();
  Device::WorkspaceNeeds workspace_needs() const;
  StepSizes step_sizes() const;

  EngineOptions options_;
  std::unique_ptr<Device> device_;  // outlives everything that holds its memory
  std::unique_ptr<Model> model_;
  MemoryPlan plan_;
  CacheSizes sizes_;
  SequenceCache cache_;
  HostImages host_images_;
  Buffer checkpoint_memory_;
  Buffer swap_memory_;
  Buffer disk_memory_;
  size_t disk_write_bytes_ = 0;  // of disk_memory_; the rest is for reading
  Buffer logits_memory_;
  // Where the host cannot read the device's memory: the best logits of each row, and one whole row.
  Buffer best_memory_;
  Tensor best_values_, best_ids_, best_sums_;  // [logit rows, best], [.., best] i32, [.., 1]
  int32_t best_count_ = 0;
  int32_t best_rows_ = 0;  // that best_on_host_ holds for the current step
  Buffer best_on_host_;
  Buffer row_on_host_;           // of logits, or of what they are made of
  int32_t row_held_ = -1;        // output row in row_on_host_
  std::set<int32_t> warmed_up_;  // buckets that have run once
  PrefixHash fingerprint_;       // of everything that cached prefixes depend on
  Tensor logits_;                // [logit rows, V]
  int32_t logits_first_ = 0;     // output rows that logits_ holds now
  int32_t logits_count_ = 0;
  int32_t outputs_ = 0;        // of the current step
  int32_t max_rows_ = 0;       // of a step
  int32_t pieced_tokens_ = 0;  // of a chunk that is run in pieces, at most; 0: none are

  std::unique_ptr<DiskTier> disk_;  // its threads use disk_memory_
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepBatch> batch_;
  // The chunk that is being run in pieces.
  struct Pieces {
    Plan plan;
    Batch batch;
    StepCursor at;
  };
  std::optional<Pieces> pieces_;
  std::unique_ptr<StepBatch> piece_batch_;
  NewsQueue news_;
  bool late_news_ = false;  // clients hear of a step while the device works on the next
  bool disturbed_ = false;  // pieces have run since the last decoding step
  Drafter* drafter_ = nullptr;
  SamplerScratch scratch_;
  std::vector<uint64_t> mask_bits_;
  std::vector<uint64_t> open_bits_;  // of all tokens but closed_
  std::vector<int32_t> closed_;
  std::vector<float> masked_logits_;
  EngineStats stats_;
  Status health_;
  RequestId next_id_ = 1;
};

}  // namespace braid
