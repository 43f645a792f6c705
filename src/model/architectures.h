// architectures.h -- how to read the metadata of an architecture, and its tensor names. One source
// per family, one row per name in registry.cpp.
#pragma once

#include <string_view>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"

namespace braid {

struct Architecture {
  std::string_view name;  // general.architecture
  // Errors, with file and key: corrupt (missing or contradicting), unsupported (a variant).
  Result<ModelConfig> (*read_config)(const GgufFile& file);
  // Checks every tensor and describes it; sets config.vocabulary. Errors: corrupt, unsupported.
  Status (*describe_weights)(const GgufFile& file, ModelConfig& config, bool with_mtp,
                             ModelWeights& out);
};

Result<ModelConfig> read_qwen35_config(const GgufFile& file);
Status describe_qwen35_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                               ModelWeights& out);
Result<ModelConfig> read_qwen3_config(const GgufFile& file);
Status describe_qwen3_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                              ModelWeights& out);
Result<ModelConfig> read_qwen3next_config(const GgufFile& file);
Status describe_qwen3next_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                                  ModelWeights& out);
Result<ModelConfig> read_laguna_config(const GgufFile& file);
Status describe_laguna_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                               ModelWeights& out);

}  // namespace braid
