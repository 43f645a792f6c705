// config.h -- what a model is, read from a file's metadata: sizes, layers, constants. No tensors, no device.
//
// A model is a stack of layers, each with a configuration of its own: head counts, windows, gates, kinds and
// routers may differ from layer to layer. What one architecture's files call things is in its own source
// (qwen35.cpp).
//
// Always true of a ModelConfig that an architecture has read:
//   every count is positive and within the limits of metadata_keys.h; products of counts fit 63 bits
//   at least one layer is an attention layer; a model without delta layers is a normal case
//   attention: heads % kv_heads == 0, rope < ropes.size(); each of ropes has even dims, at most head_dim
//   delta: value_heads % key_heads == 0
//   feed_forward: experts == 0 (dense: width > 0) or experts >= experts_used > 0 (expert_width > 0)
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
  // Rows of the query matrix, and of a gate matrix of its own.
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
  bool shared_gated = true;  // the shared expert's output times sigmoid(a weight . x)
  RouteParams::Score score = RouteParams::Score::softmax;
  float scale = 1;  // of the chosen experts' weights

  bool is_moe() const { return experts > 0; }
};

struct LayerConfig {
  LayerKind kind = LayerKind::delta;
  AttentionConfig attention;  // one of the two, by kind
  DeltaShape delta;
  FeedForwardConfig feed_forward;
};

struct ModelConfig {
  std::string architecture;
  std::string name;            // general.name, for people; may be empty
  int64_t width = 0;           // E
  int64_t vocabulary = 0;      // V; set when the tensors are read
  int32_t context_length = 0;  // positions the model was made for
  float eps = 0;               // of every RMS norm

  std::vector<LayerConfig> layers;  // L, the trunk
  std::vector<LayerConfig> mtp;     // heads that draft, loaded with the model; the first is used
  std::vector<RopeParams> ropes;    // a table of each is made once per step
  // Layers of a drafter with a file of its own, where they keep K and V (Model::attach).
  std::vector<AttentionConfig> drafter;
  int64_t draft_vocabulary = 0;  // tokens among which the head guesses (Model::draft); 0: all

  int32_t count(LayerKind kind) const;
  bool drafts() const { return !mtp.empty(); }
  // Every layer that keeps K and V, in their order: those of the trunk, then the head or drafter.
  std::vector<const AttentionConfig*> kv_layers() const;
  // Bytes of K and V of one position over all of them.
  int64_t kv_bytes_per_token(KvFormat k, KvFormat v) const;
  // Bytes of one sequence's recurrent state over all delta layers.
  int64_t state_bytes(const DeltaRing& ring) const;
  // The largest window of all attention layers that have one; 0: none has.
  int32_t largest_window() const;
  // From now on no attention layer, of the trunk or of a head that drafts, sees more than `most` positions.
  // Nothing changes where that is the whole context.
  void limit_windows(int32_t most);
  // The delta layer with the most state; empty without delta layers.
  DeltaShape largest_delta() const;
};

}  // namespace braid
