// random_model.h -- files of published shapes with random weights, to measure speed.
// Tensors, types (by the quantizer's mixes) and metadata are those of a real file; values are noise
// that keeps activations finite. The tokenizer is a toy of the real size. Shape, mix and seed
// determine all bytes on every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gguf/gguf_writer.h"

namespace braid {

struct RandomShape {
  std::string_view name;                     // "0.8b"
  std::string_view architecture = "qwen35";  // general.architecture
  int32_t layers = 0;
  int64_t width = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int64_t ffn_width = 0;  // of dense layers
  bool tied = false;
  int32_t experts = 0;
  int32_t experts_used = 0;
  int64_t expert_width = 0;
  int64_t shared_width = 0;
  int32_t dense_layers = 0;  // before those with experts
  int32_t head_dim = 256;
  int32_t rope_dims = 64;
  float rope_base = 1e7f;
  int32_t context_length = 262144;
  int64_t vocabulary = 248320;

  // Every n-th layer attends, the others are recurrent; 1: all attend.
  int32_t attention_interval = 4;
  int32_t key_heads = 16;
  int32_t value_heads = 0;
  int32_t delta_dim = 128;

  // All but every fourth layer slide, with their own heads and window.
  int32_t window = 0;
  int32_t sliding_heads = 0;

  bool attends(int32_t layer) const { return (layer + 1) % attention_interval == 0; }
  bool slides(int32_t layer) const { return window > 0 && layer % 4 != 0; }
  int32_t heads_of(int32_t layer) const { return slides(layer) ? sliding_heads : heads; }
  bool has_experts(int32_t layer) const { return experts > 0 && layer >= dense_layers; }
};

std::span<const RandomShape> random_shapes();
std::string random_shape_names();  // for messages, with commas
// Ignores case. Null if unknown.
const RandomShape* find_random_shape(std::string_view name);

// Elements of all tensors; MTP counts separately.
struct RandomParameters {
  int64_t trunk = 0;
  int64_t mtp = 0;
};
RandomParameters count_parameters(const RandomShape& shape);

struct RandomOptions {
  // A mix of quantize.h, or a type with an encoder ("MXFP4": all matrices except the output).
  std::string mix = "Q4_K_M";
  uint64_t seed = 1;
  bool with_mtp = false;  // engines without MTP support refuse such files
  bool fused = false;     // attn_qkv and ffn_gate_up_exps instead of their parts
  std::function<void(std::string_view name, uint64_t done_bytes, uint64_t total_bytes)> progress;
};

// Tensor bytes are made while writing. Errors: invalid_argument (unknown mix).
Result<GgufWriter> random_model(const RandomShape& shape, const RandomOptions& options);

// A drafter for a model of that shape: "dflash" (block 16), "dflash2" (block 8, convolutions,
// selector) or "dspark" (block 16, Markov and confidence head). Uses mix, seed and progress.
// Errors: invalid_argument (unknown mix or kind, too small a shape).
std::span<const std::string_view> random_drafter_kinds();
Result<GgufWriter> random_drafter(const RandomShape& shape, std::string_view kind,
                                  const RandomOptions& options);

}  // namespace braid
