// qwen35.cpp -- qwen35 and qwen35moe: what their files say and what they call their tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/architectures.h"
#include "model/metadata_keys.h"
#include "model/weight_reader.h"

namespace braid {
namespace {

// One value for all attention layers; files may give an array with one entry per block.
Result<uint32_t> same_for_attention_layers(const MetadataKeys& keys, std::string_view key,
                                           const ModelConfig& config, uint32_t blocks) {
  BRAID_ASSIGN(const auto values, keys.file().get_u32_each(keys.full(key), blocks));
  uint32_t common = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].kind != LayerKind::attention) continue;
    if (common == 0) common = values[i];
    if (values[i] != common)
      return keys.unsupported(key,
                              fmt::format("differs between attention layers ({} and {})", common, values[i]));
  }
  return keys.in_range(key, common, 1, kMaxHeads);
}

// Which trunk layers are recurrent: an explicit list, or all but every interval-th.
Status read_layer_kinds(const MetadataKeys& keys, ModelConfig& config) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  if (const GgufValue* value = keys.file().find(keys.full(kList)); value != nullptr) {
    if (!value->is_array() || value->elem_type != GgufValueType::BOOL)
      return keys.corrupt(kList, "is not an array of bools");
    if (value->count < config.layers.size())
      return keys.corrupt(kList,
                          fmt::format("has {} entries for {} layers", value->count, config.layers.size()));
    for (size_t i = 0; i < config.layers.size(); ++i)
      if (value->bytes[i] == std::byte{0}) config.layers[i].kind = LayerKind::attention;
  } else {
    BRAID_ASSIGN(const uint32_t interval, keys.u32_or("full_attention_interval", 4, 1, kMaxLayers));
    for (size_t i = 0; i < config.layers.size(); ++i)
      if ((i + 1) % interval == 0) config.layers[i].kind = LayerKind::attention;
  }
  if (config.count(LayerKind::attention) == 0)
    return keys.unsupported("full_attention_interval", "leaves no attention layer");
  return {};
}

Result<RopeParams> read_rope(const MetadataKeys& keys, uint32_t head_dim) {
  BRAID_ASSIGN(const uint32_t dims, keys.u32_or("rope.dimension_count", head_dim, 2, head_dim));
  if (dims % 2 != 0) return keys.corrupt("rope.dimension_count", fmt::format("{} is odd", dims));
  BRAID_ASSIGN(const float base, keys.f32_or("rope.freq_base", 10000.0f));
  if (!(base > 1)) return keys.corrupt("rope.freq_base", fmt::format("{} is not above 1", base));
  const RopeParams rope{static_cast<int32_t>(dims), base};

  // With these sections every rotated pair of a text token turns by the same position: plain rope on `dims`
  // dims.
  constexpr std::string_view kSections = "rope.dimension_sections";
  BRAID_ASSIGN(const auto sections, keys.file().get_i32s(keys.full(kSections)));
  if (sections.size() != 4)
    return keys.corrupt(kSections, fmt::format("has {} entries instead of 4", sections.size()));
  int64_t sum = 0;
  for (const int32_t s : sections) {
    if (s < 0) return keys.corrupt(kSections, fmt::format("has a negative entry {}", s));
    sum += s;
  }
  if (sum != dims / 2)
    return keys.corrupt(kSections, fmt::format("sums to {}, not to half of the {} rotated dims", sum, dims));
  if (sections[3] != 0) return keys.unsupported(kSections, "has a fourth section");

  BRAID_ASSIGN(const auto scaling, keys.file().find_string(keys.full("rope.scaling.type")));
  if (scaling && *scaling != "none")
    return keys.unsupported("rope.scaling.type",
                            "asks for scaled rope, which this architecture does not use");
  return rope;
}

Result<AttentionConfig> read_attention(const MetadataKeys& keys, uint32_t blocks, const ModelConfig& config) {
  BRAID_ASSIGN(const uint32_t heads, same_for_attention_layers(keys, "attention.head_count", config, blocks));
  uint32_t kv_heads = heads;
  if (keys.file().has(keys.full("attention.head_count_kv"))) {
    BRAID_ASSIGN(kv_heads, same_for_attention_layers(keys, "attention.head_count_kv", config, blocks));
  }
  if (heads % kv_heads != 0)
    return keys.corrupt("attention.head_count_kv",
                        fmt::format("{} does not divide the {} heads", kv_heads, heads));
  const auto plain_dim = static_cast<uint32_t>(config.width / heads);
  BRAID_ASSIGN(const uint32_t k_dim, keys.u32_or("attention.key_length", plain_dim, 2, kMaxHeadDim));
  BRAID_ASSIGN(const uint32_t v_dim, keys.u32_or("attention.value_length", plain_dim, 2, kMaxHeadDim));
  BRAID_TRY(keys.in_range("attention.key_length", k_dim, 2, kMaxHeadDim));
  if (k_dim != v_dim)
    return keys.unsupported("attention.value_length",
                            fmt::format("{} differs from key_length {}", v_dim, k_dim));
  if (uint64_t{heads} * k_dim > kMaxWidth)
    return keys.corrupt("attention.head_count", fmt::format("{} heads of {} are too wide", heads, k_dim));
  AttentionConfig attention;
  attention.heads = static_cast<int32_t>(heads);
  attention.kv_heads = static_cast<int32_t>(kv_heads);
  attention.head_dim = static_cast<int32_t>(k_dim);
  attention.gate = kJointSigmoid;

  BRAID_ASSIGN(const float scale, keys.f32_or("attention.scale", 0));
  attention.scale = scale != 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k_dim)));
  BRAID_ASSIGN(const auto causal, keys.file().find_bool(keys.full("attention.causal")));
  if (causal && !*causal) return keys.unsupported("attention.causal", "asks for attention to later tokens");
  return attention;
}

