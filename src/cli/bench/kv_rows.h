// kv_rows.h -- captures queries, keys and values of one sequence from a model's attention layers.
//   KvRows rows(engine.config());
//   engine.observe(&rows);            one request, run to its end; K and V in f32
//   for (const LayerRows& layer : rows.layers()) ...
// A position that runs again is overwritten; uncertain rows are ignored. Requires host memory and
// an f32 cache: the reference, or the CPU with f32 activations.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/model.h"

namespace braid {

struct LayerRows {
  int32_t layer = 0;  // index in the model
  AttentionConfig config;
  int32_t positions = 0;  // all of 0 .. positions - 1 are present
  std::vector<float> q;   // [positions][heads][head_dim], after norm and RoPE
  std::vector<float> k;   // [positions][kv_heads][head_dim], likewise
  std::vector<float> v;   // [positions][kv_heads][head_dim]

  const float* query(int32_t position, int32_t head) const {
    return q.data() + (int64_t{position} * config.heads + head) * config.head_dim;
  }
};

class KvRows : public Observer {
 public:
  explicit KvRows(const ModelConfig& config, int32_t most_positions = 0);
  void attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) override;
  const std::vector<LayerRows>& layers() const { return layers_; }
  std::vector<LayerRows> take() { return std::move(layers_); }

 private:
  std::vector<LayerRows> layers_;  // attention layers in trunk order
};

// From the file alone. Errors: those of Model::open.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace braid
