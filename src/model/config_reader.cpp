// config_reader.cpp -- see config_reader.h.
#include "model/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

Result<RopeParams> read_rope_keys(const MetadataKeys& keys, std::string_view dims_key, int32_t dims,
                                  std::string_view base_key, double base, int32_t head_dim) {
  const auto most = static_cast<uint32_t>(head_dim);
  BRAID_ASSIGN(const uint32_t read_dims,
               keys.u32_or(dims_key, static_cast<uint32_t>(dims), 2, most));
  if (read_dims % 2 != 0) return keys.corrupt(dims_key, fmt::format("{} is odd", read_dims));
  BRAID_ASSIGN(const float read_base, keys.f32_or(base_key, static_cast<float>(base)));
  if (!(read_base > 1)) return keys.corrupt(base_key, fmt::format("{} is not above 1", read_base));
  return RopeParams{static_cast<int32_t>(read_dims), read_base};
}

Result<float> positive(const MetadataKeys& keys, std::string_view key, float fallback) {
  BRAID_ASSIGN(const float value, keys.f32_or(key, fallback));
  if (!(value > 0)) return keys.corrupt(key, fmt::format("{} is not positive", value));
  return value;
}

Status read_yarn(const MetadataKeys& keys, RopeParams& rope) {
  constexpr std::string_view kOriginal = "rope.scaling.original_context_length";
  BRAID_ASSIGN(const uint32_t context, keys.u32("context_length", 1, kMaxContext));
  BRAID_ASSIGN(const uint32_t original, keys.u32_or(kOriginal, context, 1, kMaxContext));
  rope.original_context = static_cast<int32_t>(original);
  BRAID_ASSIGN(rope.beta_fast, positive(keys, "rope.scaling.yarn_beta_fast", 32));
  BRAID_ASSIGN(rope.beta_slow, positive(keys, "rope.scaling.yarn_beta_slow", 1));
  // -1 lets the reader choose, which is 1; early files hold the factor here. 0 disables the blend.
  BRAID_ASSIGN(const float blend, keys.f32_or("rope.scaling.yarn_ext_factor", 1));
  if (blend == 0) return keys.unsupported("rope.scaling.yarn_ext_factor", "is 0");
  // Configurations use 1 for "not given"; other values are final.
  BRAID_ASSIGN(const float given, positive(keys, "rope.scaling.yarn_attn_factor", 1));
  rope.magnitude = given != 1 ? double{given} : 0.1 * std::log(rope.factor) + 1;
  return {};
}

}  // namespace

LayerConfig& block_of(ModelConfig& config, size_t index) {
  return index < config.layers.size() ? config.layers[index]
                                      : config.mtp[index - config.layers.size()];
}

Status read_sizes(const MetadataKeys& keys, ModelConfig& config) {
  BRAID_ASSIGN(const auto architecture, keys.file().get_string("general.architecture"));
  config.architecture = architecture;
  BRAID_ASSIGN(const auto name, keys.file().find_string("general.name"));
  if (name) config.name = *name;
  BRAID_ASSIGN(const uint32_t blocks, keys.u32("block_count", 1, kMaxLayers));
  BRAID_ASSIGN(const uint32_t mtp, keys.u32_or("nextn_predict_layers", 0, 0, kMaxLayers));
  if (mtp >= blocks)
    return keys.corrupt("nextn_predict_layers",
                        fmt::format("{} of {} blocks leave no layer", mtp, blocks));
  LayerConfig attention;
  attention.kind = LayerKind::attention;
  config.layers.assign(blocks - mtp, attention);
  config.mtp.assign(mtp, attention);
  BRAID_ASSIGN(const uint32_t context, keys.u32("context_length", 1, kMaxContext));
  config.context_length = static_cast<int32_t>(context);
  BRAID_ASSIGN(config.width, keys.u32("embedding_length", 1, kMaxWidth));
  constexpr std::string_view kEps = "attention.layer_norm_rms_epsilon";
  BRAID_ASSIGN(config.eps, keys.file().get_f32(keys.full(kEps)));
  if (!(config.eps >= 0 && config.eps < 1))
    return keys.corrupt(kEps, fmt::format("{} is not a small number", config.eps));
  return {};
}

