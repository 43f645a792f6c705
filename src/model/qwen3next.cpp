// qwen3next.cpp -- Qwen3-Next and Qwen3-Coder-Next: qwen35moe with other recurrent heads.
//
// Value heads of a key head are adjacent. Rows of fused matrices for each key head in turn, with r
// = value heads per key head:
//   ssm_ba  {E, 2 Hv}               beta of its r value heads, then alpha.
//   ssm_in  {E, 2 Hk Dk + 2 Hv Dv}  q (Dk), k (Dk), v (r Dv), z (r Dv).
// Newer files have attn_qkv (all q, all k, all v) and attn_gate (all z) instead of ssm_in.
#include "model/architectures.h"
#include "model/config_reader.h"
#include "model/weight_reader.h"

namespace braid {
namespace {

// `count` rows from `first` on, in each of `heads` groups of `stride` rows.
std::vector<RowRun> runs_of(int64_t heads, int64_t stride, int64_t first, int64_t count) {
  std::vector<RowRun> runs;
  for (int64_t h = 0; h < heads; ++h) runs.push_back({h * stride + first, count});
  return runs;
}

Status read_projections(WeightReader& reader, DeltaBlock& d, const DeltaShape& s,
                        const std::string& prefix) {
  const int64_t heads = s.key_heads;
  const int64_t key = s.key_dim;
  const int64_t value = int64_t{s.heads_per_key()} * s.value_dim;
  const int64_t stride = 2 * (key + value);
  Weight fused;
  BRAID_TRY(reader.matrix(fused, prefix + "ssm_in", heads * stride, reader.width()));
  std::vector<RowRun> rows = runs_of(heads, stride, 0, key);
  for (const RowRun& k : runs_of(heads, stride, key, key)) rows.push_back(k);
  for (const RowRun& v : runs_of(heads, stride, 2 * key, value)) rows.push_back(v);
  d.qkv = rows_of(fused, rows, " (qkv)");
  d.z = rows_of(fused, runs_of(heads, stride, 2 * key + value, value), " (z)");
  return {};
}

Status read_delta_weights(WeightReader& reader, DeltaBlock& d, const DeltaShape& s,
                          const std::string& prefix) {
  if (reader.has(prefix + "ssm_in.weight")) {
    BRAID_TRY(read_projections(reader, d, s, prefix));
  } else {
    BRAID_TRY(reader.delta_projections(d, s, prefix));
  }
  Weight gates;
  BRAID_TRY(reader.matrix(gates, prefix + "ssm_ba", int64_t{2} * s.value_heads, reader.width()));
  const int64_t per_key = s.heads_per_key();
  d.beta = rows_of(gates, runs_of(s.key_heads, 2 * per_key, 0, per_key), " (beta)");
  d.alpha = rows_of(gates, runs_of(s.key_heads, 2 * per_key, per_key, per_key), " (alpha)");
  return reader.delta_rest(d, s, prefix);
}

}  // namespace

Result<ModelConfig> read_qwen3next_config(const GgufFile& file) {
  ModelConfig config;
  const MetadataKeys keys(file, "qwen3next");
  BRAID_TRY(read_sizes(keys, config));
  BRAID_TRY(read_recurrent_layers(keys, config));
  BRAID_TRY(read_attention(keys, config, kJointSigmoid));
  BRAID_ASSIGN(DeltaShape delta, read_delta(keys));
  delta.grouped = true;
  BRAID_ASSIGN(const FeedForwardConfig experts, read_experts(keys, RouteParams::Score::softmax));
  for (size_t i = 0; i < block_count(config); ++i) {
    LayerConfig& layer = block_of(config, i);
    layer.feed_forward = experts;
    if (layer.kind == LayerKind::delta) layer.delta = delta;
  }
  BRAID_ASSIGN(const RopeParams rope, read_rope(keys, head_dim_of(config)));
  config.ropes = {rope};
  return config;
}

Status describe_qwen3next_weights(const GgufFile& file, ModelConfig& config, bool with_mtp,
                                  ModelWeights& out) {
  WeightReader reader(file, config, out);
  return reader.decoder({.ffn_norm = "post_attention_norm.weight", .delta = &read_delta_weights},
                        with_mtp);
}

}  // namespace braid
