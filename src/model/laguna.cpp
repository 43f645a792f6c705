// laguna.cpp -- Poolside's Laguna (XS, S, M): full and sliding layers, first layers dense.
#include <fmt/format.h>

#include <algorithm>

#include "model/architectures.h"
#include "model/config_reader.h"
#include "model/weight_reader.h"

namespace braid {
namespace {

constexpr size_t kSlidingRope = 1;

// An array of bools (true: sliding), or a period whose first block is full attention.
Status read_windows(const MetadataKeys& keys, ModelConfig& config) {
  BRAID_ASSIGN(const uint32_t window, keys.u32_or("attention.sliding_window", 0, 0, kMaxContext));
  if (window == 0) return {};
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const size_t blocks = block_count(config);
  const auto slide = [&](size_t block) {
    AttentionConfig& a = block_of(config, block).attention;
    a.window = static_cast<int32_t>(window);
    a.rope = kSlidingRope;
  };
  const GgufValue* pattern = keys.file().find(keys.full(kPattern));
  if (pattern != nullptr && pattern->is_array()) {
    if (pattern->elem_type != GgufValueType::BOOL || pattern->count < blocks)
      return keys.corrupt(kPattern, fmt::format("is not an array of {} bools", blocks));
    for (size_t i = 0; i < blocks; ++i)
      if (pattern->bytes[i] != std::byte{0}) slide(i);
    return {};
  }
  BRAID_ASSIGN(const uint32_t period, keys.u32_or(kPattern, 4, 1, kMaxLayers));
  for (size_t i = 0; i < blocks; ++i)
    if (i % period != 0) slide(i);
  return {};
}

// The rows of the gate matrix determine its kind: one per head or one per element.
Status read_gates(const GgufFile& file, ModelConfig& config) {
  for (size_t i = 0; i < block_count(config); ++i) {
    AttentionConfig& a = block_of(config, i).attention;
    const std::string name = fmt::format("blk.{}.attn_gate.weight", i);
    const GgufTensor* tensor = file.find_tensor(name);
    if (tensor == nullptr) continue;  // reported when weights are described
    const auto rows = static_cast<int64_t>(tensor->ne[1]);
    if (rows != a.heads && rows != a.query_width())
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor {} has {} rows; expected one for each of {} heads, or "
                               "{} for their elements",
                               file.name(), name, rows, a.heads, a.query_width())};
    a.gate.layout = rows == a.heads ? AttentionGate::Layout::head : AttentionGate::Layout::element;
  }
  return {};
}

Status read_feed_forward(const MetadataKeys& keys, ModelConfig& config) {
  const auto blocks = static_cast<uint32_t>(block_count(config));
  BRAID_ASSIGN(const uint32_t dense, keys.u32_or("leading_dense_block_count", 0, 0, blocks));
  if (dense > 0) BRAID_TRY(read_dense(keys, config));
  if (dense == blocks) return {};
  BRAID_ASSIGN(FeedForwardConfig experts, read_experts(keys, RouteParams::Score::sigmoid));
  experts.shared_gated = false;
  BRAID_ASSIGN(const uint32_t shared, keys.u32_or("expert_shared_count", 1, 0, kMaxExperts));
  if (shared != 1)
    return keys.unsupported("expert_shared_count", fmt::format("{} is not 1", shared));
  BRAID_TRY(keys.u32("expert_shared_feed_forward_length", 1, kMaxWidth));
  for (size_t i = dense; i < blocks; ++i) block_of(config, i).feed_forward = experts;
  return {};
}

}  // namespace

Result<ModelConfig> read_laguna_config(const GgufFile& file) {
  ModelConfig config;
  const MetadataKeys keys(file, "laguna");
  BRAID_TRY(read_sizes(keys, config));
  BRAID_TRY(
      read_attention(keys, config, {AttentionGate::Act::softplus, AttentionGate::Layout::head}));
  BRAID_TRY(read_gates(file, config));
  BRAID_TRY(read_windows(keys, config));
  BRAID_TRY(read_feed_forward(keys, config));
  const int32_t head_dim = head_dim_of(config);
  const bool says_dims = file.has(keys.full("rope.dimension_count"));
  BRAID_ASSIGN(RopeParams full, read_rope(keys, head_dim));
  BRAID_ASSIGN(RopeParams sliding, read_sliding_rope(keys, full, head_dim));
  // default of early files; sliding layers rotate whole heads
  if (!says_dims) full.dims = std::max(2, head_dim / 4 * 2);
  config.ropes = {full};
  for (const LayerConfig& layer : config.layers)
    if (layer.attention.rope == kSlidingRope) config.ropes = {full, sliding};
  return config;
}

Status describe_laguna_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                               ModelWeights& out) {
  WeightReader reader(file, config, out);
  return reader.decoder({.ffn_norm = "ffn_norm.weight"}, with_mtp);
}

}  // namespace braid