Status read_recurrent_layers(const MetadataKeys& keys, ModelConfig& config) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  if (const GgufValue* value = keys.file().find(keys.full(kList)); value != nullptr) {
    if (!value->is_array() || value->elem_type != GgufValueType::BOOL)
      return keys.corrupt(kList, "is not an array of bools");
    if (value->count < config.layers.size())
      return keys.corrupt(
          kList, fmt::format("has {} entries for {} layers", value->count, config.layers.size()));
    for (size_t i = 0; i < config.layers.size(); ++i)
      if (value->bytes[i] != std::byte{0}) config.layers[i].kind = LayerKind::delta;
  } else {
    BRAID_ASSIGN(const uint32_t interval, keys.u32_or("full_attention_interval", 4, 1, kMaxLayers));
    for (size_t i = 0; i < config.layers.size(); ++i)
      if ((i + 1) % interval != 0) config.layers[i].kind = LayerKind::delta;
  }
  if (config.count(LayerKind::attention) == 0)
    return keys.unsupported("full_attention_interval", "leaves no attention layer");
  return {};
}

Status read_attention(const MetadataKeys& keys, ModelConfig& config, AttentionGate gate) {
  constexpr std::string_view kHeads = "attention.head_count";
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  const size_t blocks = block_count(config);
  BRAID_ASSIGN(const auto heads, keys.file().get_u32_each(keys.full(kHeads), blocks));
  auto kv_heads = heads;
  if (keys.file().has(keys.full(kKvHeads))) {
    BRAID_ASSIGN(kv_heads, keys.file().get_u32_each(keys.full(kKvHeads), blocks));
  }
  BRAID_ASSIGN(const auto causal, keys.file().find_bool(keys.full("attention.causal")));
  if (causal && !*causal)
    return keys.unsupported("attention.causal", "asks for attention to later tokens");
  BRAID_ASSIGN(const float scale, keys.f32_or("attention.scale", 0));
  uint32_t head_dim = 0;
  for (size_t i = 0; i < blocks; ++i) {
    LayerConfig& layer = block_of(config, i);
    if (layer.kind != LayerKind::attention) continue;
    BRAID_TRY(keys.in_range(kHeads, heads[i], 1, kMaxHeads));
    BRAID_TRY(keys.in_range(kKvHeads, kv_heads[i], 1, kMaxHeads));
    if (heads[i] % kv_heads[i] != 0)
      return keys.corrupt(kKvHeads,
                          fmt::format("{} does not divide the {} heads", kv_heads[i], heads[i]));
    const auto plain_dim = static_cast<uint32_t>(config.width / heads[i]);
    BRAID_ASSIGN(const uint32_t k_dim,
                 keys.u32_or("attention.key_length", plain_dim, 2, kMaxHeadDim));
    BRAID_ASSIGN(const uint32_t v_dim,
                 keys.u32_or("attention.value_length", plain_dim, 2, kMaxHeadDim));
    BRAID_TRY(keys.in_range("attention.key_length", k_dim, 2, kMaxHeadDim));
    if (k_dim != v_dim)
      return keys.unsupported("attention.value_length",
                              fmt::format("{} differs from key_length {}", v_dim, k_dim));
    if (uint64_t{heads[i]} * k_dim > kMaxWidth)
      return keys.corrupt(kHeads, fmt::format("{} heads of {} are too wide", heads[i], k_dim));
    if (head_dim == 0) head_dim = k_dim;
    if (k_dim != head_dim)
      return keys.unsupported(kHeads, fmt::format("gives heads of {} and of {}", head_dim, k_dim));
    AttentionConfig& a = layer.attention;
    a.heads = static_cast<int32_t>(heads[i]);
    a.kv_heads = static_cast<int32_t>(kv_heads[i]);
    a.head_dim = static_cast<int32_t>(k_dim);
    a.scale = scale != 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k_dim)));
    a.gate = gate;
  }
  return {};
}

int32_t head_dim_of(const ModelConfig& config) {
  return std::find_if(config.layers.begin(), config.layers.end(),
                      [](const LayerConfig& l) { return l.kind == LayerKind::attention; })
      ->attention.head_dim;
}

Result<RopeParams> read_rope(const MetadataKeys& keys, int32_t head_dim) {
  BRAID_ASSIGN(RopeParams rope, read_rope_keys(keys, "rope.dimension_count", head_dim,
                                               "rope.freq_base", 10000, head_dim));
  BRAID_ASSIGN(const auto scaling, keys.file().find_string(keys.full("rope.scaling.type")));
  if (!scaling || *scaling == "none") return rope;
  if (*scaling != "yarn" && *scaling != "linear")
    return keys.unsupported("rope.scaling.type", "is not none, linear or yarn");
  BRAID_ASSIGN(rope.factor, positive(keys, "rope.scaling.factor", 1));
  BRAID_ASSIGN(const float attention, keys.f32_or("rope.scaling.attn_factor", 1));
  if (attention != 1) return keys.unsupported("rope.scaling.attn_factor", "is not 1");
  if (*scaling == "yarn") BRAID_TRY(read_yarn(keys, rope));
  return rope;
}

