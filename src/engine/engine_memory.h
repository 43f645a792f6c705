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
#include "engine/stage_cuts.h"
#include "model/dflash/dflash.h"
#include "model/model.h"
#include "ops/devices.h"

namespace braid {

struct EngineMemory {
  Dflash* dflash = nullptr;  // a drafter with its own file; set it first

  // Also cuts the model into a stage for each device, and sets automatic KV formats in `options`.
  // Errors: invalid_argument, exhausted, unsupported.
  Status make_plan(EngineOptions& options, Model& model, Devices& devices);
  // Takes all memory except logits and disk staging. Errors: exhausted, and the file's.
  Status take(const EngineOptions& options, Model& model, Devices& devices);
  Status take_disk_staging(DiskTier& disk, const DiskKind& kind, Device& device);

  // Without an asked context, GPUs that hold less are too small for the model.
  static constexpr int32_t kUsefulContext = 32768;
  static int32_t choose_ubatch(const EngineOptions& options, const Model& model,
                               const Devices& devices);
  static int32_t most_rows(const EngineOptions& options);
  StepSizes step_sizes() const { return {max_rows, max_rows, interleaved_tokens, slots}; }
  // Valid after make_plan().
  int32_t last_pool() const { return pool_of[pool_of.size() - ranks_.size()]; }
  SchedulerLimits scheduler_limits(const EngineOptions& options, const ModelConfig& config) const;
  DiskKind disk_kind(const ModelConfig& config, const PrefixHash& fingerprint,
                     uint64_t guess_kind) const;

  MemoryPlan plan;
  CacheSizes sizes;
  int32_t max_rows = 0;            // of a step
  int32_t slots = 1;               // whole steps that may run
  int32_t interleaved_tokens = 0;  // at most; 0: no interleaved steps
  int32_t decoding_rows = 0;       // of a step of all sequences, with drafts
  int32_t logit_rows = 0;          // computed at once
  bool all_contexts_fit = false;   // the KV blocks are for max_sequences whole contexts
  bool rows_alone = true;          // DeviceTraits
  std::vector<int32_t> pool_of;    // [devices], of MemoryPlan::pools

  SequenceCache cache;
  HostImages host_images;
  Buffer checkpoint_memory;
  Buffer swap_memory;
  Buffer disk_memory;
  size_t disk_write_bytes = 0;  // of disk_memory; the rest is for reading

 private:
  Dflash::Sizes dflash_sizes(const EngineOptions& options) const;
  size_t activation_bytes(int32_t device, const EngineOptions& options, const Model& model,
                          const Devices& devices) const;
  size_t draft_bytes(const EngineOptions& options) const;
  // Without those of a drafter of its own file.
  Device::WorkspaceNeeds model_needs(const EngineOptions& options, const Model& model) const;
  Device::WorkspaceNeeds workspace_needs(const EngineOptions& options, const Model& model) const;
  void set_blocks(const EngineOptions& options, int64_t blocks);
  Status plan_blocks(const EngineOptions& options, const ModelConfig& config);
  void plan_books(const EngineOptions& options, const ModelConfig& config);
  void plan_host_images(const EngineOptions& options, const ModelConfig& config);
  Status plan_disk(const EngineOptions& options, const ModelConfig& config);
  Status plan_with(const EngineOptions& options, Model& model, Devices& devices);
  // UINT64_MAX: unknown.
  static uint64_t host_bytes(const EngineOptions& options);
  Status make_pools(const EngineOptions& options, const Devices& devices);
  // engine_memory_cut.cpp
  Status place_experts(const EngineOptions& options, Model& model, const Devices& devices);
  Status check_host_copies(const EngineOptions& options) const;
  Status cut(const EngineOptions& options, Model& model, Devices& devices);
  TrunkNeeds trunk_needs(const EngineOptions& options, Model& model, const Devices& devices) const;
  std::vector<StageRoom> stage_rooms(const EngineOptions& options, const Model& model,
                                     const Devices& devices) const;
  int32_t longest_context(const EngineOptions& options, const Model& model, const Devices& devices);
  bool blocks_fit(const EngineOptions& options) const;
  // Without draft heads.
  static ModelConfig trunk_of(ModelConfig config);
  static int64_t wanted_blocks(const EngineOptions& options, int32_t context);
  void plan_rows(const EngineOptions& options, Model& model, const Devices& devices);
  uint64_t planned_workspaces(const EngineOptions& options, const Model& model,
                              const Device& device) const;
  void plan_workspaces(const EngineOptions& options, const Model& model, const Devices& devices);
  void add_row(MemoryUse use, int32_t pool, uint64_t bytes);
  uint64_t kv_bytes_of_pool(int32_t pool) const;
  // Sums over the ranks.
  uint64_t kv_bytes() const;
  uint64_t block_bytes(int32_t group) const;
  uint64_t state_bytes() const;
  int32_t stage_of(size_t device) const { return static_cast<int32_t>(device / ranks_.size()); }
  int32_t rank_of(size_t device) const { return static_cast<int32_t>(device % ranks_.size()); }

  std::vector<const ModelConfig*> ranks_;  // Model::config_of
  Status plan_sealing(const EngineOptions& options, const ModelConfig& config);
  Status take_host_images(const EngineOptions& options, const ModelConfig& config, Device& device);
};

}  // namespace braid
