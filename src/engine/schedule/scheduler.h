// scheduler.h -- which sequences run, how far each goes in the next step, and which memory they
// get.
//
// Steps. A step carries every decoding sequence (one certain token each), then chunks of prompts by
// priority and arrival, up to max(ubatch_tokens, step_tokens - decoding) tokens. A chunk ends where
// a checkpoint is due (plan_checkpoints()). If gap_limit bounds the inter-token latency, prompts
// run between decoding steps instead (plan_interleaved(), pacer.h).
//
// Memory. A sequence enters when there are a slot and free blocks for its tokens, beside what
// running prompts still need and one spare block for each running sequence. If none runs, it enters
// at once. Blocks are given as sequences grow. If they run out, the youngest sequence of the lowest
// priority is preempted: its state, and perhaps its blocks, are copied to the host, and it
// continues later with the same tokens. With answers_by_rows, tokens of an answer are then
// recomputed one per step.
//
// Steps ahead. On several stages steps may be planned while others run (plan_ahead()): of sequences
// without a running step, or of a prompt's next chunk. Then no sequence enters or is preempted. So
// that there are groups of sequences to alternate, a step carries its share of the decoding ones.
//
// Block-sparse prompts (exact_tokens). Chunks of kSparseRows rows or more attend to a part of the
// context. They end before a prompt's last exact_tokens, else at a checkpoint or at a multiple of
// kSparseBlock. What follows, and answers that are recomputed, run in shorter chunks.
//
// Progress. The first running sequence is part of every plan, has a chunk in progress, or waits for
// its token mask. Only one that precedes it may preempt it, so it finishes.
//
// Prefixes. A prompt with the same beginning as a running one waits for it, with a checkpoint where
// they part; an equal prompt is forked. A prompt that parts from a known prefix leaves a checkpoint
// there. A request without cache shares nothing; its copies are private. A prefix on disk (disk.h)
// is read into the cache while its prompt waits.
//
// Waiting. Sequences whose mask is not ready, or whose memory is being copied (CacheBytes), keep
// their place and skip steps. If no sequence can run, steps wait for the copies.
//
// Windows. In models without recurrent state, layers with a window are a KV group of their own
// (ops/state.h). Blocks before the window are released after each step and stay findable until
// reused, last where a resume is expected. A prefix needs all blocks in group 0, and the window's
// in group 1.
//
// Sealed blocks. Group 0 holds the units, which are shared, found and swapped like other blocks.
// Group 1 holds each sequence's exact rows, which checkpoints copy. So prefixes are resumed only at
// checkpoints.
//
// A sequence without slot or memory preempts running ones of lower priority, last first, if that
// suffices. Otherwise at most kMostOvertakers others overtake it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/prefix/block_pool.h"
#include "engine/prefix/checkpoints.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/prefix/state_slots.h"
#include "engine/schedule/pacer.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_plan.h"
#include "ops/sparse_prefill.h"