Result<RopeParams> read_sliding_rope(const MetadataKeys& keys, const RopeParams& full,
                                     int32_t head_dim) {
  return read_rope_keys(keys, "rope.dimension_count_swa", full.dims, "rope.freq_base_swa",
                        full.freq_base, head_dim);
}

Result<DeltaShape> read_delta(const MetadataKeys& keys) {
  BRAID_ASSIGN(const uint32_t taps, keys.u32("ssm.conv_kernel", 1, kMaxConvTaps));
  BRAID_ASSIGN(const uint32_t key_dim, keys.u32("ssm.state_size", 1, kMaxHeadDim));
  BRAID_ASSIGN(const uint32_t key_heads, keys.u32("ssm.group_count", 1, kMaxHeads));
  BRAID_ASSIGN(const uint32_t value_heads, keys.u32("ssm.time_step_rank", 1, kMaxHeads));
  BRAID_ASSIGN(const uint32_t inner, keys.u32("ssm.inner_size", 1, kMaxWidth));
  if (value_heads % key_heads != 0)
    return keys.corrupt(
        "ssm.time_step_rank",
        fmt::format("{} value heads are not a multiple of {} key heads", value_heads, key_heads));
  if (inner % value_heads != 0)
    return keys.corrupt("ssm.inner_size",
                        fmt::format("{} is not a multiple of {} value heads", inner, value_heads));
  if (inner / value_heads > kMaxHeadDim)
    return keys.corrupt("ssm.inner_size",
                        fmt::format("{} gives value heads of {}", inner, inner / value_heads));
  if (uint64_t{key_heads} * key_dim > kMaxWidth)
    return keys.corrupt("ssm.group_count",
                        fmt::format("{} key heads of {} are too wide", key_heads, key_dim));
  return DeltaShape{static_cast<int32_t>(key_heads), static_cast<int32_t>(value_heads),
                    static_cast<int32_t>(key_dim), static_cast<int32_t>(inner / value_heads),
                    static_cast<int32_t>(taps)};
}

Status read_dense(const MetadataKeys& keys, ModelConfig& config) {
  constexpr std::string_view kKey = "feed_forward_length";
  BRAID_ASSIGN(const auto widths, keys.file().get_u32_each(keys.full(kKey), block_count(config)));
  for (size_t i = 0; i < widths.size(); ++i) {
    FeedForwardConfig& ffn = block_of(config, i).feed_forward;
    ffn = {};
    BRAID_ASSIGN(ffn.width, keys.in_range(kKey, widths[i], 1, kMaxWidth));
  }
  return {};
}

Result<FeedForwardConfig> read_experts(const MetadataKeys& keys, RouteParams::Score score) {
  BRAID_ASSIGN(const uint32_t experts, keys.u32("expert_count", 1, kMaxExperts));
  BRAID_ASSIGN(const uint32_t used,
               keys.u32("expert_used_count", 1, std::min(experts, kMaxExpertsUsed)));
  BRAID_ASSIGN(const uint32_t width, keys.u32("expert_feed_forward_length", 1, kMaxWidth));
  BRAID_ASSIGN(const uint32_t shared,
               keys.u32_or("expert_shared_feed_forward_length", 0, 0, kMaxWidth));
  FeedForwardConfig ffn;
  ffn.experts = static_cast<int32_t>(experts);
  ffn.experts_used = static_cast<int32_t>(used);
  ffn.expert_width = width;
  ffn.shared_width = shared;
  ffn.score = score;
  BRAID_ASSIGN(const uint32_t gating, keys.u32_or("expert_gating_func", 0, 0, 100));
  // Softmax over the chosen experts (3) equals the renormalized softmax over all.
  if (gating == 1 || gating == 3) ffn.score = RouteParams::Score::softmax;
  if (gating == 2) ffn.score = RouteParams::Score::sigmoid;
  if (gating > 3)
    return keys.unsupported("expert_gating_func",
                            fmt::format("{} is neither softmax (1) nor sigmoid (2)", gating));
  BRAID_ASSIGN(const float factor, keys.f32_or("expert_weights_scale", 0));
  if (factor < 0)
    return keys.corrupt("expert_weights_scale", fmt::format("{} is negative", factor));
  if (factor != 0) ffn.scale = factor;
  BRAID_ASSIGN(const auto norm, keys.file().find_bool(keys.full("expert_weights_norm")));
  if (norm && !*norm) return keys.unsupported("expert_weights_norm", "turns normalization off");
  BRAID_ASSIGN(const uint32_t groups, keys.u32_or("expert_group_count", 1, 0, kMaxExperts));
  if (groups > 1)
    return keys.unsupported("expert_group_count",
                            fmt::format("asks for {} groups of experts", groups));
  return ffn;
}

}  // namespace braid
