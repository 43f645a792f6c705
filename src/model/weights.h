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
  Weight gate;                        // [Nx][Fe, E]
  Weight up;                          // [Nx][Fe, E]
  Weight down;                        // [Nx][E, Fe]
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

  // A small vector: load() moves it to the device and sets `user`. Returns its values, to fill in
  // until the next one is added.
  std::span<float> add_vector(const float*& user, size_t elements);
  // Its values, before load(); empty: the model has no such vector.
  std::span<const float> vector_values(const float* const& user) const;

  // Bytes before and after loading; `bytes_of` is the device's size of one weight.
  using WeightBytes = std::function<size_t(const Weight&)>;
  size_t planned_bytes(const WeightBytes& bytes_of);
  size_t loaded_bytes();
  Status load(Device& device, const Progress& progress);

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

  const Weight& head() const { return own_head ? own_head : embedding; }

 private:
  friend class WeightReader;
  struct VectorUse {
    const float** user;
    size_t offset;
    size_t elements;
  };
  std::vector<Weight*> all();

  const GgufFile* file_;
  int64_t trunk_parameters_ = 0;
  int64_t mtp_parameters_ = 0;
  std::vector<float> vectors_;             // decoded small tensors
  std::vector<VectorUse> vector_uses_;     // pointers to set in load()
  std::deque<std::vector<float>> scales_;  // storage for Weight::scales
  Buffer vector_memory_;
};

}  // namespace braid
