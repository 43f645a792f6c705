// architectures.h -- what braid must know of an architecture: how to read its metadata, and what it calls its
// tensors. One source per family; a row per name in registry.cpp. The layer loop (decoder_model.h) is the
// same for all.
#pragma once

#include <string_view>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"

namespace braid {

struct Architecture {
  std::string_view name;  // general.architecture
  // Errors: corrupt (a key is missing or contradicts another), unsupported (a variant braid does not
  // compute). Each names the file and the key.
  Result<ModelConfig> (*read_config)(const GgufFile& file);
  // Checks every tensor and describes it in `out`; sets config.vocabulary. Errors: corrupt, unsupported.
  Status (*describe_weights)(const GgufFile& file, ModelConfig& config, bool with_mtp, ModelWeights& out);
};

// qwen35.cpp: qwen35 and qwen35moe.
Result<ModelConfig> read_qwen35_config(const GgufFile& file);
Status describe_qwen35_weights(const GgufFile& file, ModelConfig& config, bool with_mtp, ModelWeights& out);
// qwen3.cpp: qwen3 and qwen3moe.
Result<ModelConfig> read_qwen3_config(const GgufFile& file);
Status describe_qwen3_weights(const GgufFile& file, ModelConfig& config, bool with_mtp, ModelWeights& out);
// qwen3next.cpp
Result<ModelConfig> read_qwen3next_config(const GgufFile& file);
Status describe_qwen3next_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                                  ModelWeights& out);
// laguna.cpp
Result<ModelConfig> read_laguna_config(const GgufFile& file);
Status describe_laguna_weights(const GgufFile& file, ModelConfig& config, bool with_mtp, ModelWeights& out);

}  // namespace braid
