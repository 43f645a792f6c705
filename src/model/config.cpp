// config.cpp -- see config.h.
#include "model/config.h"

#include <algorithm>

namespace braid {

int32_t ModelConfig::count(LayerKind kind) const {
  return static_cast<int32_t>(std::count_if(layers.begin(), layers.end(),
                                            [&](const LayerConfig& l) { return l.kind == kind; }));
}

std::vector<ModelConfig::KvLayerConfig> ModelConfig::kv_layers() const {
  std::vector<KvLayerConfig> list;
  for (const LayerConfig& l : layers)
    if (l.kind == LayerKind::attention) list.push_back({&l.attention, l.stage});
  if (drafts()) list.push_back({&mtp[0].attention, last_stage()});
  for (const AttentionConfig& a : drafter) list.push_back({&a, last_stage()});
  return list;
}

int32_t ModelConfig::first_layer(int32_t stage) const {
  return static_cast<int32_t>(std::count_if(layers.begin(), layers.end(),
                                            [&](const LayerConfig& l) { return l.stage < stage; }));
}

int64_t ModelConfig::kv_bytes_per_token(KvFormat k, KvFormat v) const {
  int64_t bytes = 0;
  for (const auto& [a, stage] : kv_layers())
    bytes += a->kv_heads * (kv_row_bytes(k, a->head_dim) + kv_row_bytes(v, a->head_dim));
  return bytes;
}

int64_t ModelConfig::state_bytes(const DeltaRing& ring, int32_t stage) const {
  int64_t bytes = 0;
  for (const LayerConfig& l : layers)
    if (l.kind == LayerKind::delta && (stage == kAllStages || l.stage == stage))
      bytes += l.delta.slot_elements(ring) * int64_t{4};
  return bytes;
}

int32_t ModelConfig::largest_window() const {
  int32_t largest = 0;
  for (const LayerConfig& l : layers)
    if (l.kind == LayerKind::attention) largest = std::max(largest, l.attention.window);
  return largest;
}

void ModelConfig::limit_windows(int32_t most) {
  if (most >= context_length) return;
  for (std::vector<LayerConfig>* blocks : {&layers, &mtp}) {
    for (LayerConfig& l : *blocks) {
      int32_t& window = l.attention.window;
      if (l.kind == LayerKind::attention) window = window > 0 ? std::min(window, most) : most;
    }
  }
}

DeltaShape ModelConfig::largest_delta() const {
  DeltaShape largest;
  for (const LayerConfig& l : layers)
    if (l.kind == LayerKind::delta && l.delta.slot_elements({}) > largest.slot_elements({}))
      largest = l.delta;
  return largest;
}

}  // namespace braid
