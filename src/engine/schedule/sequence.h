// sequence.h -- one generation, its fields grouped by the part that may change them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/prefix/block_pool.h"
#include "engine/prefix/prefix_hash.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace braid {

using Clock = std::chrono::steady_clock;

// Between steps, a running sequence satisfies:
// - computed_tokens < tokens.size(), and == tokens.size() - 1 while it decodes.
// - Positions [0, computed_tokens) are in the KV cells and in the state slot.
// - blocks[g].size() == blocks_for(computed_tokens); with a window the first left_behind are kGone.
// - in_flight_tokens == 0, or some layers of the slot are ahead and it must not be copied.
// - prefix.hashes has an entry per full block; the first prefix.published_blocks are published.
// While its steps run, the device reaches this state when it has done all that is queued. Tokens
// are judged, and blocks published, when their step has ended.
// A waiting one holds no blocks and no slot; a preempted one maybe host copies.
struct Sequence {
  RequestId id = 0;
  Request request;
  Sink* sink = nullptr;
  uint64_t order = 0;  // of arrival

  // Progress: set by the engine at the end of a step, read by the scheduler.
  std::vector<int32_t> tokens;  // prompt, then generated ones
  int32_t computed_tokens = 0;  // K, V and state are in memory
  // Rows from computed_tokens on that ran partly or are NaN: their cells and state are invalid.
  int32_t in_flight_tokens = 0;
  int32_t steps = 0;          // running whole steps with rows of it
  int32_t queued_tokens = 0;  // rows of the last of these, from computed_tokens on; 0: none
  Sampler sampler;
  bool cancelled = false;
  bool announced = false;     // started() was reported
  int32_t scored_tokens = 0;  // prompt positions with reported logits
  int32_t seen_tokens = 0;    // seen by the draft vocabulary

  // Device memory: set by the scheduler.
  BlockTable blocks[kKvGroups];
  int32_t left_behind = 0;    // released blocks of group 1
  int32_t sealed_blocks = 0;  // of group 0; the engine counts those sealed by a step
  int32_t slot = -1;
  uint64_t entry = 0;   // number of this admission: tables are valid for it only
  uint64_t copies = 0;  // last copy (CacheBytes) to wait for; 0: none

  // Shared through the prefix cache: set by the scheduler.
  struct Prefix {
    PrefixHash seed;                 // of the empty prefix, for this model and salt
    std::vector<PrefixHash> hashes;  // [full blocks of tokens]
    int32_t published_blocks = 0;    // of the table
    // Future checkpoints, or positions whose window blocks are kept; ascending.
    std::vector<ResumePoint> checkpoints;
    int32_t cached_tokens = 0;   // of the prompt, found at first admission
    int32_t offered_tokens = 0;  // offered to the disk, without state
  } prefix;

  // Reasons to wait besides memory: set by the scheduler.
  struct Wait {
    bool was_held_back = false;  // has waited for another's prefix
    RequestId prefix_of = 0;     // waits until its prompt reaches until_tokens
    int32_t until_tokens = 0;
    uint64_t disk_load = 0;  // load to wait for; 0: none
    int32_t disk_loads = 0;  // loads begun for its prefix
    // Memory was short at this entries_and_exits_, with these spare blocks.
    std::optional<uint64_t> blocked_at;
    std::array<int64_t, kKvGroups> spare_blocks{};
    size_t overtaken = 0;  // sequences that overtook it
  } wait;

  // While preempted: set by the scheduler.
  struct Preempted {
    int32_t checkpoint = -1;  // pinned, at `tokens`
    int32_t tokens = 0;       // computed when it was preempted
    // Host images; empty: to be found or recomputed.
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
  void extend_hashes() {
    while ((prefix.hashes.size() + 1) * kBlockTokens <= tokens.size())
      prefix.hashes.push_back(
          chain_hash(prefix_hash(static_cast<int32_t>(prefix.hashes.size())),
                     std::span(tokens).subspan(prefix.hashes.size() * kBlockTokens, kBlockTokens)));
  }
};

}  // namespace braid
