// config.cpp -- metadata of qwen35 and qwen35moe files, checked.
//
// The limits are far above published models; they exist so that products of two or three sizes stay far below
// 2^63 and no later code needs checked arithmetic on them.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxWidth = 1 << 18;  // of any activation row part
constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxConvTaps = 16;
constexpr uint32_t kMaxExperts = 65536;
constexpr uint32_t kMaxExpertsUsed = 64;
constexpr uint32_t kMaxContext = 1 << 28;

// Reads keys of one architecture and says which one is wrong.
class Keys {
 public:
  explicit Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  const GgufFile& file() const { return file_; }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }

  Error corrupt(std::string_view key, const std::string& why) const {
    return {ErrorKind::corrupt, fmt::format("{}: key {}: {}", file_.name(), full(key), why)};
  }
  Error unsupported(std::string_view key, const std::string& why) const {
    return {ErrorKind::unsupported, fmt::format("{}: key {}: {}", file_.name(), full(key), why)};
  }

  Result<uint32_t> in_range(std::string_view key, uint32_t value, uint32_t low, uint32_t high) const {
    if (value < low || value > high)
      return corrupt(key, fmt::format("{} is not between {} and {}", value, low, high));
    return value;
  }
  Result<uint32_t> u32(std::string_view key, uint32_t low, uint32_t high) const {
    BRAID_ASSIGN(const uint32_t value, file_.get_u32(full(key)));
    return in_range(key, value, low, high);
  }
  Result<uint32_t> u32_or(std::string_view key, uint32_t fallback, uint32_t low, uint32_t high) const {
    BRAID_ASSIGN(const auto value, file_.find_u32(full(key)));
    return value ? in_range(key, *value, low, high) : Result<uint32_t>(fallback);
  }
  Result<float> f32_or(std::string_view key, float fallback) const {
    BRAID_ASSIGN(const auto value, file_.find_f32(full(key)));
    if (value && !std::isfinite(*value)) return corrupt(key, "is not a finite number");
    return value ? *value : fallback;
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// One value for all attention layers; files may give an array with one entry per block.
Result<uint32_t> same_for_attention_layers(const Keys& keys, std::string_view key, const ModelConfig& config,
                                           uint32_t blocks) {
  BRAID_ASSIGN(const auto values, keys.file().get_u32_each(keys.full(key), blocks));
  uint32_t common = 0;
  for (int32_t i = 0; i < config.layers; ++i) {
    if (config.kinds[i] != LayerKind::attention) continue;
    if (common == 0) common = values[i];
    if (values[i] != common)
      return keys.unsupported(key,
                              fmt::format("differs between attention layers ({} and {})", common, values[i]));
  }
  return keys.in_range(key, common, 1, kMaxHeads);
}

// Which trunk layers are recurrent: an explicit list, or all but every interval-th.
Status read_layer_kinds(const Keys& keys, ModelConfig& config) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  config.kinds.assign(config.layers, LayerKind::delta);
  if (const GgufValue* value = keys.file().find(keys.full(kList)); value != nullptr) {
    if (!value->is_array() || value->elem_type != GgufValueType::BOOL)
      return keys.corrupt(kList, "is not an array of bools");
    if (value->count < static_cast<uint64_t>(config.layers))
      return keys.corrupt(kList, fmt::format("has {} entries for {} layers", value->count, config.layers));
    for (int32_t i = 0; i < config.layers; ++i)
      if (value->bytes[i] == std::byte{0}) config.kinds[i] = LayerKind::attention;
  } else {
    BRAID_ASSIGN(const uint32_t interval, keys.u32_or("full_attention_interval", 4, 1, kMaxLayers));
    for (int32_t i = 0; i < config.layers; ++i)
      if ((static_cast<uint32_t>(i) + 1) % interval == 0) config.kinds[i] = LayerKind::attention;
  }
  if (config.count(LayerKind::attention) == 0)
    return keys.unsupported("full_attention_interval", "leaves no attention layer");
  return {};
}

Status read_rope(const Keys& keys, ModelConfig& config) {
  const auto head_dim = static_cast<uint32_t>(config.head_dim);
  BRAID_ASSIGN(const uint32_t dims, keys.u32_or("rope.dimension_count", head_dim, 2, head_dim));
  if (dims % 2 != 0) return keys.corrupt("rope.dimension_count", fmt::format("{} is odd", dims));
  BRAID_ASSIGN(const float base, keys.f32_or("rope.freq_base", 10000.0f));
  if (!(base > 1)) return keys.corrupt("rope.freq_base", fmt::format("{} is not above 1", base));
  config.rope = {static_cast<int32_t>(dims), base};

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
  return {};
}

