// engine_options.h -- everything about an engine that is chosen at start.
#pragma once

#include <cstdint>
#include <string>

#include "engine/schedule/scheduler.h"
#include "model/weights.h"
#include "ops/device.h"
#include "ops/state.h"

namespace braid {

// What tests do to an engine from inside.
struct TestHooks {
  bool poison_unused = false;   // memory that nobody may read is filled with what spoils any sum
  uint64_t shuffle_blocks = 0;  // seed of a random order of free blocks; 0: in order
  bool late_events = false;     // clients hear of a step during the next on any device
  enum class Fault : uint8_t { none, passing, lasting };
  Fault fault = Fault::none;  // the device fails in step `fault_step`
  uint64_t fault_step = 0;
};

// Who drafts: nobody, what the sequence has said before (draft/ngram_drafter.h), the model's own head
// (draft/model_drafter.h), or a drafter with a file of its own (draft/dflash_drafter.h). Automatic: the drafter if
// there is a file, else the head if the model has one, and n-grams with few sequences or without both; with
// `deterministic` the drafter of a file or nobody.
enum class SpecType : uint8_t { none, ngram, mtp, dflash, automatic };

// One of them, or several, whose drafts a step verifies together (draft/joint_drafter.h).
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

struct EngineOptions {
  int32_t context_tokens = 0;    // per sequence; 0: what the model was made for, less if memory is short
  int32_t max_sequences = 1;     // running at the same time
  int32_t ubatch_tokens = 512;   // prompt tokens a step may always carry; 0: chosen by model and device
  int32_t max_batch_tokens = 0;  // all tokens of a step, if that is more; 0: ubatch_tokens
  double gap_limit = 3.95;  // inter-token latency beside a prompt, in undisturbed steps (pacer.h); 0: any
  // Uncertain tokens of one sequence in one step, and of them one behind the other; 0: as drafters like it.
  int32_t max_drafts = 0;
  int32_t draft_depth = 0;
  bool draft_trees = false;  // drafts beside each other, too: the most probable paths; else chains
  SpecTypes spec_type = SpecType::none;
  bool spec_always = false;  // drafts also where they cost time (draft/budget/draft_budget.h)
  float draft_p_min = 0;     // head and drafter draft what is at least so probable to them
  // Tokens among which the head guesses, those that came last; 0: all, -1: some of a large vocabulary.
  int32_t draft_vocabulary = -1;
  std::string draft_model;  // the drafter's file or folder
  // Attention layers see the newest so many positions; 0: all.
  int32_t attention_window = 0;
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;
  // Of full blocks, both or none (null). Then rows are f16 until their blocks are sealed (ops/state.h).
  const KvCodec* k_codec = nullptr;
  const KvCodec* v_codec = nullptr;
  KvTail kv_tail;  // what is read exact all the same
  // Formats are chosen: the widest in which all contexts fit (engine_memory.cpp).
  bool kv_auto = false;
  std::string device = "cpu";  // or "ref"
  int threads = 0;             // 0: the device chooses
  Activations activations = Activations::i8;
  bool deterministic = false;       // a request's bytes depend on nothing but itself (DeviceOptions)
  uint64_t memory_limit_bytes = 0;  // 0: what the machine has available
  // For plan_memory() on a machine without the GPU: `memory_limit_bytes` are a GPU's own, beside the host's.
  bool plan_own_memory = false;
  uint64_t kv_memory_bytes = 0;     // KV blocks; 0: all contexts at once, less if memory is short
  int64_t state_memory_bytes = -1;  // checkpoints in host memory; -1: chosen, 0: none
  // Of what is chosen: as many checkpoints as a quarter of spare host memory holds, and not more than so
  // many; 0: a few for each sequence.
  int32_t max_checkpoints = 0;
  int64_t swap_memory_bytes = -1;  // blocks of preempted sequences in host memory; -1: chosen, 0: none
  bool prefix_cache = true;
  int32_t checkpoint_interval = -1;  // a checkpoint every so many tokens; -1: chosen, 0: none on the way
  std::string cache_dir;             // prefixes are kept here too (disk.h); empty: nowhere
  uint64_t cache_dir_bytes = uint64_t{8} << 30;  // of all files there
  int32_t checkpoint_spacing = -1;  // at least so many tokens between those of one prompt; -1: chosen
  Preemption preemption = Preemption::cheaper;
  ModelWeights::Progress progress;       // while weights load
  ModelWeights::Progress host_progress;  // while host memory for checkpoints and swap is taken
  TestHooks hooks;
};

}  // namespace braid
