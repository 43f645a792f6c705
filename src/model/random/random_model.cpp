// random_model.cpp -- see random_model.h.
#include "model/random/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gguf/formats/block_layouts.h"
#include "gguf/quantize/quantize.h"
#include "model/random/random_values.h"

namespace braid {
namespace {

constexpr RandomShape kShapes[] = {
    // name, L, E, H, Hkv, F, Hv, tied, Nx, Kx, Fe, Fs
    {"0.8b", 24, 1024, 8, 2, 3584, 16, true},   {"2b", 24, 2048, 8, 2, 6144, 16, true},
    {"4b", 32, 2560, 16, 4, 9216, 32, true},    {"9b", 32, 4096, 16, 4, 12288, 32, false},
    {"27b", 64, 5120, 24, 4, 17408, 48, false}, {"35b-a3b", 40, 2048, 16, 2, 0, 32, false, 256, 8, 512, 512},
};

class SpecList {
 public:
  void matrix(const std::string& name, int64_t k, int64_t n, int64_t experts = 1, float deviation = 0) {
    RandomTensor s;
    s.name = name + ".weight";
    s.ne = {static_cast<uint64_t>(k), static_cast<uint64_t>(n), static_cast<uint64_t>(experts), 1};
    s.dims = experts > 1 ? 3 : 2;
    s.deviation = deviation > 0 ? deviation : 1.0f / std::sqrt(static_cast<float>(k));
    list.push_back(std::move(s));
  }
  void vector(const std::string& name, int64_t n, float low, float high, int64_t columns = 0) {
    RandomTensor s;
    s.name = name;
    s.ne = {static_cast<uint64_t>(columns > 0 ? columns : n), columns > 0 ? static_cast<uint64_t>(n) : 1, 1,
            1};
    s.dims = columns > 0 ? 2 : 1;
    s.low = low;
    s.high = high;
    list.push_back(std::move(s));
  }
  void norm(const std::string& name, int64_t n) { vector(name, n, 0.9f, 1.1f); }

