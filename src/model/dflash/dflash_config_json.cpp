// dflash_config_json.cpp -- config.json of a published drafter.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/json.h"
#include "gguf/gguf_text.h"
#include "model/dflash/dflash_config.h"
#include "model/metadata_keys.h"
#include "ops/ops.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

// Values of one object; errors name the file and the key. null counts as absent.
class Object {
 public:
  Object(const Json& json, std::string file, std::string prefix)
      : json_(json), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  Error wrong(const std::string& key, const std::string& why,
              ErrorKind kind = ErrorKind::corrupt) const {
    return {kind, fmt::format("{}: key {}{}: {}", file_, prefix_, key, why)};
  }
  Result<int64_t> integer(const std::string& key, const Json& value, int64_t low,
                          int64_t high) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
      return wrong(key, "is not an integer");
    const auto number = value.get<int64_t>();
    if (number < low || number > high)
      return wrong(key, fmt::format("{} is not between {} and {}", number, low, high));
    return number;
  }
  Result<int64_t> integer(const char* key, int64_t low, int64_t high) const {
    const Json* value = find(key);
    return value == nullptr ? Result<int64_t>(wrong(key, "is missing"))
                            : integer(key, *value, low, high);
  }
  Result<int64_t> integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) const {
    return find(key) == nullptr ? Result<int64_t>(fallback) : integer(key, low, high);
  }
  Result<double> number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return wrong(key, "is missing");
    if (!value->is_number() || !std::isfinite(value->get<double>()))
      return wrong(key, "is not a number");
    return value->get<double>();
  }
  Result<std::optional<bool>> truth(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<bool>();
    if (!value->is_boolean()) return wrong(key, "is neither true nor false");
    return std::optional(value->get<bool>());
  }
  Result<Object> object(const char* key) const {
    static const Json kEmpty = Json::object();
    const Json* value = find(key);
    if (value != nullptr && !value->is_object()) return wrong(key, "is not an object");
    return Object(value == nullptr ? kEmpty : *value, file_, prefix_ + key + ".");
  }

 private:
  const Json& json_;
  std::string file_;
  std::string prefix_;
};

// Keys of the drafter are in their own object or beside the sizes of its layers.
const Object& place_of(const char* key, const Object& top, const Object& dflash) {
  return dflash.find(key) != nullptr ? dflash : top;
}

Status read_taps(const Object& place, DflashConfig& config) {
  const Json* list = place.find("target_layer_ids");
  if (list == nullptr) return {};
  if (!list->is_array() || list->empty() || list->size() > DflashConfig::kMaxTaps)
    return place.wrong("target_layer_ids",
                       fmt::format("is not a list of 1 to {}", DflashConfig::kMaxTaps));
  for (const Json& id : *list) {
    BRAID_ASSIGN(const int64_t tap, place.integer("target_layer_ids", id, 0, kMaxLayers));
    config.taps.push_back(static_cast<int32_t>(tap));
  }
  return {};
}

Status read_extras(const Object& top, const Object& dflash, DflashConfig& config) {
  const struct {
    const char* key;
    int32_t* value;
    int64_t most;
  } numbers[] = {{"conv_kernel_size", &config.conv_taps, kMostConvTaps},
                 {"conv_group_size", &config.conv_group, kMaxWidth},
                 {"selector_top_k", &config.candidates, kMostPairCandidates},
                 {"selector_rank", &config.pair_rank, kMostPairRank},
                 {"markov_rank", &config.pair_rank, kMostPairRank}};
  for (const auto& number : numbers) {
    const Object& place = place_of(number.key, top, dflash);
    if (place.find(number.key) == nullptr) continue;
    BRAID_ASSIGN(const int64_t value, place.integer(number.key, 1, number.most));
    *number.value = static_cast<int32_t>(value);
  }
  const Object& type = place_of("markov_head_type", top, dflash);
  if (const Json* name = type.find("markov_head_type"); name != nullptr && *name != "vanilla")
    return type.wrong("markov_head_type", "braid computes vanilla Markov heads",
                      ErrorKind::unsupported);
  BRAID_ASSIGN(config.from_anchor,
               place_of("sample_from_anchor", top, dflash).truth("sample_from_anchor"));
  BRAID_ASSIGN(config.has_confidence,
               place_of("enable_confidence_head", top, dflash).truth("enable_confidence_head"));
  return {};
}

