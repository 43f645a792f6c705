// dflash_config_gguf.cpp -- metadata of a drafter's GGUF file, in all known dialects.
// Older files use ARCH.dflash.KEY and tap outputs of layers, from 0. Newer files, of architecture
// "dflash", use dflash.KEY and name the layer whose input is tapped, one more.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gguf/gguf_text.h"
#include "model/config_reader.h"
#include "model/dflash/dflash_config.h"
#include "ops/ops.h"

namespace braid {
namespace {

constexpr std::string_view kNewArchitecture = "dflash";
constexpr std::string_view kOldArchitectures[] = {"qwen35-dflash-draft", "dflash-draft", "dspark"};

// The key in the spelling of the file's dialect.
std::string own_key(const MetadataKeys& keys, std::string_view key) {
  const std::string nested = fmt::format("dflash.{}", key);
  return keys.file().has(keys.full(nested)) ? nested : std::string(key);
}

Result<int32_t> own_number(const MetadataKeys& keys, std::string_view key, uint32_t low,
                           uint32_t high) {
  BRAID_ASSIGN(const uint32_t value, keys.u32(own_key(keys, key), low, high));
  return static_cast<int32_t>(value);
}

Result<int32_t> own_number_or_0(const MetadataKeys& keys, std::string_view key, uint32_t low,
                                uint32_t high) {
  if (!keys.file().has(keys.full(own_key(keys, key)))) return 0;
  return own_number(keys, key, low, high);
}

// Keys of DFlash2 and DSpark; the tensors decide whether they apply.
Status read_extras(const MetadataKeys& keys, DflashConfig& config) {
  BRAID_ASSIGN(config.conv_taps, own_number_or_0(keys, "conv_kernel_size", 1, kMostConvTaps));
  BRAID_ASSIGN(config.conv_group, own_number_or_0(keys, "conv_group_size", 1, kMaxWidth));
  BRAID_ASSIGN(config.candidates, own_number_or_0(keys, "selector_top_k", 1, kMostPairCandidates));
  for (const char* rank : {"selector_rank", "markov_rank"}) {
    BRAID_ASSIGN(const int32_t value, own_number_or_0(keys, rank, 1, kMostPairRank));
    if (value != 0) config.pair_rank = value;
  }
  constexpr std::string_view kType = "markov_head_type";
  if (const std::string type = keys.full(own_key(keys, kType)); keys.file().has(type)) {
    BRAID_ASSIGN(const std::string_view name, keys.file().get_string(type));
    if (name != "vanilla")
      return keys.unsupported(
          own_key(keys, kType),
          fmt::format("is {}; braid computes vanilla Markov heads", quoted(name)));
  }
  BRAID_ASSIGN(config.from_anchor,
               keys.file().find_bool(keys.full(own_key(keys, "sample_from_anchor"))));
  BRAID_ASSIGN(config.has_confidence,
               keys.file().find_bool(keys.full(own_key(keys, "has_confidence_head"))));
  return {};
}

Status read_taps(const MetadataKeys& keys, DflashConfig& config) {
  const bool counts_inputs = keys.file().has(keys.full("target_layers"));
  const std::string key = counts_inputs ? "target_layers" : own_key(keys, "target_layer_ids");
  if (!keys.file().has(keys.full(key))) return {};
  BRAID_ASSIGN(config.taps, keys.file().get_i32s(keys.full(key)));
  if (config.taps.empty() || config.taps.size() > DflashConfig::kMaxTaps)
    return keys.corrupt(key, fmt::format("has {} entries", config.taps.size()));
  for (const int32_t tap : config.taps)
    if (tap < 0 || tap > static_cast<int32_t>(kMaxLayers))
      return keys.corrupt(key, fmt::format("{} is not a layer", tap));
  // No drafter taps the embedding, the input of layer 0, so a list with 0 counts outputs.
  const bool from_zero = std::find(config.taps.begin(), config.taps.end(), 0) != config.taps.end();
  if (counts_inputs && !from_zero)
    for (int32_t& tap : config.taps) --tap;
  return {};
}

Status read_layers(const MetadataKeys& keys, DflashConfig& config) {
  BRAID_ASSIGN(const uint32_t layers, keys.u32("block_count", 1, kMaxLayers));
  BRAID_ASSIGN(const uint32_t heads, keys.u32("attention.head_count", 1, kMaxHeads));
  BRAID_ASSIGN(const uint32_t kv_heads, keys.u32("attention.head_count_kv", 1, heads));
  BRAID_ASSIGN(const uint32_t head_dim, keys.u32("attention.key_length", 2, kMaxHeadDim));
  BRAID_ASSIGN(const uint32_t value_dim,
               keys.u32_or("attention.value_length", head_dim, 2, kMaxHeadDim));
  if (heads % kv_heads != 0)
    return keys.corrupt("attention.head_count_kv",
                        fmt::format("{} does not divide the {} heads", kv_heads, heads));
  if (value_dim != head_dim)
    return keys.unsupported("attention.value_length",
                            fmt::format("{} differs from key_length {}", value_dim, head_dim));
  if (head_dim % 2 != 0)
    return keys.corrupt("attention.key_length", fmt::format("{} is odd", head_dim));
  if (uint64_t{heads} * head_dim > kMaxWidth)
    return keys.corrupt("attention.head_count", "makes heads too wide");
  AttentionConfig attention;
  attention.heads = static_cast<int32_t>(heads);
  attention.kv_heads = static_cast<int32_t>(kv_heads);
  attention.head_dim = static_cast<int32_t>(head_dim);
  attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  config.layers.assign(layers, {attention});
  BRAID_ASSIGN(config.rope, read_rope(keys, attention.head_dim));
  return {};
}

Status read_kinds(const MetadataKeys& keys, DflashConfig& config) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  BRAID_ASSIGN(const uint32_t window, keys.u32_or("attention.sliding_window", 0, 0, kMaxContext));
  std::vector<bool> slides(config.layers.size(), window > 0);
  if (const GgufValue* pattern = keys.file().find(keys.full(kPattern));
      pattern != nullptr && window > 0) {
    if (!pattern->is_array() || pattern->elem_type != GgufValueType::BOOL)
      return keys.corrupt(kPattern, "is not an array of bools");
    if (pattern->count < slides.size())
      return keys.corrupt(
          kPattern, fmt::format("has {} entries for {} layers", pattern->count, slides.size()));
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = pattern->bytes[i] != std::byte{0};
  }
  BRAID_ASSIGN(const auto causal, keys.file().find_bool(keys.full("attention.causal")));
  for (size_t i = 0; i < slides.size(); ++i) {
    config.layers[i].attention.window = slides[i] ? static_cast<int32_t>(window) : 0;
    config.layers[i].causal = causal.value_or(slides[i]);
  }
  return {};
}

}  // namespace

