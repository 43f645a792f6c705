// engine_options.h -- everything that is chosen when an engine starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "model/weights.h"
#include "ops/device.h"
#include "ops/state.h"

namespace braid {

struct TestHooks {
  bool poison_unused = false;   // fill unused memory with values that corrupt any sum
  uint64_t shuffle_blocks = 0;  // seed of a random order of free blocks; 0: off
  bool late_events = false;     // deliver events during the next step on any device
  enum class Fault : uint8_t { none, passing, lasting };
  Fault fault = Fault::none;  // the device fails in step `fault_step`
  uint64_t fault_step = 0;
  int32_t fault_device = 0;  // of Devices
};

// Drafters, see draft/: prompt lookup, the model's own head, a drafter with its own file.
// Automatic: the drafter's file if given, else the head if the model has one; n-grams with few
// sequences or without both. With `deterministic`: the drafter's file or none.
enum class SpecType : uint8_t { none, ngram, mtp, dflash, automatic };

class SpecTypes {
 public:
  constexpr SpecTypes(SpecType one) : bits_(bit(one)) {}
  constexpr bool has(SpecType one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool none() const { return bits_ == 0; }
  constexpr void add(SpecType one) { bits_ |= bit(one); }
  constexpr void remove(SpecType one) { bits_ &= ~bit(one); }
  constexpr bool operator==(const SpecTypes&) const = default;

 private:
  static constexpr uint32_t bit(SpecType one) {
    return one == SpecType::none ? 0 : uint32_t{1} << static_cast<int>(one);
  }
  uint32_t bits_;
};

// How several devices share a model: each has some layers, or a shard of each layer. Automatic: one
// device if the model and all contexts fit it, else layers.
enum class Split : uint8_t { none, layer, tensor, automatic };

struct EngineOptions {
  int32_t context_tokens = 0;    // per sequence; 0: the model's, or less if memory is short
  int32_t max_sequences = 1;     // running at the same time
  int32_t ubatch_tokens = 512;   // prompt tokens a step may always carry; 0: automatic
  int32_t max_batch_tokens = 0;  // of a step, if larger; 0: ubatch_tokens
  double gap_limit = 3.95;       // limit of token gaps beside prompts, in undisturbed steps; 0: off
  // Another engine's sequences decode on the same thread (Engine::step_beside()).
  bool beside_another = false;
  // Drafts per sequence and step, and the longest chain; 0: the drafters' default.
  int32_t max_drafts = 0;
  int32_t draft_depth = 0;
  bool draft_trees = false;  // the most probable paths; else chains
  SpecTypes spec_type = SpecType::none;
  bool spec_always = false;  // draft even at a loss (draft/budget/draft_budget.h)
  float draft_p_min = 0;     // smallest probability of a network's drafts
  // Recently seen tokens that the head may guess; 0: all, -1: some of a large vocabulary.
  int32_t draft_vocabulary = -1;
  std::string draft_model;  // the drafter's file or folder
  // Newest positions that attention layers see; 0: all.
  int32_t attention_window = 0;
  // Block-sparse attention of prompts, an approximation (ops/sparse_prefill.h): its threshold, at
  // most 1; 0: off. Steps must be able to carry kSparseRows rows. Not with `deterministic`: a row's
  // result depends on how its prompt is cut into steps.
  float sparse_threshold = 0;
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;
  // Codecs of full blocks, both or neither (null). Rows are f16 until sealed (ops/state.h).
  const KvCodec* k_codec = nullptr;
  const KvCodec* v_codec = nullptr;
  KvTail kv_tail;  // what stays exact nevertheless
  // Use the widest formats in which all contexts fit (engine_memory.cpp).
  bool kv_auto = false;
  // "cpu", "cuda", "cuda:1", "ref" or "auto"; several, with commas, share the model (Split). A CPU
  // before GPUs has the first layers.
  std::string device = "cpu";
  Split split = Split::automatic;
  std::vector<double> split_ratio;  // shares of the devices; empty: chosen
  // Last layers on GPUs; the CPU has the others. -1: all, or those that fit.
  int32_t gpu_layers = -1;
  // Experts of a layer that lie on its GPU, which reads the others from host memory; or one of the
  // following.
  int32_t expert_slots = kAutomaticExperts;
  std::string expert_profile;  // file (expert_profile.h): read at the start, written at the end
  static constexpr int32_t kAllExperts = 0;
  static constexpr int32_t kAutomaticExperts = -1;  // all, or those that fit if the model does not
  static constexpr int32_t kFittingExperts = -2;    // those that fit beside a useful context
  // As far as is known: automatic ones are planned with all first.
  bool keeps_all_experts() const {
    return expert_slots == kAllExperts || expert_slots == kAutomaticExperts;
  }
  // Threads of the CPU compute some of the experts that are missing on a GPU (DeviceOptions).
  bool experts_on_cpu = true;
  int threads = 0;  // 0: the device chooses
  Activations activations = Activations::i8;
  bool deterministic = false;  // a request's bytes depend only on the request (DeviceOptions)
  // Limits of GPU 0, 1 ..., or one for all; 0: what is free.
  std::vector<uint64_t> gpu_memory_bytes;
  uint64_t host_memory_bytes = 0;  // limit of CPUs; 0: what is free
  // For plan_memory(): GPUs of gpu_memory_bytes, which are not there.
  bool planned_gpus = false;
  uint64_t kv_memory_bytes = 0;     // KV blocks; 0: all contexts, less if memory is short
  int64_t state_memory_bytes = -1;  // checkpoints in host memory; -1: automatic, 0: none
  // Limit of the automatic number; 0: a few per sequence.
  int32_t max_checkpoints = 0;
  int64_t swap_memory_bytes = -1;  // host copies of preempted blocks; -1: automatic, 0: none
  bool prefix_cache = true;
  int32_t checkpoint_interval = -1;  // tokens between checkpoints; -1: automatic, 0: off
  std::string cache_dir;             // prefixes on disk (disk.h); empty: off
  uint64_t cache_dir_bytes = uint64_t{8} << 30;  // of all files there
  int32_t checkpoint_spacing = -1;  // least distance of a prompt's checkpoints; -1: automatic
  Preemption preemption = Preemption::cheaper;
  ModelWeights::Progress progress;       // while weights load
  ModelWeights::Progress host_progress;  // while checkpoint and swap memory is taken
  TestHooks hooks;
};

}  // namespace braid
