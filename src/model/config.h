// config.h -- what a model is, read from a file's metadata: sizes, layer kinds, constants. No tensors, no
// device.
//
// Always true of a ModelConfig that read_qwen35_config returned:
//   every count is positive and within the limits of config.cpp; products of counts fit 63 bits with room to
//   spare kinds.size() == layers (the trunk; MTP blocks are not in it); at least one is an attention layer
//   heads % kv_heads == 0; delta.value_heads % delta.key_heads == 0; rope.dims is even and <= head_dim
//   experts == 0 (dense: ffn_width > 0) or experts >= experts_used > 0 (expert_width > 0)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "ops/ops.h"

namespace braid {

enum class LayerKind : uint8_t { attention, delta };

struct ModelConfig {
  std::string architecture;
  std::string name;            // general.name, for people; may be empty
  int32_t layers = 0;          // L, trunk only
  int32_t mtp_layers = 0;      // blocks after the trunk
  int64_t width = 0;           // E
  int64_t vocabulary = 0;      // V; set when the tensors are read
  int32_t context_length = 0;  // positions the model was made for
  float eps = 0;               // of every RMS norm

  std::vector<LayerKind> kinds;  // [layers]

  // attention layers
  int32_t heads = 0;     // H
  int32_t kv_heads = 0;  // Hkv
  int32_t head_dim = 0;  // Dh
  float attention_scale = 0;
  RopeParams rope;

  // delta layers
  DeltaShape delta;

  // feed-forward
  int64_t ffn_width = 0;  // F; 0 with experts
  int32_t experts = 0;    // Nx; 0: dense
  int32_t experts_used = 0;
  int64_t expert_width = 0;  // Fe
  int64_t shared_width = 0;  // Fs; 0: no shared expert

  bool is_moe() const { return experts > 0; }
  int32_t count(LayerKind kind) const;
  // Bytes of K and V of one position over all attention layers of the trunk.
  int64_t kv_bytes_per_token(KvFormat k, KvFormat v) const;
  // Bytes of one sequence's recurrent state over all delta layers.
  int64_t state_bytes() const { return count(LayerKind::delta) * delta.slot_elements() * int64_t{4}; }
};

// Architectures qwen35 and qwen35moe. Errors: corrupt (a key is missing or contradicts another), unsupported
// (a variant braid does not compute). Each names the file and the key.
Result<ModelConfig> read_qwen35_config(const GgufFile& file);

}  // namespace braid
