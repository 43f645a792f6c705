// backend.h -- the server's interface to the engine, in token ids; tests implement it too. Any
// thread may call any method; all return at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/draft_stats.h"
#include "engine/prefix/disk.h"
#include "engine/prompt_to_score.h"
#include "engine/request.h"

#include "ops/device.h"

namespace braid::server {

// A snapshot for /health, /metrics, /experts and /slots. Counters never decrease.
struct BackendStats {
  int32_t running = 0;  // running sequences, including those in prefill
  int32_t waiting = 0;  // accepted, not begun
  int32_t prefilling = 0;
  int32_t slots = 1;  // maximum of running sequences
  int64_t kv_blocks = 0, kv_blocks_used = 0;
  int64_t prefix_blocks = 0;  // with cached prefixes, in use or not; first KV group only
  int32_t block_tokens = 0;   // tokens per block
  int32_t state_slots = 0, state_slots_used = 0;  // of recurrent states
  int32_t checkpoints = 0, checkpoints_used = 0;  // of recurrent states, in host memory
  uint64_t steps = 0;
  uint64_t preempted = 0;  // swapped out or dropped for others, resumed later
  uint64_t evicted_blocks = 0, evicted_checkpoints = 0;  // of the prefix cache
  uint64_t prompt_tokens = 0;                            // run through the model
  uint64_t cached_tokens = 0;  // prompt tokens that were not computed again
  uint64_t generated_tokens = 0;
  uint64_t drafted_tokens = 0, accepted_tokens = 0;
  DraftStats drafts;
  bool has_disk = false;  // prefixes are kept in files too
  DiskStats disk;
  // Allocated at the engine's start. Untouched host pages are not resident.
  struct MemoryBytes {
    std::string use, place;  // "weights", "host" or "cuda:0"
    uint64_t bytes = 0;
  };
  std::vector<MemoryBytes> memory_bytes;
  int32_t scoring = 0;                     // prompts that are scored, or wait for it
  std::vector<ExpertLayer> expert_layers;  // of GPUs that keep a part of the experts
  bool alive = true;                       // false: requests will never finish
  double stalled_ms = 0;                   // since the last step while there was work; 0 when idle
};

class Backend {
 public:
  virtual ~Backend() = default;

  // `sink` is called on the backend's thread, finished() last. Errors: invalid_argument (it can
  // never run), exhausted (queue full), cancelled (shutting down).
  virtual Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink) = 0;

  // Ends it soon with FinishReason::cancelled, unless it ended already. Ignores unknown ids.
  virtual void cancel(RequestId id) = 0;

  // Scores a prompt by the model that compresses prompts; `prompt.id` is set here. Errors:
  // unsupported (there is none), exhausted (queue full), cancelled (shutting down), after which
  // `prompt.done` is not called.
  virtual Result<RequestId> score(PromptToScore prompt) {
    return Error{ErrorKind::unsupported, "no model that compresses prompts is loaded"};
  }
  virtual void cancel_score(RequestId id) {}

  virtual BackendStats stats() const = 0;
  virtual int32_t context_tokens() const = 0;  // limit of prompt and answer of one sequence
};

}  // namespace braid::server
