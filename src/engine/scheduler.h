// scheduler.h -- which sequences run, and how far each goes in the next step.
//
// Decoding sequences first, one certain token each; then prompts in order of arrival, in chunks, as long as
// the step's budget of prompt tokens lasts. A sequence is admitted when a slot is free and enough blocks can
// be promised for all it may ever hold; so a running sequence never runs short.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/blocks.h"
#include "engine/sequence.h"
#include "engine/states.h"

namespace braid {

struct SchedulerLimits {
  int32_t context_tokens = 0;   // positions one sequence may reach
  int32_t prompt_budget = 512;  // prompt tokens of one step, over all sequences
  int32_t max_drafts = 0;       // uncertain tokens of one sequence in one step
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, int32_t blocks, int32_t slots);

  // Blocks that a request may need at most; more than blocks().total() can never run.
  int32_t blocks_needed(const Request& request) const;

  void enqueue(std::unique_ptr<Sequence> sequence);
  Sequence* find(RequestId id);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // Admits what fits and lays out the next step. Every item's blocks cover its certain rows.
  Plan plan(Clock::time_point now);

  // Takes the sequence out, with everything it holds.
  std::unique_ptr<Sequence> remove(Sequence* sequence);
  // Those marked cancelled, waiting or running, already removed.
  std::vector<std::unique_ptr<Sequence>> remove_cancelled();

  BlockPool& blocks() { return blocks_; }
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  // Stops the program if pools and sequences do not balance.
  void check() const;

 private:
  void admit(Clock::time_point now);

  SchedulerLimits limits_;
  BlockPool blocks_;
  SlotPool slots_;
  int32_t promised_blocks_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
};

}  // namespace braid