Result<DflashConfig> read_dflash_gguf(const GgufFile& file) {
  BRAID_ASSIGN(const std::string_view architecture, file.get_string("general.architecture"));
  const bool is_new = architecture == kNewArchitecture;
  if (!is_new && std::find(std::begin(kOldArchitectures), std::end(kOldArchitectures),
                           architecture) == std::end(kOldArchitectures))
    return Error{
        ErrorKind::unsupported,
        fmt::format("{}: architecture {} is not a DFlash drafter of a model that braid runs",
                    file.name(), quoted(architecture))};
  const MetadataKeys keys(file, std::string(architecture));
  for (const char* key : {"logit_scale", "embedding_scale"}) {
    BRAID_ASSIGN(const float factor, keys.f32_or(key, 1));
    if (factor != 1) return keys.unsupported(key, "is not 1");
  }
  BRAID_ASSIGN(const float cap, keys.f32_or("final_logit_softcapping", 0));
  if (cap != 0) return keys.unsupported("final_logit_softcapping", "braid does not cap logits");

  DflashConfig config;
  BRAID_ASSIGN(config.width, keys.u32("embedding_length", 1, kMaxWidth));
  BRAID_ASSIGN(config.ffn_width, keys.u32("feed_forward_length", 1, kMaxWidth));
  BRAID_ASSIGN(config.vocabulary, keys.u32_or("vocab_size", 0, 1, INT32_MAX));
  constexpr std::string_view kEps = "attention.layer_norm_rms_epsilon";
  BRAID_ASSIGN(config.eps, file.get_f32(keys.full(kEps)));
  if (!(config.eps >= 0 && config.eps < 1))
    return keys.corrupt(kEps, fmt::format("{} is not a small number", config.eps));
  BRAID_ASSIGN(config.block, own_number(keys, "block_size", 2, DflashConfig::kMaxBlock));
  if (file.has("tokenizer.ggml.mask_token_id")) {
    BRAID_ASSIGN(config.mask_token, file.get_i32("tokenizer.ggml.mask_token_id"));
    if (config.mask_token < 0)
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: key tokenizer.ggml.mask_token_id: is negative", file.name())};
  } else {
    const bool noise = keys.file().has(keys.full("noise_token_id"));  // first files of DSpark
    BRAID_ASSIGN(config.mask_token,
                 own_number(keys, noise ? "noise_token_id" : "mask_token_id", 0, INT32_MAX));
  }
  BRAID_TRY(read_extras(keys, config));
  BRAID_TRY(read_taps(keys, config));
  BRAID_TRY(read_layers(keys, config));
  BRAID_TRY(read_kinds(keys, config));
  return config;
}

}  // namespace braid
