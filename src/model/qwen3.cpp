// qwen3.cpp -- qwen3 and qwen3moe: ungated attention in every layer.
#include "model/architectures.h"
#include "model/config_reader.h"
#include "model/weight_reader.h"

namespace braid {

Result<ModelConfig> read_qwen3_config(const GgufFile& file) {
  ModelConfig config;
  BRAID_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  const MetadataKeys keys(file, std::string(architecture));
  BRAID_TRY(read_sizes(keys, config));
  BRAID_TRY(read_attention(keys, config, {}));
  BRAID_ASSIGN(const RopeParams rope, read_rope(keys, head_dim_of(config)));
  config.ropes = {rope};
  if (architecture == "qwen3") {
    BRAID_TRY(read_dense(keys, config));
    return config;
  }
  BRAID_ASSIGN(FeedForwardConfig experts, read_experts(keys, RouteParams::Score::softmax));
  experts.shared_width = 0;
  for (size_t i = 0; i < block_count(config); ++i) block_of(config, i).feed_forward = experts;
  return config;
}

Status describe_qwen3_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                              ModelWeights& out) {
  WeightReader reader(file, config, out);
  return reader.decoder({.ffn_norm = "ffn_norm.weight"}, with_mtp);
}

}  // namespace braid
