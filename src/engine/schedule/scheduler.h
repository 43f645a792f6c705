// scheduler.h -- which sequences run, how far each goes in the next step, and what memory they get for it.
//
// A step carries every decoding sequence (one certain token each), then prompts in order of priority and
// arrival, in chunks, as long as the step's budget of prompt tokens lasts:
//   budget  max(ubatch_tokens, step_tokens - decoding)
//   chunk   ends at the next position where a checkpoint is due (few positions of a prompt:
//   plan_checkpoints())
// While sequences decode and their inter-token latency is bounded (gap_limit), prompts do not share their
// steps: plan_interleaved() hands out one chunk after the other, which goes through the layers between them
// (pacer.h).
//
// Blocks are given as sequences grow. A sequence enters when a slot is free and so are the blocks of its
// tokens that nobody holds yet, beside what the prompts of those who run still need and one block to spare
// for each of them; when nobody runs, it enters at once. When blocks run out all the same, the youngest
// sequence of the lowest priority is preempted: its state and perhaps its blocks are copied to the host, it
// waits in its old place, and goes on later with the same tokens as if nothing had been. Where results may not
// depend on that (answers_by_rows), tokens of an answer that have to be computed again run as they did at
// first: one a step, beside those who decode.
//
// The first in order of those who run takes part in every plan, or has a chunk under way, or waits for its
// token mask. Nobody takes anything from it, so it ends, whatever the others lose to each other, and then the
// next one is first. (Only one of higher priority, or an earlier one that comes back, gets before it.)
//
// A prompt that begins like one that is being computed waits for it (and has a checkpoint set where they
// part): prefixes are computed once. A prompt equal to one that has just been computed is forked from it.
// One that parts from a known prompt where there is no checkpoint leaves one there for the next.
//
// A request without cache takes nothing from others and leaves nothing that can be found; when it is
// preempted, what it keeps of itself are copies.
//
// A sequence whose token mask is not ready (request.h) keeps its place and its memory, and has no part in
// steps until it is.
//
// A prompt whose prefix is on disk (disk.h) waits while it is read into the cache, and then finds it there.
//
// Copies to and from the host run beside the steps (CacheBytes). A sequence that goes on from what is being copied
// keeps its place and has no part in steps until it has come; where nobody else has one, steps wait for it.
//
// Attention layers with a window are a KV group of their own (ops/state.h) in models without recurrent state.
// After each step the blocks behind a sequence's window are given back. They can be found until they are
// reused, and those that somebody is expected to go on from, where other models take checkpoints, are reused
// last: a prefix is there if all its blocks are in group 0 and what the window sees of it in group 1.
//
// Where blocks are sealed (ops/state.h), group 0 has their units, which are shared, found and swapped as
// others are, and group 1 the rows that the next positions read exact: each sequence has its own, they are
// given back like those behind a window, and checkpoints have copies of them. So a prefix is resumed at
// checkpoints only, whether the model has state or not.
//
// One for whom there is no slot or no memory takes the place of those who run with a lower priority, the last in
// order first, if that is enough. Else others overtake it, as they overtake those who wait for another's prefix or
// for the disk; after kMostOvertakers of them nobody does any more, until it has entered.
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

