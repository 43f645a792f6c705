// qwen35.cpp -- qwen35 and qwen35moe: recurrent layers between gated attention layers.
#include <fmt/format.h>

#include "model/architectures.h"
#include "model/config_reader.h"
#include "model/weight_reader.h"

namespace braid {
namespace {

// Text tokens have three equal positions, so sections that cover all pairs equal plain rope.
Status check_sections(const MetadataKeys& keys, const RopeParams& rope) {
  constexpr std::string_view kSections = "rope.dimension_sections";
  BRAID_ASSIGN(const auto sections, keys.file().get_i32s(keys.full(kSections)));
  if (sections.size() != 4)
    return keys.corrupt(kSections, fmt::format("has {} entries instead of 4", sections.size()));
  int64_t sum = 0;
  for (const int32_t s : sections) {
    if (s < 0) return keys.corrupt(kSections, fmt::format("has a negative entry {}", s));
    sum += s;
  }
  if (sum != rope.dims / 2)
    return keys.corrupt(
        kSections, fmt::format("sums to {}, not to half of the {} rotated dims", sum, rope.dims));
  if (sections[3] != 0) return keys.unsupported(kSections, "has a fourth section");
  return {};
}

}  // namespace

Result<ModelConfig> read_qwen35_config(const GgufFile& file) {
  ModelConfig config;
  BRAID_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  const MetadataKeys keys(file, std::string(architecture));
  BRAID_TRY(read_sizes(keys, config));
  BRAID_TRY(read_recurrent_layers(keys, config));
  BRAID_TRY(read_attention(keys, config, kJointSigmoid));
  BRAID_ASSIGN(const DeltaShape delta, read_delta(keys));
  FeedForwardConfig experts;
  if (architecture == "qwen35moe") {
    BRAID_ASSIGN(experts, read_experts(keys, RouteParams::Score::softmax));
  } else {
    BRAID_TRY(read_dense(keys, config));
  }
  for (size_t i = 0; i < block_count(config); ++i) {
    LayerConfig& layer = block_of(config, i);
    if (experts.is_moe()) layer.feed_forward = experts;
    if (layer.kind == LayerKind::delta) layer.delta = delta;
  }
  BRAID_ASSIGN(const RopeParams rope, read_rope(keys, head_dim_of(config)));
  BRAID_TRY(check_sections(keys, rope));
  config.ropes = {rope};
  return config;
}

Status describe_qwen35_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                               ModelWeights& out) {
  WeightReader reader(file, config, out);
  return reader.decoder({.ffn_norm = "post_attention_norm.weight", .delta = &read_plain_delta},
                        with_mtp);
}

}  // namespace braid