namespace braid {

enum class Preemption : uint8_t { cheaper, recompute, swap };

// Last tokens of a prompt that attend to everything. They ask what the others are read for.
inline constexpr int32_t kSparseExactTokens = 2 * kSparseBlock;

struct SchedulerLimits {
  int32_t context_tokens = 0;   // positions one sequence may reach
  int32_t ubatch_tokens = 512;  // prompt tokens that always fit a step
  int32_t step_tokens = 0;      // all tokens of a step; 0: ubatch_tokens
  int32_t max_drafts = 0;       // uncertain tokens of one sequence in one step
  double gap_limit = 3.95;      // longest token gap beside a prompt, in undisturbed steps; 0: off
  bool prefix_cache = true;
  bool recurrent = true;  // resume only at checkpoints: the model has state, or blocks are sealed
  int32_t window = 0;     // positions that KV group 1 sees (then not recurrent); 0: none
  bool seals = false;     // KV group 1 holds exact rows
  KvTail tail;            // which rows stay exact
  int32_t checkpoint_interval = 0;  // tokens between checkpoints; 0: off
  int32_t checkpoint_spacing = 64;  // minimum distance in one prompt
  Preemption preemption = Preemption::cheaper;
  bool answers_by_rows = false;  // tokens of an answer always run singly
  int32_t exact_tokens = 0;      // last ones of a block-sparse prompt; 0: no prompt is
};

struct SchedulerStats {
  uint64_t preempted = 0;
  uint64_t swapped = 0;  // of them, with their blocks
  uint64_t forked = 0;
  uint64_t checkpoints = 0;  // taken
  uint64_t resumed = 0;      // sequences that started at a checkpoint
  uint64_t cached_tokens = 0;
  uint64_t held_back = 0;  // waited for another's prefix
  uint64_t from_disk = 0;  // prefixes loaded
  uint64_t lookups = 0;    // prefix searches for waiting sequences
};

// Owned by the caller.
struct HostImages {
  std::byte* checkpoints = nullptr;  // [checkpoint_count][checkpoint_bytes]
  int32_t checkpoint_count = 0;
  struct Swap {
    std::byte* memory = nullptr;  // [count][block_bytes]
    int32_t count = 0;
  } swap[kKvGroups];
};

class DiskTier;
struct PrefixKey;

class Scheduler {
 public:
  static size_t checkpoint_bytes(const CacheBytes& bytes, const SchedulerLimits& limits);
  // Group 1 needs blocks for a window or the exact rows, and a chunk.
  Scheduler(const SchedulerLimits& limits, const int32_t (&blocks)[kKvGroups], int32_t slots,
            CacheBytes& bytes, const HostImages& host);

  // The context, or what all blocks hold.
  int32_t most_tokens() const;

  // `sequence` needs tokens, request and seed.
  void enqueue(std::unique_ptr<Sequence> sequence);
  Sequence* find(RequestId id);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // While no step runs: admits sequences and plans the next step. Every item's blocks cover its
  // certain rows. `groups`: of decoding sequences, in as many steps that run at a time.
  StepPlan plan(Clock::time_point now, int32_t groups = 1);
  // While steps run.
  StepPlan plan_ahead(int32_t groups);
  // Something waits for a moment without running steps.
  bool wants_rest() const;
  // A planned step has been queued, or has ended; its items are committed next.
  static void queued(const StepPlan& plan);
  static void ended(const StepPlan& plan);
  // The item's tokens, up to its last accepted draft, are computed.
  static void advance(const StepItem& item, int32_t accepted);
  // Cells and state of `s` are unknown from a position on. No running step has rows of it any more.
  static void withdraw(Sequence& s, int32_t from);
  // At most one item, between decoding steps. It runs until committed(), or until its
  // `in_flight_tokens` is 0 (cancelled, preempted).
  StepPlan plan_interleaved(int32_t most);
  bool interleaves() const;
  // Decodes, or recomputes its answer one token per step.
  bool goes_by_rows(const Sequence& s) const {
    return s.decoding() ||
           (limits_.answers_by_rows && s.generated() > 0 && s.computed_tokens >= s.prompt_tokens());
  }
  Pacer& pacer() { return pacer_; }

  // Call after a step, with more tokens in `s`. Publishes full blocks below `judged`, takes a due
  // checkpoint.
  void committed(Sequence& s, int32_t judged);

  // How far an answer of `tokens` may grow in one step, without passing its next checkpoint.
  int32_t tokens_to_checkpoint(const Sequence& s, int32_t tokens) const;

  // Before commit, when a prompt ends without drafts: starts waiting sequences with an equal
  // prompt, with shared blocks and a copy of its state.
  std::vector<Sequence*> fork(Sequence& s);

  void cancel_all();
  // Removes all without using the device, which has failed.
  std::vector<std::unique_ptr<Sequence>> remove_all();
  // `keep`: the state is worth a checkpoint. In-flight cells may hold NaN and are cleared.
  std::unique_ptr<Sequence> remove(Sequence* sequence, bool keep);
  // Returns the cancelled sequences without running steps, which are removed already.
  std::vector<std::unique_ptr<Sequence>> remove_cancelled();

