// config_reader.h -- reads metadata shared by several architectures into a ModelConfig.
// Blocks are the trunk's layers, then those of MTP heads; keys have one value or one per block.
// Errors: corrupt (missing, out of range, contradicting), unsupported (a variant).
#pragma once

#include "base/result.h"
#include "model/config.h"
#include "model/metadata_keys.h"

namespace braid {

// Reads name, width, eps and context; resizes config.layers and config.mtp.
Status read_sizes(const MetadataKeys& keys, ModelConfig& config);

inline size_t block_count(const ModelConfig& config) {
  return config.layers.size() + config.mtp.size();
}
LayerConfig& block_of(ModelConfig& config, size_t index);

// Trunk layers that attend: from a list, or every interval-th. MTP blocks attend.
Status read_recurrent_layers(const MetadataKeys& keys, ModelConfig& config);

Status read_attention(const MetadataKeys& keys, ModelConfig& config, AttentionGate gate);
// The common head width. Call after read_attention.
int32_t head_dim_of(const ModelConfig& config);

// Rotated dims (default: the whole head), base, and YaRN or linear scaling.
Result<RopeParams> read_rope(const MetadataKeys& keys, int32_t head_dim);
// The rope of sliding layers, which is never scaled. Missing keys default to `full`.
Result<RopeParams> read_sliding_rope(const MetadataKeys& keys, const RopeParams& full,
                                     int32_t head_dim);

Result<DeltaShape> read_delta(const MetadataKeys& keys);

Status read_dense(const MetadataKeys& keys, ModelConfig& config);
// Experts, the same in all blocks. `score` is the router's default.
Result<FeedForwardConfig> read_experts(const MetadataKeys& keys, RouteParams::Score score);

}  // namespace braid
