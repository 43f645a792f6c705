// random_model.h -- files of published shapes with random weights, for measuring speed without a download.
//
// The tensors, their types (by the rules of the quantizer's mixes) and the metadata are those of a real file
// of that shape; the values are noise of a scale that keeps activations finite, and the tokenizer is a toy
// with the real vocabulary size. The same shape, mix and seed give the same bytes everywhere.
//
// Matrices are drawn block by block from a pool of properly encoded blocks, so writing runs at the speed of
// the disk.
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

  // Recurrent layers. Every n-th layer attends, the others are recurrent; 1: there are none.
  int32_t attention_interval = 4;
  int32_t key_heads = 16;
  int32_t value_heads = 0;
  int32_t delta_dim = 128;

  // Sliding layers: all but every fourth, with heads and window of their own.
  int32_t window = 0;
  int32_t sliding_heads = 0;

  bool attends(int32_t layer) const { return (layer + 1) % attention_interval == 0; }
  bool slides(int32_t layer) const { return window > 0 && layer % 4 != 0; }
  int32_t heads_of(int32_t layer) const { return slides(layer) ? sliding_heads : heads; }
  bool has_experts(int32_t layer) const { return experts > 0 && layer >= dense_layers; }
};

std::span<const RandomShape> random_shapes();
// Null if there is none of that name; the case of letters does not matter.
const RandomShape* find_random_shape(std::string_view name);

// Elements of all tensors of the shape, the MTP block apart.
struct RandomParameters {
  int64_t trunk = 0;
  int64_t mtp = 0;
};
RandomParameters count_parameters(const RandomShape& shape);

struct RandomOptions {
  // A name of gguf/quantize/quantize.h, or that of a type with an encoder ("MXFP4": all matrices but the
  // output).
  std::string mix = "Q4_K_M";
  uint64_t seed = 1;
  bool with_mtp = false;  // engines that do not know the head refuse files that have it
  bool fused = false;     // attn_qkv and ffn_gate_up_exps instead of their parts
  // Called before each tensor with its name and the bytes written so far and in all.
  std::function<void(std::string_view name, uint64_t done_bytes, uint64_t total_bytes)> progress;
};

// Ready to be written; tensor bytes are made while writing. Errors: invalid_argument (no such mix).
Result<GgufWriter> random_model(const RandomShape& shape, const RandomOptions& options);

// A drafter of its own file for a model of that shape (model/dflash): "dflash" as published for Qwen3.6
// (block 16), "dflash2" as for Qwen3.8 (block 8, convolutions, selector), "dspark" (block 16, Markov and
// confidence head); of `options` mix, seed and progress count. In memory: GgufWriter::to_bytes(). Errors:
// invalid_argument (no such mix or kind; a shape that is too small).
std::span<const std::string_view> random_drafter_kinds();
Result<GgufWriter> random_drafter(const RandomShape& shape, std::string_view kind,
                                  const RandomOptions& options);

}  // namespace braid
