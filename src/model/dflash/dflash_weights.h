// dflash_weights.h -- the weights of a drafter: what its file holds, and where they are on a device.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/dflash/dflash_file.h"
#include "model/weights.h"
#include "ops/device.h"

namespace braid {

class DflashWeights {
 public:
  DflashWeights() = default;
  DflashWeights(const DflashWeights&) = delete;
  DflashWeights& operator=(const DflashWeights&) = delete;

  // Once; config has been fitted. The file must outlive the weights. Errors: corrupt (a tensor is missing or
  // has another shape), unsupported (tensors of another kind of drafter).
  Status describe(DflashFile& file, const DflashConfig& config, int64_t vocabulary);
  // Columns of fc, before the configuration is known to fit. Errors: corrupt.
  static Result<uint64_t> fc_columns(DflashFile& file);

  size_t planned_bytes(const Device& device);
  size_t loaded_bytes();
  // Once. Errors: exhausted, unsupported.
  Status load(Device& device);
  int64_t parameters() const { return parameters_; }
  // All that it holds.
  std::vector<Weight*> matrices();

  Weight fc;                            // [E, taps E]
  const float* context_norm = nullptr;  // [E], of what fc makes
  const float* output_norm = nullptr;   // [E]
  std::vector<LayerWeights> layers;     // attention and mlp
  Weight own_embedding, own_head;       // [V, E]; empty: the target's serve

 private:
  // One tensor under all its names: in safetensors, and in dialects of GGUF.
  struct Names {
    std::string_view safetensors;
    std::vector<std::string_view> gguf;
  };
  static std::vector<std::string> spelled(const Names& names, int layer = -1);
  Status matrix(Weight& w, const std::vector<std::string>& names, int64_t n, int64_t k);
  Status vector(const float*& user, const std::vector<std::string>& names, int64_t count);
  Status layer(LayerWeights& w, const DflashLayer& c, int index);
  Result<DflashTensor> checked(const std::vector<std::string>& names, uint64_t ne0, uint64_t ne1);

  DflashFile* file_ = nullptr;  // while describing
  const DflashConfig* config_ = nullptr;
  int64_t parameters_ = 0;
  struct VectorUse {
    const float** user;
    size_t offset;
  };
  std::vector<float> vectors_;  // decoded, until load()
  std::vector<VectorUse> vector_uses_;
  std::deque<float> scales_;  // what Weight::scales point at
  Buffer vector_memory_;
};

}  // namespace braid
