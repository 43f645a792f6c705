// model_flags.h -- options shared by commands that load a model.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/engine_options.h"
#include "engine/sampling_defaults.h"

namespace CLI {
class App;
}

namespace braid::cli {

struct ModelFlags {
  std::string model;          // empty: the model inside the binary
  std::string chat_template;  // a file; empty: the model's own
  int context = 0;
  int threads = 0;
  int batch = 0;  // -b of llama.cpp: an upper limit of -ub, which is the step size
  int ubatch = 0;
  std::string activations = "i8";
  int kv_tail = KvTail().tail_blocks;
  int kv_sink = KvTail().sink_blocks;
  int attention_window = 0;
  double prefill_sparse = 0;
  std::string cache_k = "f16";
  std::string cache_v = "f16";
  std::string device = "auto";
  std::string split = "auto";
  std::string split_ratio;
  std::string gpu_layers = "auto";
  std::string expert_slots = "auto";
  std::string expert_profile;
  bool no_cpu_experts = false;
  std::string gpu_memory;  // sizes with commas (sizes.h); empty: what is free
  bool deterministic = false;
  int parallel = 1;
  int max_batch_tokens = 0;
  double gap_limit = EngineOptions().gap_limit;
  int checkpoint_interval = -1;
  std::string spec_type = "auto";
  std::string draft_model;
  int spec_draft_n_max = 0;  // 0: the drafter's own default
  int ddtree_budget = 0;
  double spec_draft_p_min = 0;
  int spec_draft_vocab = -1;
  bool spec_always = false;
  // Sizes as given (sizes.h); empty: automatic.
  std::string kv_memory;
  std::string state_memory;
  std::string cache_dir;  // empty: no prefix cache on disk
  std::string cache_dir_size = "8G";
};

enum ModelParts : uint32_t {
  kModelPart = 1,     // -m, -c, -t, -b, -ub, --act, --device, --split, --gpu-layers, --expert-slots
  kCachePart = 2,     // -ctk, -ctv, --kv-tail, --kv-sink, --fa-window, --prefill-sparse
  kMemoryPart = 4,    // --kv-memory, --state-memory, --checkpoint-interval
  kSchedulePart = 8,  // --max-batch-tokens, --gap-limit
  kDiskPart = 16,     // --cache-dir, --cache-dir-size
  kDrafterPart = 32,  // --spec-type, -md and other options that need memory
  kSpeculationPart = 64,  // --spec-always, --spec-draft-p-min
  kTemplatePart = 128,    // --chat-template
  kParallelPart = 256,    // -np
};
void add_model_options(CLI::App& command, ModelFlags& flags, uint32_t parts);

// Errors: invalid_argument.
Result<EngineOptions> engine_options(const ModelFlags& flags);

void add_sampling_options(CLI::App& command, SamplingChoice& choice);

}  // namespace braid::cli