Status read_attention(const Keys& keys, uint32_t blocks, ModelConfig& config) {
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
  config.heads = static_cast<int32_t>(heads);
  config.kv_heads = static_cast<int32_t>(kv_heads);
  config.head_dim = static_cast<int32_t>(k_dim);

  BRAID_ASSIGN(const float scale, keys.f32_or("attention.scale", 0));
  config.attention_scale =
      scale != 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k_dim)));
  BRAID_ASSIGN(const auto causal, keys.file().find_bool(keys.full("attention.causal")));
  if (causal && !*causal) return keys.unsupported("attention.causal", "asks for attention to later tokens");
  return read_rope(keys, config);
}

Status read_delta(const Keys& keys, ModelConfig& config) {
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
  config.delta = {static_cast<int32_t>(key_heads), static_cast<int32_t>(value_heads),
                  static_cast<int32_t>(key_dim), static_cast<int32_t>(inner / value_heads),
                  static_cast<int32_t>(taps)};
  return {};
}

Status read_experts(const Keys& keys, ModelConfig& config) {
  BRAID_ASSIGN(const uint32_t experts, keys.u32("expert_count", 1, kMaxExperts));
  BRAID_ASSIGN(const uint32_t used, keys.u32("expert_used_count", 1, std::min(experts, kMaxExpertsUsed)));
  BRAID_ASSIGN(const uint32_t width, keys.u32("expert_feed_forward_length", 1, kMaxWidth));
  BRAID_ASSIGN(const uint32_t shared, keys.u32_or("expert_shared_feed_forward_length", 0, 0, kMaxWidth));
  config.experts = static_cast<int32_t>(experts);
  config.experts_used = static_cast<int32_t>(used);
  config.expert_width = width;
  config.shared_width = shared;
  // The router of this family is fixed: softmax, the chosen weights normalised, no further factor.
  BRAID_ASSIGN(const uint32_t gating, keys.u32_or("expert_gating_func", 1, 0, 100));
  if (gating > 1) return keys.unsupported("expert_gating_func", fmt::format("{} is not softmax (1)", gating));
  BRAID_ASSIGN(const float factor, keys.f32_or("expert_weights_scale", 0));
  if (factor != 0 && factor != 1) return keys.unsupported("expert_weights_scale", "is not 1");
  BRAID_ASSIGN(const auto norm, keys.file().find_bool(keys.full("expert_weights_norm")));
  if (norm && !*norm) return keys.unsupported("expert_weights_norm", "turns normalisation off");
  return {};
}

}  // namespace

int32_t ModelConfig::count(LayerKind kind) const {
  return static_cast<int32_t>(std::count(kinds.begin(), kinds.end(), kind));
}

int64_t ModelConfig::kv_bytes_per_token(KvFormat k, KvFormat v) const {
  return int64_t{count(LayerKind::attention)} * kv_heads *
         (kv_row_bytes(k, head_dim) + kv_row_bytes(v, head_dim));
}

Result<ModelConfig> read_qwen35_config(const GgufFile& file) {
  ModelConfig config;
  BRAID_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  config.architecture = architecture;
  BRAID_ASSIGN(const auto name, file.find_string("general.name"));
  if (name) config.name = *name;
  const Keys keys(file, config.architecture);

  BRAID_ASSIGN(const uint32_t blocks, keys.u32("block_count", 1, kMaxLayers));
  BRAID_ASSIGN(const uint32_t mtp, keys.u32_or("nextn_predict_layers", 0, 0, kMaxLayers));
  if (mtp >= blocks)
    return keys.corrupt("nextn_predict_layers", fmt::format("{} of {} blocks leave no layer", mtp, blocks));
  config.layers = static_cast<int32_t>(blocks - mtp);
  config.mtp_layers = static_cast<int32_t>(mtp);
  BRAID_ASSIGN(const uint32_t context, keys.u32("context_length", 1, kMaxContext));
  config.context_length = static_cast<int32_t>(context);
  BRAID_ASSIGN(const uint32_t width, keys.u32("embedding_length", 1, kMaxWidth));
  config.width = width;
  BRAID_ASSIGN(config.eps, file.get_f32(keys.full("attention.layer_norm_rms_epsilon")));
  if (!(config.eps >= 0 && config.eps < 1))
    return keys.corrupt("attention.layer_norm_rms_epsilon",
                        fmt::format("{} is not a small number", config.eps));

  BRAID_TRY(read_layer_kinds(keys, config));
  BRAID_TRY(read_attention(keys, blocks, config));
  BRAID_TRY(read_delta(keys, config));
  if (config.architecture == "qwen35moe") {
    BRAID_TRY(read_experts(keys, config));
  } else {
    BRAID_ASSIGN(const auto widths, file.get_u32_each(keys.full("feed_forward_length"), blocks));
    for (const uint32_t w : widths)
      if (w != widths[0]) return keys.unsupported("feed_forward_length", "differs between layers");
    BRAID_ASSIGN(const uint32_t ffn, keys.in_range("feed_forward_length", widths[0], 1, kMaxWidth));
    config.ffn_width = ffn;
  }
  return config;
}

}  // namespace braid
