// random_shapes.cpp -- the published sizes of random_model.h.
#include <algorithm>

#include "gguf/quantize.h"
#include "model/random_tensors.h"

namespace braid {
namespace {

RandomShape qwen35(std::string_view name, int32_t layers, int64_t width, int32_t heads,
                   int32_t kv_heads, int64_t ffn_width, int32_t value_heads, bool tied) {
  RandomShape s;
  s.name = name;
  s.layers = layers;
  s.width = width;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.ffn_width = ffn_width;
  s.value_heads = value_heads;
  s.tied = tied;
  return s;
}

RandomShape with_experts(RandomShape s, std::string_view architecture, int32_t experts,
                         int32_t used, int64_t expert_width, int64_t shared_width) {
  s.architecture = architecture;
  s.experts = experts;
  s.experts_used = used;
  s.expert_width = expert_width;
  s.shared_width = shared_width;
  return s;
}

RandomShape qwen3(std::string_view name, int32_t layers, int64_t width, int32_t heads,
                  int32_t kv_heads, int64_t ffn_width, bool tied) {
  RandomShape s = qwen35(name, layers, width, heads, kv_heads, ffn_width, 0, tied);
  s.architecture = "qwen3";
  s.attention_interval = 1;
  s.head_dim = s.rope_dims = 128;
  s.rope_base = 1e6f;
  s.context_length = 40960;
  s.vocabulary = 151936;
  return s;
}

RandomShape qwen3next(std::string_view name) {
  RandomShape s =
      with_experts(qwen35(name, 48, 2048, 16, 2, 0, 32, false), "qwen3next", 512, 10, 512, 512);
  s.vocabulary = 151936;
  return s;
}

RandomShape laguna(std::string_view name, int32_t layers, int64_t width, int32_t heads,
                   int32_t sliding_heads, int32_t kv_heads, int64_t ffn_width) {
  RandomShape s = qwen3(name, layers, width, heads, kv_heads, ffn_width, false);
  s.dense_layers = 1;
  s.rope_dims = 64;
  s.rope_base = 5e5f;
  s.context_length = 131072;
  s.vocabulary = 100352;
  s.window = 512;
  s.sliding_heads = sliding_heads;
  return s;
}

const RandomShape kShapes[] = {
    qwen35("0.8b", 24, 1024, 8, 2, 3584, 16, true),
    qwen35("2b", 24, 2048, 8, 2, 6144, 16, true),
    qwen35("4b", 32, 2560, 16, 4, 9216, 32, true),
    qwen35("9b", 32, 4096, 16, 4, 12288, 32, false),
    qwen35("27b", 64, 5120, 24, 4, 17408, 48, false),
    with_experts(qwen35("35b-a3b", 40, 2048, 16, 2, 0, 32, false), "qwen35moe", 256, 8, 512, 512),
    // Of the 122B, heads and widths of experts follow from its number of parameters.
    with_experts(qwen35("122b-a10b", 48, 3072, 32, 2, 0, 64, false), "qwen35moe", 256, 8, 1024,
                 1024),
    with_experts(qwen35("397b-a17b", 60, 4096, 32, 2, 0, 64, false), "qwen35moe", 512, 10, 1024,
                 1024),
    qwen3("qwen3-0.6b", 28, 1024, 16, 8, 3072, true),
    with_experts(qwen3("qwen3-30b-a3b", 48, 2048, 32, 4, 0, false), "qwen3moe", 128, 8, 768, 0),
    qwen3next("qwen3next-80b-a3b"),
    with_experts(laguna("laguna-xs", 40, 2048, 48, 64, 8, 8192), "laguna", 256, 8, 512, 512),
    // Not published; small enough for a laptop.
    with_experts(laguna("laguna-small", 12, 1024, 12, 16, 4, 4096), "laguna", 32, 4, 512, 512),
};

}  // namespace

std::span<const RandomShape> random_shapes() { return kShapes; }

const RandomShape* find_random_shape(std::string_view name) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  for (const RandomShape& s : kShapes)
    if (std::equal(name.begin(), name.end(), s.name.begin(), s.name.end(),
                   [&](char a, char b) { return lower(a) == b; }))
      return &s;
  return nullptr;
}

RandomParameters count_parameters(const RandomShape& shape) {
  RandomParameters count;
  for (const RandomTensor& s : random_tensors(shape, true, false)) {
    const auto elements = static_cast<int64_t>(s.ne[0] * s.ne[1] * s.ne[2]);
    (tensor_layer(s.name) == shape.layers ? count.mtp : count.trunk) += elements;
  }
  return count;
}

std::string random_shape_names() {
  std::string names;
  for (const RandomShape& shape : random_shapes())
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  return names;
}

}  // namespace braid
