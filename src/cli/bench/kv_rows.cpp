#include "cli/bench/kv_rows.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

KvRows::KvRows(const ModelConfig& config, int32_t most_positions) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].kind == LayerKind::delta) continue;
    layers_.emplace_back();
    layers_.back().layer = static_cast<int32_t>(i);
    LayerRows& rows = layers_.back();
    rows.config = config.layers[i].attention;
    rows.q.reserve(static_cast<size_t>(most_positions * rows.config.query_width()));
    rows.k.reserve(static_cast<size_t>(most_positions * rows.config.kv_width()));
    rows.v.reserve(rows.k.capacity());
  }
}

void KvRows::attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) {
  BRAID_CHECK(batch.sequences == 1 && q.type == DType::f32);
  BRAID_CHECK(kv.shape.k_format == KvFormat::f32 && kv.shape.v_format == KvFormat::f32);
  const auto found = std::find_if(layers_.begin(), layers_.end(),
                                  [&](const LayerRows& l) { return l.layer == layer; });
  BRAID_CHECK(found != layers_.end());
  LayerRows& rows = *found;
  const int64_t head_dim = rows.config.head_dim;
  for (int32_t t = 0; t < batch.certain[0]; ++t) {
    const int32_t position = batch.position[t];
    BRAID_CHECK(position <= rows.positions);
    if (position == rows.positions) {
      ++rows.positions;
      rows.q.resize(static_cast<size_t>(rows.positions * rows.config.query_width()));
      rows.k.resize(static_cast<size_t>(rows.positions * rows.config.kv_width()));
      rows.v.resize(rows.k.size());
    }
    std::copy_n(q.f32(t), rows.config.query_width(),
                rows.q.data() + position * rows.config.query_width());
    const int32_t block = batch.blocks_of(0)[position / kBlockTokens];
    for (int32_t head = 0; head < rows.config.kv_heads; ++head) {
      const int64_t at = position * rows.config.kv_width() + head * head_dim;
      const auto copy = [&](const std::byte* row, std::vector<float>& to) {
        std::copy_n(reinterpret_cast<const float*>(row), head_dim, to.data() + at);
      };
      copy(kv.k_row(block, head, position % kBlockTokens), rows.k);
      copy(kv.v_row(block, head, position % kBlockTokens), rows.v);
    }
  }
}

Result<ModelConfig> read_model_config(const GgufFile& file) {
  BRAID_ASSIGN(const std::unique_ptr<Model> model, Model::open(file));
  return model->config();
}

}  // namespace braid