  // Null: no disk. It must have its staging, outlive the last plan(), committed() and remove(), and
  // not be combined with a window.
  void set_disk(DiskTier* disk);
  // When no sequence runs: waits for queued copies, so that the disk gets the last checkpoints.
  void all_queued_is_done();

  int32_t groups() const { return limits_.window > 0 || limits_.seals ? 2 : 1; }
  BlockPool& blocks(int32_t group = 0) { return pools_[group]; }
  const BlockPool& blocks(int32_t group = 0) const { return pools_[group]; }
  SlotPool& slots() { return slots_; }
  const SlotPool& slots() const { return slots_; }
  const CheckpointStore& checkpoints() const { return checkpoints_; }
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  std::span<const std::unique_ptr<Sequence>> waiting() const { return waiting_; }
  const SchedulerStats& stats() const { return stats_; }
  // Grows the tables to `tokens` cells without preemption. False: blocks are short, no change.
  bool grow(Sequence& s, int32_t tokens);
  // Aborts on inconsistencies.
  void check() const;

 private:
  // The known part of a prefix.
  struct Hit {
    int32_t position = 0;          // where it can resume
    int32_t checkpoint = -1;       // with the state at `position`; -1: not needed
    int32_t known = 0;             // tokens whose full blocks are present, maybe more
    bool swapped = false;          // from the sequence's own copies
    BlockTable blocks[kKvGroups];  // below position; or kGone, kSwapped
  };
  static constexpr int32_t kSwapped = -2;  // in the sequence's swap images
  Hit lookup(const Sequence& s) const;
  Hit lookup_own(const Sequence& s) const;
  bool shares(const Sequence& s) const { return limits_.prefix_cache && s.request.use_cache; }
  bool keeps_checkpoints(const Sequence& s) const { return limits_.recurrent && shares(s); }
  bool held_back(Sequence& s, int32_t position);
  bool still_waits(const Sequence& s) const;
  // Groups whose blocks are published rather than copied into checkpoints.
  int32_t findable_groups() const { return limits_.window > 0 ? 2 : 1; }
  int32_t sinks() const { return limits_.seals ? limits_.tail.sink_blocks : 0; }
  // Released blocks of group 1.
  int32_t gone(const Sequence& s) const { return std::max(0, s.left_behind - sinks()); }
  bool is_gone(int32_t group, int32_t index, int32_t left_behind) const {
    return group == 1 && index < left_behind && index >= sinks();
  }
  void save_resume(const Sequence& s, std::byte* image);
  void load_exact_blocks(Sequence& s, const std::byte* image);
  bool is_being_copied(Sequence& s);
  bool order_after_copies();
  int32_t first_kept(int32_t group, int32_t computed) const;
  int64_t most_blocks(int32_t group, int64_t tokens) const;
  int64_t blocks_spoken_for(int32_t group, size_t without) const;
  int32_t victims_for(const Sequence& s, const Hit& hit) const;
  using Spare = std::array<int64_t, kKvGroups>;  // free blocks not promised to others
  Spare spare_blocks() const;
  bool still_blocked(const Sequence& s, const Spare& spare) const;
  void enter(std::unique_ptr<Sequence> sequence, const Hit& hit, Clock::time_point now);
  void restore(Sequence& s, const Hit& hit);
  void restore_blocks(Sequence& s, const Hit& hit);
  void forget_copies(Sequence& s);
  void plan_checkpoints(Sequence& s, int32_t known);
  int32_t add_checkpoint(Sequence& s, int32_t position);
  int32_t chunk(const Sequence& s, int32_t budget) const;
  int32_t sparse_rows(const Sequence& s, int32_t rows) const;
  bool leaves_one_alone(const Sequence& s, int32_t position) const;
  int32_t room_for(const Sequence& s, int32_t group) const;
  void clear_in_flight(Sequence& s);
  void shrink(Sequence& s, int32_t tokens);
  void leave_behind(Sequence& s, int32_t judged);
  void seal(Sequence& s);
  int32_t next_checkpoint(const Sequence& s, int32_t from, ResumeKind* kind = nullptr) const;
  bool put_checkpoint(int32_t id, const PrefixKey& key, ResumePoint point);
  int32_t checkpoint_below(const PrefixKey& key, int32_t position) const;
  bool make_findable(Sequence& s);
  int32_t take_checkpoint(Sequence& s, ResumeKind kind);
  void take_own_copy(Sequence& s);
  void admit(Clock::time_point now);
  StepPlan lay_out(int32_t groups);
  bool mixes() const;
  bool may_go_on(const Sequence& s) const;
  bool offers(const Sequence& s, int32_t position) const;
  bool grow_or_preempt(Sequence& s, int32_t tokens, const StepPlan& plan);
  bool make_private_or_preempt(Sequence& s, int32_t group, const StepPlan& plan);
  bool preempt_one(const Sequence& for_whom, const StepPlan& plan);
  void preempt(Sequence& victim);
  void keep_for_later(Sequence& victim);
  bool swap_out(Sequence& victim);
  void check_table(const Sequence& s, int32_t group) const;
  std::unique_ptr<Sequence> take_running(const Sequence* sequence);
  void insert_waiting(std::unique_ptr<Sequence> sequence);
  bool awaits_mask(StepPlan& plan, const Sequence& s);
  bool add_item(StepPlan& plan, Sequence& s, int32_t certain);
  int32_t add_chunk(StepPlan& plan, Sequence& s, int32_t budget);
  bool awaits_disk(Sequence& s, const Hit& hit);
  std::byte* swap_image(int32_t group, int32_t image) {
    return swap_memory_[group] + static_cast<size_t>(image) * bytes_.block_bytes(group);
  }
  void store_on_disk(Sequence& s, int32_t checkpoint = -1);
  void mark_load(std::span<const PrefixHash> chain);
  void promote_from_disk();
  void take_loaded_blocks();
  void publish_loaded_blocks();
  void promote_checkpoint();
  void add_loaded_blocks(std::vector<const BlockTable*>& tables) const;