Result<DeltaShape> read_delta(const MetadataKeys& keys) {
  BRAID_ASSIGN(const uint32_t taps, keys.u32("ssm.conv_kernel", 1, kMaxConvTaps));
  BRAID_ASSIGN(const uint32_t key_dim, keys.u32("ssm.state_size", 1, kMaxHeadDim));
  BRAID_ASSIGN(const uint32_t key_heads, keys.u32("ssm.group_count", 1, kMaxHeads));
  BRAID_ASSIGN(const uint32_t value_heads, keys.u32("ssm.time_step_rank", 1, kMaxHeads));
  BRAID_ASSIGN(const uint32_t inner, keys.u32("ssm.inner_size", 1, kMaxWidth));
  if (value_heads % key_heads != 0)
    return keys.corrupt("ssm.time_step_rank", fmt::format("{} value heads are no multiple of {} key heads",
                                                          value_heads, key_heads));
  if (inner % value_heads != 0)
    return keys.corrupt("ssm.inner_size",
                        fmt::format("{} is no multiple of {} value heads", inner, value_heads));
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

Result<FeedForwardConfig> read_experts(const MetadataKeys& keys) {
  BRAID_ASSIGN(const uint32_t experts, keys.u32("expert_count", 1, kMaxExperts));
  BRAID_ASSIGN(const uint32_t used, keys.u32("expert_used_count", 1, std::min(experts, kMaxExpertsUsed)));
  BRAID_ASSIGN(const uint32_t width, keys.u32("expert_feed_forward_length", 1, kMaxWidth));
  BRAID_ASSIGN(const uint32_t shared, keys.u32_or("expert_shared_feed_forward_length", 0, 0, kMaxWidth));
  FeedForwardConfig ffn;
  ffn.experts = static_cast<int32_t>(experts);
  ffn.experts_used = static_cast<int32_t>(used);
  ffn.expert_width = width;
  ffn.shared_width = shared;
  // The router of this family is fixed: softmax, the chosen weights normalised, no further factor.
  BRAID_ASSIGN(const uint32_t gating, keys.u32_or("expert_gating_func", 1, 0, 100));
  if (gating > 1) return keys.unsupported("expert_gating_func", fmt::format("{} is not softmax (1)", gating));
  BRAID_ASSIGN(const float factor, keys.f32_or("expert_weights_scale", 0));
  if (factor != 0 && factor != 1) return keys.unsupported("expert_weights_scale", "is not 1");
  BRAID_ASSIGN(const auto norm, keys.file().find_bool(keys.full("expert_weights_norm")));
  if (norm && !*norm) return keys.unsupported("expert_weights_norm", "turns normalisation off");
  return ffn;
}

// The head that predicts the token after the next one.
Status describe_mtp(WeightReader& reader, const ModelConfig& config, const LayerConfig& layer,
                    ModelWeights& out, MtpWeights& head, const std::string& prefix) {
  BRAID_TRY(reader.matrix(head.eh_proj, prefix + "nextn.eh_proj", config.width, 2 * config.width));
  BRAID_TRY(reader.vector(head.embedding_norm, prefix + "nextn.enorm.weight", config.width));
  BRAID_TRY(reader.vector(head.hidden_norm, prefix + "nextn.hnorm.weight", config.width));
  const bool has_norm = reader.has(prefix + "nextn.shared_head_norm.weight");
  const std::string norm_name = has_norm ? prefix + "nextn.shared_head_norm.weight" : "output_norm.weight";
  BRAID_TRY(reader.vector(head.head_norm, norm_name, config.width));
  if (!has_norm) reader.uncount(config.width);  // counted with the trunk
  head.embedding = &out.embedding;
  if (reader.has(prefix + "nextn.embed_tokens.weight")) {
    BRAID_TRY(
        reader.matrix(head.own_embedding, prefix + "nextn.embed_tokens", config.vocabulary, config.width));
    WeightReader::mark_as_table(head.own_embedding, false);
    head.embedding = &head.own_embedding;
  }
  head.head = &out.head();
  if (reader.has(prefix + "nextn.shared_head_head.weight")) {
    BRAID_TRY(
        reader.matrix(head.own_head, prefix + "nextn.shared_head_head", config.vocabulary, config.width));
    head.head = &head.own_head;
  }
  BRAID_TRY(reader.vector(head.layer.mixer_norm, prefix + "attn_norm.weight", config.width));
  BRAID_TRY(reader.attention(head.layer.attention, layer.attention, prefix));
  BRAID_TRY(reader.vector(head.layer.ffn_norm, prefix + "post_attention_norm.weight", config.width));
  // Some files lack the feed-forward part of this block: then the block goes without.
  const bool has_ffn = reader.has(prefix + "ffn_down.weight") || reader.has(prefix + "ffn_down_exps.weight");
  return has_ffn ? reader.feed_forward(head.layer, layer.feed_forward, prefix) : Status();
}

}  // namespace