Status read_rope(const Object& top, DflashConfig& config, int32_t head_dim) {
  BRAID_ASSIGN(const Object nested, top.object("rope_parameters"));
  const Object& rope = nested.find("rope_theta") != nullptr ? nested : top;
  BRAID_ASSIGN(const double base, rope.number("rope_theta"));
  if (!(base > 1)) return rope.wrong("rope_theta", fmt::format("{} is not above 1", base));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    BRAID_ASSIGN(const Object scaling, top.object(key));
    for (const char* type : {"rope_type", "type"})
      if (const Json* value = scaling.find(type); value != nullptr && *value != "default")
        return scaling.wrong(type, "braid does not scale a drafter's rope", ErrorKind::unsupported);
  }
  if (const Json* part = top.find("partial_rotary_factor"); part != nullptr && *part != 1.0)
    return top.wrong("partial_rotary_factor", "is not 1", ErrorKind::unsupported);
  if (head_dim % 2 != 0) return top.wrong("head_dim", fmt::format("{} is odd", head_dim));
  config.rope = {head_dim, base};
  return {};
}

Status read_kinds(const Object& top, const Object& dflash, DflashConfig& config) {
  BRAID_ASSIGN(const int64_t top_window, top.integer_or("sliding_window", 0, 1, kMaxContext));
  BRAID_ASSIGN(const int64_t window,
               dflash.integer_or("swa_window_size", top_window, 1, kMaxContext));
  std::vector<bool> slides(config.layers.size(), false);
  if (const Json* types = top.find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != slides.size())
      return top.wrong("layer_types", fmt::format("is not a list of {}", slides.size()));
    for (size_t i = 0; i < slides.size(); ++i) {
      const Json& type = (*types)[i];
      if (type != "sliding_attention" && type != "full_attention")
        return top.wrong("layer_types", "names a kind that braid does not compute",
                         ErrorKind::unsupported);
      slides[i] = type == "sliding_attention";
    }
  } else {
    BRAID_ASSIGN(const auto own, dflash.truth("use_swa"));
    BRAID_ASSIGN(const auto general, top.truth("use_sliding_window"));
    if (own.value_or(general.value_or(false))) slides.assign(slides.size(), true);
  }
  if (window == 0 && std::find(slides.begin(), slides.end(), true) != slides.end())
    return top.wrong("sliding_window", "is missing");
  BRAID_ASSIGN(auto causal, dflash.truth("causal"));
  for (const Object* place : {&dflash, &top}) {
    if (causal) break;
    BRAID_ASSIGN(causal, place->truth("is_causal"));
  }
  for (size_t i = 0; i < slides.size(); ++i) {
    config.layers[i].attention.window = slides[i] ? static_cast<int32_t>(window) : 0;
    config.layers[i].causal = causal.value_or(slides[i]);
  }
  return {};
}

Status read_layers(const Object& top, DflashConfig& config) {
  BRAID_ASSIGN(const int64_t layers, top.integer("num_hidden_layers", 1, kMaxLayers));
  BRAID_ASSIGN(const int64_t heads, top.integer("num_attention_heads", 1, kMaxHeads));
  BRAID_ASSIGN(const int64_t kv_heads, top.integer("num_key_value_heads", 1, heads));
  BRAID_ASSIGN(const int64_t head_dim, top.integer("head_dim", 2, kMaxHeadDim));
  if (heads % kv_heads != 0)
    return top.wrong("num_key_value_heads",
                     fmt::format("{} does not divide the {} heads", kv_heads, heads));
  if (heads * head_dim > kMaxWidth) return top.wrong("head_dim", "makes heads too wide");
  AttentionConfig attention;
  attention.heads = static_cast<int32_t>(heads);
  attention.kv_heads = static_cast<int32_t>(kv_heads);
  attention.head_dim = static_cast<int32_t>(head_dim);
  attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  config.layers.assign(static_cast<size_t>(layers), {attention});
  return read_rope(top, config, attention.head_dim);
}

