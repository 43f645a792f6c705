// config.h -- configuration of a model from a file's metadata. Layers may differ in all properties.
//
// - Counts are positive and within the limits of metadata_keys.h; products of counts fit 63 bits.
// - At least one layer is an attention layer; delta layers may be absent.
// - attention: heads % kv_heads == 0, rope < ropes.size(); ropes have even dims, at most head_dim.
// - delta: value_heads % key_heads == 0.
// - feed_forward: dense (experts == 0, width > 0), or experts >= experts_used > 0, expert_width >
//   0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "ops/ops.h"

namespace braid {

enum class LayerKind : uint8_t { attention, delta };

struct AttentionConfig {
  int32_t heads = 0;     // H
  int32_t kv_heads = 0;  // Hkv
  int32_t head_dim = 0;  // Dh
  float scale = 0;       // multiplies q . k
  int32_t window = 0;    // > 0: a row sees only positions > its own - window
  AttentionGate gate;
  int32_t rope = 0;  // index into ModelConfig::ropes

  int64_t query_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  int64_t query_rows() const { return heads * gate.query_stride(head_dim); }
  int64_t gate_rows() const { return gate.separate() ? gate.columns(heads, head_dim) : 0; }
  AttentionParams params() const { return {heads, scale, window, gate}; }
};

struct FeedForwardConfig {
  int64_t width = 0;         // F; 0 with experts
  int32_t experts = 0;       // Nx; 0: dense
  int32_t experts_used = 0;  // Kx
  int64_t expert_width = 0;  // Fe
  int64_t shared_width = 0;  // Fs; 0: no shared expert
  bool shared_gated = true;  // scaled by sigmoid(a weight . x)
  RouteParams::Score score = RouteParams::Score::softmax;
  float scale = 1;  // of the chosen experts' weights

  bool is_moe() const { return experts > 0; }
};

struct LayerConfig {
  LayerKind kind = LayerKind::delta;
  AttentionConfig attention;  // attention or delta, by kind
  DeltaShape delta;
  FeedForwardConfig feed_forward;
  int32_t stage = 0;  // which of Devices has the layer
};

struct ModelConfig {
  std::string architecture;
  std::string name;            // general.name, for display; may be empty
  int64_t width = 0;           // E
  int64_t vocabulary = 0;      // V; set when the tensors are read
  int32_t context_length = 0;  // positions the model was made for
  float eps = 0;               // of all RMS norms

  std::vector<LayerConfig> layers;  // L, the trunk
  std::vector<LayerConfig> mtp;     // MTP heads, loaded with the model; the first is used
  std::vector<RopeParams> ropes;    // each gets one table per step
  // Layers with K and V of an attached drafter (Model::attach).
  std::vector<AttentionConfig> drafter;
  int64_t draft_vocabulary = 0;  // tokens that the head drafts from (Model::draft); 0: all
  // Stages of the trunk (ops/devices.h), ascending over the layers. The first has the embedding,
  // the last the output matrix, the MTP heads and the drafter's layers.
  int32_t stages = 1;

  int32_t count(LayerKind kind) const;
  bool drafts() const { return !mtp.empty(); }
  // Layers with K and V: the trunk's in order, then the head's or drafter's.
  struct KvLayerConfig {
    const AttentionConfig* attention;
    int32_t stage;
  };
  std::vector<KvLayerConfig> kv_layers() const;
  int32_t last_stage() const { return stages - 1; }
  // First layer of a stage; the number of layers for `stages`.
  int32_t first_layer(int32_t stage) const;
  int64_t kv_bytes_per_token(KvFormat k, KvFormat v) const;
  // Bytes of one sequence's recurrent state over the delta layers of a stage.
  static constexpr int32_t kAllStages = -1;
  int64_t state_bytes(const DeltaRing& ring, int32_t stage = kAllStages) const;
  // Over all attention layers; 0: no layer has a window.
  int32_t largest_window() const;
  // Limits windows of all attention layers and MTP heads. No effect if `most` covers the context.
  void limit_windows(int32_t most);
  // The delta layer with the most state; empty without delta layers.
  DeltaShape largest_delta() const;
};

}  // namespace braid