  SchedulerLimits limits_;
  CacheBytes& bytes_;
  size_t resume_bytes_ = 0;  // state and exact blocks of a checkpoint; its partial block follows
  BlockPool pools_[kKvGroups];
  SlotPool slots_;
  CheckpointStore checkpoints_;
  SlotPool swap_images_[kKvGroups];
  std::byte* swap_memory_[kKvGroups];
  Pacer pacer_;
  DiskTier* disk_ = nullptr;
  SchedulerStats stats_;
  bool ahead_ = false;      // plans beside running steps
  bool was_short_ = false;  // blocks were, in a plan ahead
  uint64_t next_order_ = 1;
  uint64_t entries_and_exits_ = 0;  // of running_
  int64_t mask_steps_ = 0;          // allowance of masks before this step
  uint64_t loads_ended_ = 0;        // from disk
  // The current load from disk:
  std::optional<PrefixHash> load_mark_;  // of the part read so far
  int32_t load_checkpoint_ = -1;         // the image being filled
  // Blocks being copied to the device; findable afterwards.
  struct LoadedBlocks {
    int32_t first_block = 0;
    int32_t buffer = 0;           // of the tier, holds the images
    BlockTable table;             // holds them
    std::vector<int32_t> blocks;  // per image; negative: already computed, or no room
    uint64_t copies = 0;
  };
  std::deque<LoadedBlocks> loaded_blocks_;
  int32_t stored_checkpoints_ = 0;                  // pinned while the disk reads them
  std::vector<std::unique_ptr<Sequence>> waiting_;  // by priority, then arrival
  std::vector<std::unique_ptr<Sequence>> running_;  // by priority, then arrival
};

}  // namespace braid