namespace braid {

enum class Preemption : uint8_t { cheaper, recompute, swap };

struct SchedulerLimits {
  int32_t context_tokens = 0;   // positions one sequence may reach
  int32_t ubatch_tokens = 512;  // prompt tokens a step may always carry
  int32_t step_tokens = 0;      // all tokens of a step; 0: ubatch_tokens
  int32_t max_drafts = 0;       // uncertain tokens of one sequence in one step
  double gap_limit = 3.95;      // inter-token latency beside a prompt, in undisturbed steps; 0: any
  bool prefix_cache = true;
  bool recurrent =
      true;            // a prefix is resumed at checkpoints only: the model has state, or blocks are sealed
  int32_t window = 0;  // KV group 1 sees so many positions (then not recurrent); 0: there is none
  bool seals = false;  // then KV group 1 are the rows that are read exact
  KvTail tail;         // which these are
  int32_t checkpoint_interval = 0;  // a checkpoint every so many tokens; 0: none on the way
  int32_t checkpoint_spacing = 64;  // checkpoints of one prompt are at least so far apart
  Preemption preemption = Preemption::cheaper;
  bool answers_by_rows = false;  // tokens of an answer are never run several at a time
};

struct SchedulerStats {
  uint64_t preempted = 0;
  uint64_t swapped = 0;  // of them, with their blocks copied
  uint64_t forked = 0;
  uint64_t checkpoints = 0;  // taken
  uint64_t resumed = 0;      // sequences that began at a checkpoint
  uint64_t cached_tokens = 0;
  uint64_t held_back = 0;  // sequences that waited for another's prefix
  uint64_t from_disk = 0;  // prefixes that were brought back into memory
  uint64_t lookups = 0;    // walks along a waiting sequence's prefix
};

// Host memory of the scheduler, owned by the caller.
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
  // Bytes of a checkpoint's image.
  static size_t checkpoint_bytes(const CacheBytes& bytes, const SchedulerLimits& limits);
  // `blocks`: of each KV group; of group 1 enough for a window, or what is read exact, and a chunk.
  Scheduler(const SchedulerLimits& limits, const int32_t (&blocks)[kKvGroups], int32_t slots,
            CacheBytes& bytes, const HostImages& host);

  // Tokens that one sequence can reach: context_tokens, or what all blocks hold.
  int32_t most_tokens() const;

  // `sequence` needs tokens, request and seed.
  void enqueue(std::unique_ptr<Sequence> sequence);
  Sequence* find(RequestId id);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // Admits what fits and lays out the next step. Every item's blocks cover its certain rows.
  StepPlan plan(Clock::time_point now);
  // A chunk to be interleaved with decoding steps, at most `most` tokens: one item, or none. Until
  // committed(), or until its `in_flight_tokens` is 0 for another reason (cancelled, preempted), it runs.
  StepPlan plan_interleaved(int32_t most);
  // Has someone's chunk under way.
  bool interleaves() const;
  // Behind its prompt: it decodes, or comes back to where it did one token a step.
  bool goes_by_rows(const Sequence& s) const {
    return s.decoding() ||
           (limits_.answers_by_rows && s.generated() > 0 && s.computed_tokens >= s.prompt_tokens());
  }
  Pacer& pacer() { return pacer_; }

  // After the step: `s` holds more tokens now. Publishes full blocks, takes the checkpoint that is due.
  void committed(Sequence& s);

  // How many tokens an answer that has come to `tokens` may grow by in one step: to the place of its next
  // checkpoint, which is taken where it would be if tokens came one by one.
  int32_t tokens_to_checkpoint(const Sequence& s, int32_t tokens) const;

  // Before commit, when the prompt of `s` ends in this step without drafts: waiting sequences with the same
  // prompt, running now with shared blocks and a copy of the state after the prompt.
  std::vector<Sequence*> fork(Sequence& s);

  void cancel_all();
  // Everybody, without a look at the device: it has failed.
  std::vector<std::unique_ptr<Sequence>> remove_all();
  // Takes the sequence out, with everything it holds. `keep`: its state is worth a checkpoint. What it has
  // under way may hold what is no number: those cells are cleared.
  std::unique_ptr<Sequence> remove(Sequence* sequence, bool keep);
  // Those marked cancelled, waiting or running, already removed.
  std::vector<std::unique_ptr<Sequence>> remove_cancelled();

  // Persistent prefixes (disk.h), with their staging set; null: none. It outlives the last call of plan(),
  // committed() and remove(). Not with a window.
  void set_disk(DiskTier* disk);
  // Nobody runs: waits for what is queued on the device, so that the disk gets what was kept last.
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
  // Grows the tables to `tokens` cells without preempting anybody. False, and nothing changed, if blocks are
  // short.
  bool grow(Sequence& s, int32_t tokens);
  // Stops the program if pools and sequences do not balance.
  void check() const;