// The last is DSpark's name for Qwen trunks.
bool is_known(const Json& kinds) {
  constexpr const char* kKnown[] = {"DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel",
                                    "Qwen3DSparkModel"};
  return std::any_of(std::begin(kKnown), std::end(kKnown),
                     [&](const char* name) { return kinds == Json::array({name}); });
}

}  // namespace

Result<DflashConfig> read_dflash_json(std::string_view text, const std::string& name) {
  const auto parsed = parse_json(text);
  if (!parsed.ok())
    return Error{ErrorKind::corrupt, fmt::format("{}: {}", name, parsed.error().message)};
  const Json& json = *parsed;
  if (!json.is_object())
    return Error{ErrorKind::corrupt, fmt::format("{}: is not a JSON object", name)};
  const Object top(json, name, "");
  if (const Json* kinds = top.find("architectures"); kinds != nullptr && !is_known(*kinds))
    return top.wrong("architectures",
                     "names none of DFlashDraftModel, DFlash2DraftModel, DSparkDraftModel",
                     ErrorKind::unsupported);
  if (top.find("dflash_config") == nullptr && top.find("mask_token_id") == nullptr)
    return top.wrong("dflash_config", "is missing");
  BRAID_ASSIGN(const Object dflash, top.object("dflash_config"));
  for (const char* key : {"input_embedding_scale", "output_multiplier"})
    if (const Json* value = dflash.find(key); value != nullptr && *value != 1.0)
      return dflash.wrong(key, "is not 1", ErrorKind::unsupported);
  if (dflash.find("final_logit_softcapping") != nullptr)
    return dflash.wrong("final_logit_softcapping", "braid does not cap logits",
                        ErrorKind::unsupported);
  if (const Json* act = top.find("hidden_act"); act != nullptr && *act != "silu")
    return top.wrong("hidden_act", "is not silu", ErrorKind::unsupported);

  DflashConfig config;
  BRAID_ASSIGN(config.width, top.integer("hidden_size", 1, kMaxWidth));
  BRAID_ASSIGN(config.ffn_width, top.integer("intermediate_size", 1, kMaxWidth));
  BRAID_ASSIGN(config.vocabulary, top.integer_or("vocab_size", 0, 1, INT32_MAX));
  BRAID_ASSIGN(const int64_t target_layers, top.integer_or("num_target_layers", 0, 1, kMaxLayers));
  config.target_layers = static_cast<int32_t>(target_layers);
  BRAID_ASSIGN(const double eps, top.number("rms_norm_eps"));
  if (!(eps >= 0 && eps < 1))
    return top.wrong("rms_norm_eps", fmt::format("{} is not a small number", eps));
  config.eps = static_cast<float>(eps);
  const auto own = [&](const char* key, int64_t low, int64_t high) {
    return place_of(key, top, dflash).integer(key, low, high);
  };
  BRAID_ASSIGN(const int64_t block, own("block_size", 2, DflashConfig::kMaxBlock));
  config.block = static_cast<int32_t>(block);
  BRAID_ASSIGN(const int64_t mask, own("mask_token_id", 0, INT32_MAX));
  config.mask_token = static_cast<int32_t>(mask);
  BRAID_TRY(read_extras(top, dflash, config));
  BRAID_TRY(read_taps(place_of("target_layer_ids", top, dflash), config));
  BRAID_TRY(read_layers(top, config));
  BRAID_TRY(read_kinds(top, dflash, config));
  return config;
}

}  // namespace braid
