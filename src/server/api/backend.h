// backend.h -- what the server asks of whoever generates tokens. Tests answer in its place.
//
// Token ids only, like the engine behind it. All methods may be called from any thread and return at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/disk/disk.h"
#include "engine/request/draft_stats.h"
#include "engine/request/request.h"

namespace braid::server {

// A snapshot for /health, /metrics and /slots. Counters never go back.
struct BackendStats {
  int32_t running = 0;  // sequences in work, those still in their prompt included
  int32_t waiting = 0;  // accepted, not begun
  int32_t prefilling = 0;
  int32_t slots = 1;  // sequences that may run at once
  int64_t kv_blocks = 0, kv_blocks_used = 0;
  int64_t prefix_blocks = 0;  // that hold prefixes, used or not: those of the first KV group
  int32_t block_tokens = 0;   // of one of them
  int32_t state_slots = 0, state_slots_used = 0;  // of recurrent states
  int32_t checkpoints = 0, checkpoints_used = 0;  // of recurrent states, in host memory
  uint64_t steps = 0;
  uint64_t preempted = 0;  // preempted: swapped out or dropped for others, resumed later
  uint64_t evicted_blocks = 0, evicted_checkpoints = 0;  // of the prefix cache
  uint64_t prompt_tokens = 0;                            // run through the model
  uint64_t cached_tokens = 0;                            // of prompts, not computed again
  uint64_t generated_tokens = 0;
  uint64_t drafted_tokens = 0, accepted_tokens = 0;
  DraftStats drafts;
  bool has_disk = false;  // prefixes are kept in files
  DiskStats disk;
  // What the engine has taken at its start, by use; pages of host memory that nobody has touched are not resident.
  std::vector<std::pair<std::string, uint64_t>> memory_bytes;
  bool alive = true;      // false: no request will ever finish again
  double stalled_ms = 0;  // since the last step while there was work; 0 when idle
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Queues a request. `sink` is called on the backend's thread, and its finished() is the last call. Errors:
  // invalid_argument (the request can never run), exhausted (queue full), cancelled (shutting down).
  virtual Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink) = 0;

  // The request ends soon with FinishReason::cancelled, unless it ended already. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;

  virtual BackendStats stats() const = 0;
  virtual int32_t context_tokens() const = 0;  // prompt and answer of one sequence
};

}  // namespace braid::server
