// sequence.h -- one running generation: its tokens, its memory, and how far it is. Its fields are grouped by
// who may touch them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/prefix/block_pool.h"
#include "engine/prefix/prefix_hash.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"

namespace braid {

using Clock = std::chrono::steady_clock;

// Always true between steps, for a running sequence:
//   computed_tokens < tokens.size(): there is something to run; == tokens.size() - 1 while it decodes
//   positions [0, computed_tokens) are in the KV cells and in the state slot;
//   each KV group's blocks.size() == blocks_for(computed_tokens); of a group with a window, those that no row
//   from computed_tokens on sees are given back: the first left_behind entries are kGone
//   in_flight_tokens == 0, or some layers of the slot are ahead of computed_tokens and nobody may copy it
//   prefix.hashes has one entry per full block of `tokens`; the first prefix.published_blocks blocks are full
// A sequence that waits holds no blocks and no slot; one that was preempted keeps its tokens, its sampler and
// perhaps copies of its memory on the host.
struct Sequence {
  // Fixed when it was submitted.
  RequestId id = 0;
  Request request;
  Sink* sink = nullptr;
  uint64_t order = 0;  // of arrival

  // Progress: the engine's at the end of a step; the scheduler only reads it.
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int32_t computed_tokens = 0;  // whose K, V and state change are in memory
  // Rows from computed_tokens on that a paused step has run through some layers, or whose numbers turned out
  // to be none: cells and state of them are nobody's.
  int32_t in_flight_tokens = 0;
  Sampler sampler;
  bool cancelled = false;
  bool announced = false;     // its sink knows that it has started
  int32_t scored_tokens = 0;  // prompt positions whose logits have been reported
  int32_t seen_tokens = 0;    // that the draft vocabulary knows

  // Device memory: the scheduler's.
  BlockTable blocks[kKvGroups];
  int32_t left_behind = 0;    // blocks of group 1
  int32_t sealed_blocks = 0;  // of group 0, whose units are there; the engine's where a step has sealed them
  int32_t slot = -1;
  uint64_t entry = 0;   // among all that have entered: its tables are this one's only until it is preempted
  uint64_t copies = 0;  // that bring what it goes on from (CacheBytes); 0: it is there

  // What it shares with others through the prefix cache: the scheduler's.
  struct Prefix {
    PrefixHash seed;                 // of the empty prefix, for this model and salt
    std::vector<PrefixHash> hashes;  // [full blocks of tokens]
    int32_t published_blocks = 0;    // of the table, offered to others already
    // Where the state, or what a window sees, is to be kept for others: ascending, not yet passed.
    std::vector<ResumePoint> checkpoints;
    int32_t cached_tokens = 0;   // of the prompt, found when it first entered
    int32_t offered_tokens = 0;  // to the disk, by a model without state
  } prefix;

  // What it waits for besides memory: the scheduler's.
  struct Wait {
    bool was_held_back = false;  // it has waited for another's prefix
    RequestId prefix_of = 0;     // for this one's prompt to reach until_tokens
    int32_t until_tokens = 0;
    uint64_t disk_load = 0;  // for this load from the disk; 0: for none
    int32_t disk_loads = 0;  // of its prefix that were begun
    // After so many entries and exits there was no memory for it, with so many blocks to spare.
    std::optional<uint64_t> blocked_at;
    std::array<int64_t, kKvGroups> spare_blocks{};
    size_t overtaken = 0;  // by so many meanwhile
  } wait;

  // While it is preempted: the scheduler's.
  struct Preempted {
    int32_t checkpoint = -1;  // pinned, at `tokens`
    int32_t tokens = 0;       // computed when it was preempted
    // Host images of its blocks; empty: to be found or computed again.
    std::vector<int32_t> blocks[kKvGroups];
  } preempted;

  struct Times {
    Clock::time_point submitted, started, first_token, last_token;
  } times;

  int32_t prompt_tokens() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t generated() const { return static_cast<int32_t>(tokens.size()) - prompt_tokens(); }
  int32_t pending() const { return static_cast<int32_t>(tokens.size()) - computed_tokens; }
  bool decoding() const { return generated() > 0 && pending() == 1; }
  const PrefixHash& prefix_hash(int32_t blocks_before) const {
    return blocks_before == 0 ? prefix.seed : prefix.hashes[static_cast<size_t>(blocks_before) - 1];
  }
  // One more hash per block that is full by now.
  void extend_hashes() {
    while ((prefix.hashes.size() + 1) * kBlockTokens <= tokens.size())
      prefix.hashes.push_back(
          chain_hash(prefix_hash(static_cast<int32_t>(prefix.hashes.size())),
                     std::span(tokens).subspan(prefix.hashes.size() * kBlockTokens, kBlockTokens)));
  }
};

}  // namespace braid
