// config_reader.h -- metadata that several architectures share, read into a ModelConfig.
//
// Keys may give one value for all blocks or an array with one for each; the blocks of a file are the trunk's
// layers, then those of MTP heads. Errors: corrupt (a key is missing, out of range, or contradicts another),
// unsupported (a variant that braid does not compute).
#pragma once

#include "base/result.h"
#include "model/architectures/metadata_keys.h"
#include "model/config.h"

namespace braid {

// Name, width, eps, context; config.layers and config.mtp have their sizes afterwards.
Status read_sizes(const MetadataKeys& keys, ModelConfig& config);

// All blocks of a file, in its order.
inline size_t block_count(const ModelConfig& config) { return config.layers.size() + config.mtp.size(); }
LayerConfig& block_of(ModelConfig& config, size_t index);

// Which trunk layers attend and which are recurrent: an explicit list, or every interval-th attends. MTP
// blocks attend.
Status read_recurrent_layers(const MetadataKeys& keys, ModelConfig& config);

// Heads, head width and scale of every block that attends.
Status read_attention(const MetadataKeys& keys, ModelConfig& config, AttentionGate gate);
// Of all that attend, after read_attention.
int32_t head_dim_of(const ModelConfig& config);

// Rotated dims (all of a head, if the file does not say), base, and scaling with YaRN or linearly.
Result<RopeParams> read_rope(const MetadataKeys& keys, int32_t head_dim);
// The rope of sliding layers, which is never scaled: what the file does not say is that of `full`.
Result<RopeParams> read_sliding_rope(const MetadataKeys& keys, const RopeParams& full, int32_t head_dim);

// The same for all recurrent layers.
Result<DeltaShape> read_delta(const MetadataKeys& keys);

// Dense widths of every block.
Status read_dense(const MetadataKeys& keys, ModelConfig& config);
// Experts, alike in all blocks. `score`: the router's, if the file does not say.
Result<FeedForwardConfig> read_experts(const MetadataKeys& keys, RouteParams::Score score);

}  // namespace braid
