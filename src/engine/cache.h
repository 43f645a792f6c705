// cache.h -- the bytes of all sequences on a device: KV pools, state slots, and the journals of uncertain
// rows.
//
// Taken once at start. Who holds which block or slot is bookkeeping of blocks.h and states.h.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

struct CacheSizes {
  int32_t blocks = 0;        // of kBlockTokens cells, in every attention layer
  int32_t slots = 0;         // recurrent states
  int32_t journal_rows = 0;  // largest batch with uncertain rows; 0: no speculation
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;

  uint64_t kv_bytes(const ModelConfig& config) const;
  uint64_t slot_bytes(const ModelConfig& config) const;
  uint64_t journal_bytes(const ModelConfig& config) const;
};

class SequenceCache {
 public:
  // Errors: exhausted.
  Status allocate(Device& device, const ModelConfig& config, const CacheSizes& sizes);

  SequenceMemory memory() { return {kv_, delta_, journals_}; }
  uint64_t kv_bytes() const { return kv_memory_.size_bytes(); }
  uint64_t slot_bytes() const { return slot_memory_.size_bytes(); }
  uint64_t journal_bytes() const { return journal_memory_.size_bytes(); }

 private:
  std::vector<KvLayer> kv_;
  std::vector<DeltaLayer> delta_;
  std::vector<DeltaJournal> journals_;
  Buffer kv_memory_;
  Buffer slot_memory_;
  Buffer journal_memory_;
};

}  // namespace braid
