// memory_plan.h -- predicted and actual memory that the engine takes at start.
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
  exchange,        // mailboxes of ranks (ops/letter.h)
  drafts,          // batches and guesses of drafters
  block_books,     // bookkeeping of KV blocks and prefixes
  ngram_tables,    // of NgramDrafter
  fetched_logits,  // host copies, for a device with its own memory
  expert_copies,   // host copies of experts that do not all lie on their GPU
  checkpoints,
  swap,
  disk_staging
};
const char* memory_use_name(MemoryUse use);

struct MemoryRow {
  MemoryUse use = MemoryUse::weights;
  uint64_t predicted_bytes = 0;
  uint64_t actual_bytes = 0;  // 0 until taken
  // Host memory whatever the devices; in pool 0, of which it is a part if that is the host's.
  bool on_host = false;
  int32_t pool = 0;  // index into MemoryPlan::pools
};

// The memory of a device, or of several that share it.
struct MemoryPool {
  std::string name;              // "cuda:0"
  std::string layers;            // "0-31", for display
  uint64_t available_bytes = 0;  // free when the plan was made; UINT64_MAX: unknown
  bool own_memory = false;       // of the devices; else it is the host's
  uint64_t kv_token_bytes = 0;   // MemoryPlan's, of the pool's layers
  uint64_t kv_window_bytes = 0;
  int32_t expert_slots = 0;  // experts of each layer that lie there; 0: all
};

struct MemoryPlan {
  std::vector<MemoryRow> rows;
  std::vector<MemoryPool> pools = std::vector<MemoryPool>(1);
  int32_t context_tokens = 0;  // per sequence
  int32_t max_sequences = 0;
  uint64_t kv_token_bytes = 0;      // of one token's keys and values
  uint64_t kv_old_token_bytes = 0;  // of them, those kept after windows or exact rows have passed
  uint64_t kv_window_bytes = 0;     // KV blocks for windows or exact rows
  int32_t window_tokens = 0;        // the largest; 0: no windows
  int32_t exact_tokens = 0;         // exact tokens before a position; 0: no sealed blocks
  std::string_view k_type, v_type;  // formats of the cache
  int32_t experts = 0;              // of a layer
  // Bytes of a token in each suitable format, K and V alike, widest first.
  struct KvFormatBytes {
    std::string_view name;
    uint64_t token_bytes = 0;
  };
  std::vector<KvFormatBytes> kv_formats;

  // "host", or the name of the pool: "cuda:0".
  std::string place_of(const MemoryRow& row) const {
    const MemoryPool& pool = pools[static_cast<size_t>(row.pool)];
    return row.on_host || !pool.own_memory ? "host" : pool.name;
  }
  static constexpr int32_t kAllPools = -1;
  uint64_t predicted_bytes(int32_t pool = kAllPools) const;
  // Half of host memory stays free for other uses; of a device's own memory a twentieth or the
  // driver's need, at most a quarter.
  uint64_t spare_bytes(int32_t pool = 0) const;
  // What remains of a device's memory for KV blocks when `left` bytes are free.
  static uint64_t without_reserve(uint64_t left);
  uint64_t actual_bytes(int32_t pool = kAllPools) const;
  uint64_t predicted_bytes_of(MemoryUse use) const;
  void set_predicted(MemoryUse use, uint64_t bytes, int32_t pool = 0);
  void set_actual(MemoryUse use, uint64_t bytes, int32_t pool = 0);
  std::string table() const;
  std::string format_table() const;
  // Error: exhausted, with numbers and advice.
  Status check_fits() const;

 private:
  // In host memory beside devices that have their own.
  bool is_beside(const MemoryRow& row) const {
    return row.on_host && pools[static_cast<size_t>(row.pool)].own_memory;
  }
  bool counts(const MemoryRow& row, int32_t pool) const {
    return (pool == kAllPools || row.pool == pool) && !is_beside(row);
  }
  std::string one_pool_table() const;
  std::string pools_table() const;
  Status check_fits(int32_t pool) const;
};

std::string format_bytes(uint64_t bytes);

// MemAvailable, or less if a cgroup limits it; its page cache counts as free. `root` is "/" except
// in tests. UINT64_MAX: unknown.
uint64_t available_memory_bytes(const std::string& root = "/");

}  // namespace braid
