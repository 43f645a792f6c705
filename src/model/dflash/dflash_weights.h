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

  // Once; config has been fitted, and learns what tensors say. The file must outlive the weights. Errors:
  // corrupt (a tensor is missing or has another shape), unsupported (tensors of another kind of drafter).
  Status describe(DflashFile& file, DflashConfig& config, int64_t vocabulary);
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
  Weight own_embedding, own_head;       // [V, E]; empty: the target's serve. Heads may know fewer tokens

  // Convolutions of a layer: one side mixes what a sublayer gets, the other what it gives.
  struct Convolutions {
    Weight attention_mix, ffn_mix;  // [2 taps E / group, E]: what the input adds to the taps of both sides
    const float* attention_base = nullptr;  // [2][taps][E]
    const float* ffn_base = nullptr;
  };
  std::vector<Convolutions> convolutions;  // of layers; empty: there are none

  // Which candidate follows which; empty unless DflashConfig::pairs.
  Weight predecessor, successor;  // tables [V, rank], [tokens of the head, rank]
  float pair_scale = 1;           // of products of their rows
  Weight gate;                    // [rank, E]; empty: ones
  // Of the probability that a draft is accepted: what the hidden row and what its predecessor say.
  Weight hidden_confidence;                // [1, E]; empty: nobody knows
  const float* pair_confidence = nullptr;  // [rank]
  float confidence_bias = 0;
  // Tokens of a head that knows few, by its own numbers; empty: all, in order. On the host and on the device.
  const std::vector<int32_t>& token_of() const { return token_of_; }
  const int32_t* device_token_of() const { return static_cast<const int32_t*>(token_memory_.data()); }

 private:
  // One tensor under all its names: in safetensors, and in dialects of GGUF.
  struct Names {
    std::string_view safetensors;
    std::vector<std::string_view> gguf;
  };
  static std::vector<std::string> spelled(const Names& names, int layer = -1);
  Status matrix(Weight& w, const std::vector<std::string>& names, int64_t n, int64_t k);
  Status vector(const float*& user, const std::vector<std::string>& names, int64_t count);
  Status table(Weight& w, float& scale, const std::vector<std::string>& names, int64_t n, int64_t k);
  Status layer(LayerWeights& w, const DflashLayer& c, int index);
  Status describe_convolutions();
  Status describe_convolution(Weight& mix, const float*& base, int layer, std::string_view sublayer);
  Status describe_head(int64_t vocabulary);
  Status describe_pairs(int64_t vocabulary);
  Status describe_confidence(float successor_scale);
  Status expect_number(const char* key, int32_t& value, uint64_t tensors);
  Result<DflashTensor> checked(const std::vector<std::string>& names, std::array<uint64_t, 3> ne);
  float* add_vector(const float*& user, int64_t count);

  DflashFile* file_ = nullptr;  // while describing
  DflashConfig* config_ = nullptr;
  int64_t parameters_ = 0;
  struct VectorUse {
    const float** user;
    size_t offset;
  };
  std::vector<float> vectors_;  // decoded, until load()
  std::vector<VectorUse> vector_uses_;
  std::deque<float> scales_;           // what Weight::scales point at
  std::vector<float> confidence_row_;  // what hidden_confidence points at
  std::vector<int32_t> token_of_;
  Buffer vector_memory_;
  Buffer token_memory_;
};

}  // namespace braid
