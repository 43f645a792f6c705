// dflash_weights.h -- the weights of a drafter, in its file and on a device.
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

  // Once, after fit(); completes config. The file must outlive the weights. Errors: corrupt
  // (missing tensor, another shape), unsupported (tensors of another kind of drafter).
  Status describe(DflashFile& file, DflashConfig& config, int64_t vocabulary);
  // Columns of fc, needed before fit(). Errors: corrupt.
  static Result<uint64_t> fc_columns(DflashFile& file);

  size_t planned_bytes(const ModelWeights::WeightBytes& bytes_of);
  size_t loaded_bytes();
  // Once. Errors: exhausted, unsupported.
  Status load(Device& device);
  int64_t parameters() const { return parameters_; }
  std::vector<Weight*> matrices();

  Weight fc;                            // [E, taps E]
  const float* context_norm = nullptr;  // [E], after fc
  const float* output_norm = nullptr;   // [E]
  std::vector<LayerWeights> layers;     // attention and mlp
  // [V, E]; empty: the target's are used. Heads may have fewer tokens
  Weight own_embedding, own_head;

  // Convolutions of a layer: one side before each sublayer, the other after it.
  struct Convolutions {
    // [2 taps E / group, E]: input-dependent part of the taps of both sides
    Weight attention_mix, ffn_mix;
    const float* attention_base = nullptr;  // [2][taps][E]
    const float* ffn_base = nullptr;
  };
  std::vector<Convolutions> convolutions;  // by layer; may be empty

  // Scores of pairs of candidates; empty without DflashConfig::pairs.
  Weight predecessor, successor;  // tables [V, rank], [tokens of the head, rank]
  float pair_scale = 1;           // scale of products of their rows
  Weight gate;                    // [rank, E]; empty: ones
  // Logit of acceptance, from the hidden row and from the predecessor's row.
  Weight hidden_confidence;                // [1, E]; may be empty
  const float* pair_confidence = nullptr;  // [rank]
  float confidence_bias = 0;
  // Token ids of a head with few tokens; empty: all, in order. On the host and on the device.
  const std::vector<int32_t>& token_of() const { return token_of_; }
  const int32_t* device_token_of() const {
    return static_cast<const int32_t*>(token_memory_.data());
  }

 private:
  struct Names {
    std::string_view safetensors;
    std::vector<std::string_view> gguf;
  };
  static std::vector<std::string> spelled(const Names& names, int layer = -1);
  Status matrix(Weight& w, const std::vector<std::string>& names, int64_t n, int64_t k);
  Status vector(const float*& user, const std::vector<std::string>& names, int64_t count);
  Status table(Weight& w, float& scale, const std::vector<std::string>& names, int64_t n,
               int64_t k);
  Status layer(LayerWeights& w, const DflashLayer& c, int index);
  Status describe_convolutions();
  Status describe_convolution(Weight& mix, const float*& base, int layer,
                              std::string_view sublayer);
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
  std::deque<float> scales_;           // storage for Weight::scales
  std::vector<float> confidence_row_;  // storage for hidden_confidence
  std::vector<int32_t> token_of_;
  Buffer vector_memory_;
  Buffer token_memory_;
};

}  // namespace braid