 private:
  // What is there of a sequence's beginning.
  struct Hit {
    int32_t position = 0;          // it can go on from here
    int32_t checkpoint = -1;       // whose image is the state at `position`; -1: none is needed
    int32_t known = 0;             // tokens whose full blocks are here, perhaps more than `position`
    bool swapped = false;          // the sequence's own copies
    BlockTable blocks[kKvGroups];  // below position; or kGone, or kSwapped
  };
  static constexpr int32_t kSwapped = -2;  // in the sequence's swap images
  Hit lookup(const Sequence& s) const;
  Hit lookup_own(const Sequence& s) const;
  bool shares(const Sequence& s) const { return limits_.prefix_cache && s.request.use_cache; }
  bool keeps_checkpoints(const Sequence& s) const { return limits_.recurrent && shares(s); }
  bool held_back(Sequence& s, int32_t position);
  bool still_waits(const Sequence& s) const;
  // Groups whose blocks are published and found, rather than copied into checkpoints.
  int32_t findable_groups() const { return limits_.window > 0 ? 2 : 1; }
  int32_t sinks() const { return limits_.seals ? limits_.tail.sink_blocks : 0; }
  // Blocks of group 1 that it has let go of.
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
  using Spare = std::array<int64_t, kKvGroups>;  // free blocks beside those that others have been promised
  Spare spare_blocks() const;
  bool still_blocked(const Sequence& s, const Spare& spare) const;
  void enter(std::unique_ptr<Sequence> sequence, const Hit& hit, Clock::time_point now);
  void restore(Sequence& s, const Hit& hit);
  void restore_blocks(Sequence& s, const Hit& hit);
  void forget_copies(Sequence& s);
  void plan_checkpoints(Sequence& s, int32_t known);
  int32_t add_checkpoint(Sequence& s, int32_t position);
  int32_t chunk(const Sequence& s, int32_t budget) const;
  bool leaves_one_alone(const Sequence& s, int32_t position) const;
  int32_t room_for(const Sequence& s, int32_t group) const;
  void clear_in_flight(Sequence& s);
  void shrink(Sequence& s, int32_t tokens);
  void leave_behind(Sequence& s);
  void seal(Sequence& s);
  int32_t next_checkpoint(const Sequence& s, int32_t from, ResumeKind* kind = nullptr) const;
  bool put_checkpoint(int32_t id, const PrefixKey& key, ResumePoint point);
  int32_t checkpoint_below(const PrefixKey& key, int32_t position) const;
  bool make_findable(Sequence& s);
  int32_t take_checkpoint(Sequence& s, ResumeKind kind);
  void take_own_copy(Sequence& s);
  void admit(Clock::time_point now);
  StepPlan lay_out();
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
  size_t resume_bytes_ = 0;  // of a checkpoint: state and exact blocks; group 0's open block follows
  BlockPool pools_[kKvGroups];
  SlotPool slots_;
  CheckpointStore checkpoints_;
  SlotPool swap_images_[kKvGroups];
  std::byte* swap_memory_[kKvGroups];
  Pacer pacer_;
  DiskTier* disk_ = nullptr;
  SchedulerStats stats_;
  uint64_t next_order_ = 1;
  uint64_t entries_and_exits_ = 0;  // of running_
  int64_t mask_steps_ = 0;          // that masks may still take before this step
  uint64_t loads_ended_ = 0;        // from the disk
  // The load from the disk that is under way:
  std::optional<PrefixHash> load_mark_;  // of what has been read
  int32_t load_checkpoint_ = -1;         // its image is filled
  // Blocks that were read and are being copied to the device; then others find them.
  struct LoadedBlocks {
    int32_t first_block = 0;
    int32_t buffer = 0;           // of the tier, with their images
    BlockTable table;             // holds them
    std::vector<int32_t> blocks;  // of all images, below 0: computed meanwhile, or no room
    uint64_t copies = 0;
  };
  std::deque<LoadedBlocks> loaded_blocks_;
  int32_t stored_checkpoints_ = 0;                  // that the disk reads, pinned for it
  std::vector<std::unique_ptr<Sequence>> waiting_;  // by priority, then arrival
  std::vector<std::unique_ptr<Sequence>> running_;  // by priority, then arrival
};

}  // namespace braid