  std::vector<RandomTensor> list;
};

void add_attention(SpecList& t, const RandomShape& s, const std::string& p, bool fused) {
  const int64_t query_rows = int64_t{2} * s.heads * s.head_dim;
  const int64_t kv_rows = int64_t{s.kv_heads} * s.head_dim;
  if (fused) {
    t.matrix(p + "attn_qkv", s.width, query_rows + 2 * kv_rows);
  } else {
    t.matrix(p + "attn_q", s.width, query_rows);
    t.matrix(p + "attn_k", s.width, kv_rows);
    t.matrix(p + "attn_v", s.width, kv_rows);
  }
  t.matrix(p + "attn_output", query_rows / 2, s.width);
  t.norm(p + "attn_q_norm.weight", s.head_dim);
  t.norm(p + "attn_k_norm.weight", s.head_dim);
}

void add_delta(SpecList& t, const RandomShape& s, const std::string& p) {
  const int64_t value_width = int64_t{s.value_heads} * s.delta_dim;
  const int64_t channels = int64_t{2} * s.key_heads * s.delta_dim + value_width;
  t.matrix(p + "attn_qkv", s.width, channels);
  t.matrix(p + "attn_gate", s.width, value_width);
  t.matrix(p + "ssm_alpha", s.width, s.value_heads);
  t.matrix(p + "ssm_beta", s.width, s.value_heads);
  t.matrix(p + "ssm_out", value_width, s.width);
  t.vector(p + "ssm_conv1d.weight", channels, -0.5f, 0.5f, 4);
  t.vector(p + "ssm_a", s.value_heads, -4.0f, -0.05f);
  t.vector(p + "ssm_dt.bias", s.value_heads, -6.0f, -1.0f);
  t.norm(p + "ssm_norm.weight", s.delta_dim);
}

void add_feed_forward(SpecList& t, const RandomShape& s, const std::string& p, bool fused) {
  if (s.experts == 0) {
    t.matrix(p + "ffn_gate", s.width, s.ffn_width);
    t.matrix(p + "ffn_up", s.width, s.ffn_width);
    t.matrix(p + "ffn_down", s.ffn_width, s.width);
    return;
  }
  t.matrix(p + "ffn_gate_inp", s.width, s.experts);
  if (fused) {
    t.matrix(p + "ffn_gate_up_exps", s.width, 2 * s.expert_width, s.experts);
  } else {
    t.matrix(p + "ffn_gate_exps", s.width, s.expert_width, s.experts);
    t.matrix(p + "ffn_up_exps", s.width, s.expert_width, s.experts);
  }
  t.matrix(p + "ffn_down_exps", s.expert_width, s.width, s.experts);
  if (s.shared_width == 0) return;
  t.vector(p + "ffn_gate_inp_shexp.weight", s.width, -0.05f, 0.05f);
  t.matrix(p + "ffn_gate_shexp", s.width, s.shared_width);
  t.matrix(p + "ffn_up_shexp", s.width, s.shared_width);
  t.matrix(p + "ffn_down_shexp", s.shared_width, s.width);
}

std::vector<RandomTensor> all_tensors(const RandomShape& s, const RandomOptions& options) {
  SpecList t;
  t.matrix("token_embd", s.width, s.vocabulary, 1, 0.5f);
  if (!s.tied) t.matrix("output", s.width, s.vocabulary);
  t.norm("output_norm.weight", s.width);
  for (int32_t i = 0; i < s.layers + (options.with_mtp ? 1 : 0); ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    t.norm(p + "attn_norm.weight", s.width);
    t.norm(p + "post_attention_norm.weight", s.width);
    if (i == s.layers || (i + 1) % s.attention_interval == 0) {
      add_attention(t, s, p, options.fused);
    } else {
      add_delta(t, s, p);
    }
    add_feed_forward(t, s, p, options.fused);
    if (i < s.layers) continue;
    t.matrix(p + "nextn.eh_proj", 2 * s.width, s.width);
    for (const char* norm : {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"})
      t.norm(p + norm, s.width);
  }
  std::sort(t.list.begin(), t.list.end(),
            [](const RandomTensor& a, const RandomTensor& b) { return tensor_comes_before(a.name, b.name); });
  return t.list;
}

void set_metadata(GgufWriter& w, const RandomShape& s, const RandomOptions& options, uint32_t file_type) {
  const std::string arch = s.experts > 0 ? "qwen35moe" : "qwen35";
  const auto u32 = [&](const char* key, int64_t value) {
    w.set_u32(fmt::format("{}.{}", arch, key), static_cast<uint32_t>(value));
  };
  w.set_string("general.architecture", arch);
  w.set_string("general.type", "model");
  w.set_string("general.name", fmt::format("random-{}", s.name));
  u32("block_count", s.layers + (options.with_mtp ? 1 : 0));
  u32("context_length", s.context_length);
  u32("embedding_length", s.width);
  u32("attention.head_count", s.heads);
  u32("attention.head_count_kv", s.kv_heads);
  u32("attention.key_length", s.head_dim);
  u32("attention.value_length", s.head_dim);
  w.set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  u32("rope.dimension_count", s.rope_dims);
  const int32_t third = s.rope_dims / 2 / 3;
  const int32_t rest = s.rope_dims / 2 - 3 * third;
  const std::array<int32_t, 4> sections = {third + (rest > 0), third + (rest > 1), third, 0};
  w.set_i32s(arch + ".rope.dimension_sections", sections);
  w.set_f32(arch + ".rope.freq_base", 1e7f);
  u32("ssm.conv_kernel", 4);
  u32("ssm.state_size", s.delta_dim);
  u32("ssm.group_count", s.key_heads);
  u32("ssm.time_step_rank", s.value_heads);
  u32("ssm.inner_size", int64_t{s.value_heads} * s.delta_dim);
  u32("full_attention_interval", static_cast<uint32_t>(s.attention_interval));
  if (s.experts > 0) {
    u32("expert_count", s.experts);
    u32("expert_used_count", s.experts_used);
    u32("expert_feed_forward_length", s.expert_width);
    u32("expert_shared_feed_forward_length", s.shared_width);
  } else {
    u32("feed_forward_length", s.ffn_width);
  }
  if (options.with_mtp) u32("nextn_predict_layers", 1);
  w.set_u32("general.file_type", file_type);
  w.set_u32("general.quantization_version", 2);
}

// One token per byte, a few words, numbered fillers, and the chat markers at the end.
void set_tokenizer(GgufWriter& w, const RandomShape& s) {
  std::vector<std::string> tokens;
  int32_t next_stand_in = 256;
  for (int32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const int32_t code = itself ? b : next_stand_in++;
    std::string text;
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
    tokens.push_back(std::move(text));
  }
  for (const char* word : {"th", "the", "in", "er"}) tokens.emplace_back(word);
  const std::array<const char*, 3> markers = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  const auto ordinary = static_cast<size_t>(s.vocabulary) - markers.size();
  while (tokens.size() < ordinary) tokens.push_back(fmt::format("filler{}", tokens.size()));
  for (const char* marker : markers) tokens.emplace_back(marker);
  std::vector<int32_t> types(tokens.size(), 1);
  std::fill(types.begin() + static_cast<std::ptrdiff_t>(ordinary), types.end(), 3);

  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const std::array<std::string_view, 4> merges = {"t h", "th e", "i n", "e r"};
  w.set_string("tokenizer.ggml.model", "gpt2");
  w.set_string("tokenizer.ggml.pre", "qwen35");
  w.set_strings("tokenizer.ggml.tokens", views);
  w.set_i32s("tokenizer.ggml.token_type", types);
  w.set_strings("tokenizer.ggml.merges", merges);
  w.set_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(tokens.size() - 1));
  w.set_u32("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(ordinary));
  w.set_bool("tokenizer.ggml.add_bos_token", false);
  w.set_string("tokenizer.chat_template",
               "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
               "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}");
}

}  // namespace

std::span<const RandomShape> random_shapes() { return kShapes; }

const RandomShape* find_random_shape(std::string_view name) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  for (const RandomShape& s : kShapes)
    if (std::equal(name.begin(), name.end(), s.name.begin(), s.name.end(),
                   [&](char a, char b) { return lower(a) == b; }))
      return &s;
  return nullptr;
}

RandomParameters count_parameters(const RandomShape& shape) {
  RandomOptions options;
  options.with_mtp = true;
  RandomParameters count;
  for (const RandomTensor& s : all_tensors(shape, options)) {
    const auto elements = static_cast<int64_t>(s.ne[0] * s.ne[1] * s.ne[2]);
    (tensor_layer(s.name) == shape.layers ? count.mtp : count.trunk) += elements;
  }
  return count;
}

Result<GgufWriter> random_model(const RandomShape& shape, const RandomOptions& options) {
  const bool plain = options.mix == "F32";
  const QuantizeMix* mix = plain ? nullptr : find_quantize_mix(options.mix);
  QuantizeMix of_type{};
  const GgmlTypeInfo* type = find_ggml_type(options.mix);
  if (!plain && mix == nullptr && type != nullptr && can_encode(type->type)) {
    constexpr uint32_t kUnnamedFileType = 1024;
    of_type = {type->name, type->type, kUnnamedFileType};
    mix = &of_type;
  }
  if (!plain && mix == nullptr)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("there is no quantization {}: choose one of {}, or a type like MXFP4",
                             options.mix, quantize_mix_names())};