Result<ModelConfig> read_qwen35_config(const GgufFile& file) {
  ModelConfig config;
  BRAID_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  config.architecture = architecture;
  BRAID_ASSIGN(const auto name, file.find_string("general.name"));
  if (name) config.name = *name;
  const MetadataKeys keys(file, config.architecture);

  BRAID_ASSIGN(const uint32_t blocks, keys.u32("block_count", 1, kMaxLayers));
  BRAID_ASSIGN(const uint32_t mtp, keys.u32_or("nextn_predict_layers", 0, 0, kMaxLayers));
  if (mtp >= blocks)
    return keys.corrupt("nextn_predict_layers", fmt::format("{} of {} blocks leave no layer", mtp, blocks));
  config.layers.resize(blocks - mtp);
  BRAID_ASSIGN(const uint32_t context, keys.u32("context_length", 1, kMaxContext));
  config.context_length = static_cast<int32_t>(context);
  BRAID_ASSIGN(const uint32_t width, keys.u32("embedding_length", 1, kMaxWidth));
  config.width = width;
  BRAID_ASSIGN(config.eps, file.get_f32(keys.full("attention.layer_norm_rms_epsilon")));
  if (!(config.eps >= 0 && config.eps < 1))
    return keys.corrupt("attention.layer_norm_rms_epsilon",
                        fmt::format("{} is not a small number", config.eps));

  BRAID_TRY(read_layer_kinds(keys, config));
  LayerConfig all;  // of this family every layer of a kind is alike
  BRAID_ASSIGN(all.attention, read_attention(keys, blocks, config));
  BRAID_ASSIGN(const RopeParams rope, read_rope(keys, static_cast<uint32_t>(all.attention.head_dim)));
  config.ropes = {rope};
  BRAID_ASSIGN(all.delta, read_delta(keys));
  if (config.architecture == "qwen35moe") {
    BRAID_ASSIGN(all.feed_forward, read_experts(keys));
  } else {
    BRAID_ASSIGN(const auto widths, file.get_u32_each(keys.full("feed_forward_length"), blocks));
    for (const uint32_t w : widths)
      if (w != widths[0]) return keys.unsupported("feed_forward_length", "differs between layers");
    BRAID_ASSIGN(all.feed_forward.width, keys.in_range("feed_forward_length", widths[0], 1, kMaxWidth));
  }
  for (LayerConfig& layer : config.layers) {
    all.kind = layer.kind;
    layer = all;
  }
  all.kind = LayerKind::attention;
  config.mtp.assign(mtp, all);
  return config;
}

Status describe_qwen35_weights(const GgufFile& file, ModelConfig& config, bool with_mtp, ModelWeights& out) {
  WeightReader reader(file, config, out);
  BRAID_TRY(reader.ends());
  out.layers = std::vector<LayerWeights>(config.layers.size());
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    const LayerConfig& c = config.layers[i];
    LayerWeights& layer = out.layers[i];
    BRAID_TRY(reader.vector(layer.mixer_norm, prefix + "attn_norm.weight", config.width));
    if (c.kind == LayerKind::attention) {
      BRAID_TRY(reader.attention(layer.attention, c.attention, prefix));
    } else {
      BRAID_TRY(reader.delta(layer.delta, c.delta, prefix));
    }
    BRAID_TRY(reader.vector(layer.ffn_norm, prefix + "post_attention_norm.weight", config.width));
    BRAID_TRY(reader.feed_forward(layer, c.feed_forward, prefix));
  }
  const int64_t trunk = reader.parameters();

  // Files exist that announce the head and do not hold it.
  const size_t first = config.layers.size();
  if (with_mtp && !config.mtp.empty() && reader.has(fmt::format("blk.{}.nextn.eh_proj.weight", first))) {
    out.mtp = std::vector<MtpWeights>(config.mtp.size());
    for (size_t i = 0; i < config.mtp.size(); ++i)
      BRAID_TRY(
          describe_mtp(reader, config, config.mtp[i], out, out.mtp[i], fmt::format("blk.{}.", first + i)));
  }
  out.count_parameters(trunk, reader.parameters() - trunk);
  return {};
}

}  // namespace braid
