// memory_plan.h -- all memory the engine takes at start, predicted before anything is loaded, and what it
// became.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid {

enum class MemoryUse : uint8_t {
  weights,
  kv_blocks,
  state_slots,
  activations,
  logits,
  workspaces,
  drafts,          // batches and guesses of drafters
  block_books,     // who holds which KV block, and what can be found
  ngram_tables,    // of the drafter that looks up what was said before
  fetched_logits,  // beside a device that has its own memory: what the host reads of them
  checkpoints,
  swap,
  disk_staging
};
const char* memory_use_name(MemoryUse use);

struct MemoryRow {
  MemoryUse use = MemoryUse::weights;
  uint64_t predicted_bytes = 0;
  uint64_t actual_bytes = 0;  // 0 until taken
  bool on_host = false;       // beside a device that has its own memory
};

struct MemoryPlan {
  std::vector<MemoryRow> rows;
  uint64_t available_bytes = 0;  // what the machine had free when the plan was made
  bool own_memory = false;       // the device's: rows on the host do not count against it
  int32_t context_tokens = 0;    // per sequence
  int32_t max_sequences = 0;
  uint64_t kv_token_bytes = 0;      // of one token's keys and values
  uint64_t kv_old_token_bytes = 0;  // of them, what stays when windows or what is read exact have passed it
  uint64_t kv_window_bytes = 0;     // of the KV blocks, those that hold windows or what is read exact
  int32_t window_tokens = 0;        // the largest; 0: no layer has one
  int32_t exact_tokens = 0;         // before a position, where older blocks are sealed; 0: none are
  std::string_view k_type, v_type;  // formats of the cache
  // What a token would take in each format that fits the model, K and V alike, widest first.
  struct KvFormatBytes {
    std::string_view name;
    uint64_t token_bytes = 0;
  };
  std::vector<KvFormatBytes> kv_formats;

  uint64_t predicted_bytes() const;
  // What the other parts leave for KV blocks. Of host memory half stays free: for the page cache, for other
  // programs, for what text and clients need; of a device's own a twentieth, or what its driver takes, but never more
  // than a quarter.
  uint64_t spare_bytes() const;
  uint64_t actual_bytes() const;
  void set_predicted(MemoryUse use, uint64_t bytes);
  void set_actual(MemoryUse use, uint64_t bytes);
  // A table for people, a few lines; actual bytes only when there are any.
  std::string table() const;
  // The same of kv_formats: bytes of a token and of a context.
  std::string format_table() const;
  // Error: exhausted, with the numbers and what would help.
  Status check_fits() const;
};

// "1.25 GiB", "33.0 MiB", "512 B".
std::string format_bytes(uint64_t bytes);

// Memory this process can still take: MemAvailable, or less where a cgroup (v1 or v2, any level) limits it.
// Page cache of the cgroup counts as free. `root` is "/" except in tests. UINT64_MAX when the system does not
// say.
uint64_t available_memory_bytes(const std::string& root = "/");

}  // namespace braid