  const std::vector<RandomTensor> specs = all_tensors(shape, options);
  std::vector<GgmlType> types(specs.size(), GgmlType::F32);
  if (!plain) {
    std::vector<MixTensor> tensors;
    for (const RandomTensor& s : specs) tensors.push_back({s.name, GgmlType::F32, s.ne});
    const auto blocks = static_cast<uint32_t>(shape.layers + (options.with_mtp ? 1 : 0));
    types = tensor_types_for(*mix, tensors, blocks, static_cast<uint32_t>(shape.experts));
  }

  GgufWriter writer;
  set_metadata(writer, shape, options, plain ? 0 : mix->file_type);
  set_tokenizer(writer, shape);
  struct Written {
    RandomPools pools;
    uint64_t done_bytes = 0;
    uint64_t total_bytes = 0;
  };
  const auto state = std::make_shared<Written>();
  for (size_t i = 0; i < specs.size(); ++i) {
    const uint64_t bytes = *row_bytes(types[i], specs[i].ne[0]) * specs[i].ne[1] * specs[i].ne[2];
    state->total_bytes += bytes;
    writer.add_tensor(specs[i].name, types[i], specs[i].dims, specs[i].ne,
                      [spec = specs[i], type = types[i], seed = options.seed + 1000 * i, state, bytes,
                       progress = options.progress](const ByteSink& sink) -> Status {
                        if (progress) progress(spec.name, state->done_bytes, state->total_bytes);
                        if (spec.deviation > 0) {
                          BRAID_TRY(write_random_matrix(spec, type, seed, state->pools, sink));
                        } else {
                          BRAID_TRY(write_random_vector(spec, seed, sink));
                        }
                        state->done_bytes += bytes;
                        return Status();
                      });
  }
  return writer;
}

}  // namespace braid
