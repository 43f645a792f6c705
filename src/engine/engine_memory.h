// engine_memory.h -- all memory that the engine takes at start.
//
// make_plan() allocates nothing; take() follows it once. Host memory beside a device (checkpoints,
// swap, disk staging) is planned too.
#pragma once

#include "base/result.h"
#include "engine/engine_options.h"
#include "engine/memory_plan.h"
#include "engine/prefix/disk.h"
#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/scheduler.h"
#include "model/dflash/dflash.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

struct EngineMemory {
  Dflash* dflash = nullptr;  // a drafter with its own file; set it first

  // Also sets automatic KV formats in `options`. Errors: invalid_argument, exhausted, unsupported.
  Status make_plan(EngineOptions& options, Model& model, Device& device);
  // Takes all memory except logits and disk staging. Errors: exhausted, and the file's.
  Status take(const EngineOptions& options, Model& model, Device& device);
  Status take_disk_staging(DiskTier& disk, const DiskKind& kind, Device& device);

  static int32_t choose_ubatch(const EngineOptions& options, const Model& model,
                               const Device& device);
  static int32_t most_rows(const EngineOptions& options);
  StepSizes step_sizes() const { return {max_rows, max_rows, interleaved_tokens}; }
  // Valid after make_plan().
  SchedulerLimits scheduler_limits(const EngineOptions& options, const ModelConfig& config) const;
  DiskKind disk_kind(const ModelConfig& config, const PrefixHash& fingerprint,
                     uint64_t guess_kind) const;

  MemoryPlan plan;
  CacheSizes sizes;
  int32_t max_rows = 0;            // of a step
  int32_t interleaved_tokens = 0;  // at most; 0: no interleaved steps
  int32_t decoding_rows = 0;       // of a step of all sequences, with drafts
  int32_t logit_rows = 0;          // computed at once
  bool all_contexts_fit = false;   // the KV blocks are for max_sequences whole contexts

  SequenceCache cache;
  HostImages host_images;
  Buffer checkpoint_memory;
  Buffer swap_memory;
  Buffer disk_memory;
  size_t disk_write_bytes = 0;  // of disk_memory; the rest is for reading

 private:
  Dflash::Sizes dflash_sizes(const EngineOptions& options) const;
  size_t activation_bytes(const EngineOptions& options, const Model& model,
                          const Device& device) const;
  size_t draft_bytes(const EngineOptions& options) const;
  Device::WorkspaceNeeds workspace_needs(const EngineOptions& options, const Model& model) const;
  void set_blocks(const EngineOptions& options, int64_t blocks);
  Status plan_blocks(const EngineOptions& options, const ModelConfig& config);
  void plan_books(const EngineOptions& options, const ModelConfig& config);
  void plan_host_images(const EngineOptions& options, const ModelConfig& config);
  Status plan_disk(const EngineOptions& options, const ModelConfig& config);
  Status plan_with(const EngineOptions& options, Model& model, Device& device);
  Status plan_sealing(const EngineOptions& options, const ModelConfig& config);
  uint64_t exact_bytes(const ModelConfig& config) const;
  uint64_t checkpoint_bytes(const ModelConfig& config) const;
  Status take_host_images(const EngineOptions& options, const ModelConfig& config, Device& device);
};

}  // namespace braid
