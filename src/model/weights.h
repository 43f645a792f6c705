// weights.h -- the weights of a model, in a file and on a device.
// An architecture describes matrices as Weight and small vectors as positions in one f32 pool;
// load() moves both to the device, once. After load(), non-empty Weights have device_data, and
// vector pointers are valid as long as the ModelWeights. The file must outlive both.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid {

struct AttentionBlock {
  Weight q;       // [H * Dh, E]; joint gates: [2 * H * Dh, E], query and gate of each head adjacent
  Weight k;       // [Hkv * Dh, E]
  Weight v;       // [Hkv * Dh, E]
  Weight gate;    // [H * Dh, E] or [H, E]; empty unless gates are separate
  Weight output;  // [E, H * Dh]
  AttentionWeights norms;
};

struct DeltaBlock {
  Weight qkv;     // [C, E]
  Weight z;       // [Hv * Dv, E]
  Weight alpha;   // [Hv, E]
  Weight beta;    // [Hv, E]
  Weight output;  // [E, Hv * Dv]
  DeltaWeights small;
};

struct MlpBlock {
  Weight gate;  // [F, E]
  Weight up;    // [F, E]
  Weight down;  // [E, F]
};

struct MoeBlock {
  Weight router;                      // [Nx, E]
  const float* route_bias = nullptr;  // [Nx]; null: none
  Weight gate;                        // [Nx or less][Fe, E]
  Weight up;                          // the same
  Weight down;                        // [Nx or less][E, Fe]
  int32_t first_expert = 0;           // of these stacks
  Weight shared_gate;                 // [Fs, E]; empty without a shared expert
  Weight shared_up;
  Weight shared_down;
  const float* shared_scale = nullptr;  // [E]; null: not gated

  MoeWeights view() const;
};

struct LayerWeights {
  const float* mixer_norm = nullptr;  // [E]
  const float* ffn_norm = nullptr;    // [E]
  AttentionBlock attention;           // attention or delta, by LayerConfig::kind
  DeltaBlock delta;
  MlpBlock mlp;  // mlp or moe; both empty in an MTP block without feed-forward
  MoeBlock moe;

  // Includes empty ones.
  std::array<Weight*, 20> matrices();
};

struct MtpWeights {
  Weight eh_proj;                         // [E, 2 E]
  const float* embedding_norm = nullptr;  // [E]
  const float* hidden_norm = nullptr;     // [E]
  const float* head_norm = nullptr;       // [E]
  const Weight* embedding = nullptr;      // its own or the trunk's
  const Weight* head = nullptr;
  Weight own_embedding;
  Weight own_head;
  Weight draft_rows;  // rows of `head`, each a run; empty: `head` is used
  LayerWeights layer;
};

class ShardMap;

class ModelWeights {
 public:
  using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  explicit ModelWeights(const GgufFile& file) : file_(&file) {}
  // The architecture calls it when all is described.
  void count_parameters(int64_t trunk, int64_t mtp_heads) {
    trunk_parameters_ = trunk;
    mtp_parameters_ = mtp_heads;
  }

  static constexpr int32_t kLastStage = -1;
  // A small vector of a layer of the trunk, in ascending order, or of kLastStage, which has the
  // output norm and the MTP heads. load() moves it to the device and sets `user`. Returns its
  // values, to fill in until the next one is added.
  std::span<float> add_vector(const float*& user, size_t elements, int32_t layer);
  // Its values, before load(); empty: the model has no such vector.
  std::span<const float> vector_values(const float* const& user) const;

  // Assigns layers to the stages of `config`, before loading; may be called again. With several
  // stages the last one may need a copy of the embedding: for a tied output matrix, or as the table
  // of drafts (`drafts_embed`: of a drafter with its own file).
  void split(const ModelConfig& config, bool drafts_embed);
  // Bytes of a stage before and after loading; `bytes_of` is the device's size of one weight.
  using WeightBytes = std::function<size_t(const Weight&)>;
  size_t planned_bytes(int32_t stage, const WeightBytes& bytes_of);
  size_t loaded_bytes(int32_t stage);
  // Experts of the stage's layers that stay on its device (Weight::slots); 0: all. Drafters keep
  // all. Returns the number of layers that have slots.
  static constexpr int32_t kAllStages = -1;
  int32_t set_expert_slots(int32_t stage, int32_t slots);
  // Beside planned_bytes(), for slots: on the device, and host memory.
  size_t expert_staging_bytes(int32_t stage, const Device& device);
  size_t expert_copy_bytes(int32_t stage, const Device& device);
  struct LayerBytes {
    size_t all = 0;
    size_t read = 0;  // for one token; of experts only the used ones, a rank's share of them
  };
  LayerBytes layer_bytes(size_t layer, const ModelConfig& config, const WeightBytes& bytes_of);
  // Loads each stage to its device. `releases`: the file's pages are not needed again. Errors:
  // exhausted, unsupported.
  Status load(std::span<Device* const> stages, bool releases, const Progress& progress);

  int64_t trunk_parameters() const { return trunk_parameters_; }
  int64_t mtp_parameters() const { return mtp_parameters_; }
  // Bytes of weights that a decoding step of one sequence reads; of experts only the used ones.
  size_t step_read_bytes(const ModelConfig& config);
  bool mtp_usable() const { return !mtp.empty(); }

  Weight embedding;                    // [V, E]
  Weight own_head;                     // [V, E]; empty: the embedding is the head
  const float* output_norm = nullptr;  // [E]
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;

  const Weight& head() const { return own_head ? own_head : last_embedding(); }
  // The embedding on the last stage.
  const Weight& last_embedding() const { return embedding_copy_ ? embedding_copy_ : embedding; }

 private:
  friend class WeightReader;
  friend void shard_trunk(const ModelWeights&, const ShardMap&, int, ModelWeights&);
  struct VectorUse {
    const float** user;
    size_t offset;
    size_t elements;
    int32_t layer;  // of the trunk; kLastStage: the output norm or an MTP head
  };
  int32_t stages() const { return layer_stage_.empty() ? 1 : layer_stage_.back() + 1; }
  int32_t stage_of(int32_t layer) const {
    if (layer_stage_.empty()) return 0;
    return layer == kLastStage ? layer_stage_.back() : layer_stage_[static_cast<size_t>(layer)];
  }
  struct Range {
    size_t first = 0, end = 0;
  };
  Range vectors_of(int32_t stage) const;  // part of vectors_
  std::vector<Weight*> matrices_of(int32_t stage);

  const GgufFile* file_;
  bool has_head_ = true;              // of the whole model, or rank 0
  std::vector<int32_t> layer_stage_;  // empty: one stage
  Weight embedding_copy_;
  int64_t trunk_parameters_ = 0;
  int64_t mtp_parameters_ = 0;
  std::vector<float> vectors_;             // decoded small tensors
  std::vector<VectorUse> vector_uses_;     // pointers to set in load()
  std::deque<std::vector<float>> scales_;  // storage for Weight::scales
  std::vector<Buffer> vector_memory_;      // [stages]
};

}  // namespace braid
