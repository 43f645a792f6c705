// weights.h -- the weights of a model: what a file holds of them, and where they are on a device.
//
// An architecture (architectures.h) describes matrices as Weight (still in the file) and small vectors
// (norms, convolution taps, decay parameters) as positions in one f32 pool; nothing is loaded. load() then
// hands the matrices to the device and the pool to device memory, in that order, once. Matrices may have any
// type.
//
// Always true after load(): every Weight that is not empty has device_data; every non-null vector pointer is
// valid as long as the ModelWeights; the file must outlive both (tables are read from it).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid {

struct AttentionBlock {
  Weight q;       // [H * Dh, E]; [2 * H * Dh, E] with joint gates: query and gate of each head side by side
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
  AttentionBlock attention;           // one of the two, by LayerConfig::kind
  DeltaBlock delta;
  MlpBlock mlp;  // one of the two; both empty in an MTP block without feed-forward
  MoeBlock moe;

  // Every matrix of the layer, empty ones too.
  std::array<Weight*, 20> matrices();
};

// The head that predicts the token after the next one: an attention layer fed by [embedding ; hidden].
struct MtpWeights {
  Weight eh_proj;                         // [E, 2 E]
  const float* embedding_norm = nullptr;  // [E]
  const float* hidden_norm = nullptr;     // [E]
  const float* head_norm = nullptr;       // [E]
  const Weight* embedding = nullptr;      // its own or the trunk's
  const Weight* head = nullptr;
  Weight own_embedding;
  Weight own_head;
  Weight draft_rows;  // of `head`, once more, a run each; empty: all of it is always read
  LayerWeights layer;
};

class ModelWeights {
 public:
  // Called while loading: bytes of the file done so far, and in all.
  using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  explicit ModelWeights(const GgufFile& file) : file_(&file) {}
  // By the architecture, when all is described.
  void count_parameters(int64_t trunk, int64_t mtp_heads) {
    trunk_parameters_ = trunk;
    mtp_parameters_ = mtp_heads;
  }

  // Bytes on `device`, without and with loading.
  size_t planned_bytes(const Device& device);
  size_t loaded_bytes();
  Status load(Device& device, const Progress& progress);

  // Elements of all tensors read.
  int64_t trunk_parameters() const { return trunk_parameters_; }
  int64_t mtp_parameters() const { return mtp_parameters_; }
  // Bytes of weights that one decoding step of one sequence reads (all of dense layers, the used experts of
  // others).
  size_t step_read_bytes(const ModelConfig& config);
  bool mtp_usable() const { return !mtp.empty(); }

  Weight embedding;                    // [V, E]
  Weight own_head;                     // [V, E]; empty when the embedding serves as head
  const float* output_norm = nullptr;  // [E]
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;

  const Weight& head() const { return own_head ? own_head : embedding; }

 private:
  friend class WeightReader;
  struct VectorUse {
    const float** user;
    size_t offset;
  };
  std::vector<Weight*> all();

  const GgufFile* file_;
  int64_t trunk_parameters_ = 0;
  int64_t mtp_parameters_ = 0;
  std::vector<float> vectors_;             // decoded small tensors, one after the other
  std::vector<VectorUse> vector_uses_;     // who points where, until load()
  std::deque<std::vector<float>> scales_;  // what Weight::scales point at
  Buffer vector_memory_;
};

}  // namespace braid
