// random_model.cpp -- see random_model.h.
#include "model/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "gguf/block_layouts.h"
#include "gguf/quantize.h"
#include "model/random_tensors.h"

namespace braid {
namespace {

class Metadata {
 public:
  Metadata(GgufWriter& writer, std::string_view architecture)
      : writer_(writer), prefix_(architecture) {}
  void u32(const char* key, int64_t value) {
    writer_.set_u32(full(key), static_cast<uint32_t>(value));
  }
  void f32(const char* key, float value) { writer_.set_f32(full(key), value); }
  void i32s(const char* key, std::span<const int32_t> values) {
    writer_.set_i32s(full(key), values);
  }
  void string(const char* key, const char* value) { writer_.set_string(full(key), value); }

 private:
  std::string full(const char* key) const { return fmt::format("{}.{}", prefix_, key); }
  GgufWriter& writer_;
  std::string_view prefix_;
};

void set_delta(Metadata& m, const RandomShape& s) {
  m.u32("ssm.conv_kernel", 4);
  m.u32("ssm.state_size", s.delta_dim);
  m.u32("ssm.group_count", s.key_heads);
  m.u32("ssm.time_step_rank", s.value_heads);
  m.u32("ssm.inner_size", int64_t{s.value_heads} * s.delta_dim);
  m.u32("full_attention_interval", s.attention_interval);
}

void set_laguna(Metadata& m, const RandomShape& s, int32_t blocks) {
  std::vector<int32_t> heads;
  for (int32_t i = 0; i < blocks; ++i) heads.push_back(s.heads_of(i));
  m.i32s("attention.head_count", heads);
  m.u32("attention.sliding_window", s.window);
  m.u32("rope.dimension_count_swa", s.head_dim);
  m.f32("rope.freq_base_swa", 1e4f);
  m.string("rope.scaling.type", "yarn");
  m.f32("rope.scaling.factor", 32);
  m.u32("rope.scaling.original_context_length", 4096);
  m.f32("rope.scaling.yarn_beta_fast", 64);
  m.f32("rope.scaling.yarn_beta_slow", 1);
  m.u32("expert_gating_func", 2);
  m.f32("expert_weights_scale", 2.5f);
  m.u32("leading_dense_block_count", s.dense_layers);
}

void set_metadata(GgufWriter& w, const RandomShape& s, const RandomOptions& options,
                  uint32_t file_type) {
  w.set_string("general.architecture", s.architecture);
  w.set_string("general.type", "model");
  w.set_string("general.name", fmt::format("random-{}", s.name));
  Metadata m(w, s.architecture);
  const int32_t blocks = s.layers + (options.with_mtp ? 1 : 0);
  m.u32("block_count", blocks);
  m.u32("context_length", s.context_length);
  m.u32("embedding_length", s.width);
  m.u32("attention.head_count", s.heads);
  m.u32("attention.head_count_kv", s.kv_heads);
  m.u32("attention.key_length", s.head_dim);
  m.u32("attention.value_length", s.head_dim);
  m.f32("attention.layer_norm_rms_epsilon", 1e-6f);
  m.u32("rope.dimension_count", s.rope_dims);
  if (s.architecture.starts_with("qwen35")) {
    const int32_t third = s.rope_dims / 2 / 3;
    const int32_t rest = s.rope_dims / 2 - 3 * third;
    m.i32s("rope.dimension_sections", std::array{third + (rest > 0), third + (rest > 1), third, 0});
  }
  m.f32("rope.freq_base", s.rope_base);
  if (s.value_heads > 0) set_delta(m, s);
  if (s.architecture == "laguna") set_laguna(m, s, blocks);
  if (s.experts > 0) {
    m.u32("expert_count", s.experts);
    m.u32("expert_used_count", s.experts_used);
    m.u32("expert_feed_forward_length", s.expert_width);
    if (s.shared_width > 0) m.u32("expert_shared_feed_forward_length", s.shared_width);
  }
  if (s.ffn_width > 0) m.u32("feed_forward_length", s.ffn_width);
  if (options.with_mtp) m.u32("nextn_predict_layers", 1);
  w.set_u32("general.file_type", file_type);
  w.set_u32("general.quantization_version", 2);
}

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
  w.set_string(
      "tokenizer.chat_template",
      "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
      "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}");
}

}  // namespace

Result<RandomTypes> random_types(const std::vector<RandomTensor>& specs,
                                 const std::string& mix_name, int32_t blocks, int32_t experts) {
  RandomTypes result{std::vector<GgmlType>(specs.size(), GgmlType::F32), 0};
  if (mix_name == "F32") return result;
  const QuantizeMix* mix = find_quantize_mix(mix_name);
  QuantizeMix of_type{};
  const GgmlTypeInfo* type = find_ggml_type(mix_name);
  if (mix == nullptr && type != nullptr && can_encode(type->type)) {
    constexpr uint32_t kUnnamedFileType = 1024;
    of_type = {type->name, type->type, kUnnamedFileType};
    mix = &of_type;
  }
  if (mix == nullptr)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("there is no quantization {}: choose one of {}, or a type like MXFP4",
                             mix_name, quantize_mix_names())};
  std::vector<MixTensor> tensors;
  for (const RandomTensor& s : specs) tensors.push_back({s.name, GgmlType::F32, s.ne});
  result.types = tensor_types_for(*mix, tensors, static_cast<uint32_t>(blocks),
                                  static_cast<uint32_t>(experts));
  for (size_t i = 0; i < specs.size(); ++i)
    if (specs[i].deviation <= 0) result.types[i] = GgmlType::F32;
  result.file_type = mix->file_type;
  return result;
}

void add_random_tensors(GgufWriter& writer, const std::vector<RandomTensor>& specs,
                        const std::vector<GgmlType>& types, const RandomOptions& options) {
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
                      [spec = specs[i], type = types[i], seed = options.seed + 1000 * i, state,
                       bytes, progress = options.progress](const ByteSink& sink) -> Status {
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
}

Result<GgufWriter> random_model(const RandomShape& shape, const RandomOptions& options) {
  const std::vector<RandomTensor> specs = random_tensors(shape, options.with_mtp, options.fused);
  const int32_t blocks = shape.layers + (options.with_mtp ? 1 : 0);
  BRAID_ASSIGN(const RandomTypes chosen, random_types(specs, options.mix, blocks, shape.experts));
  GgufWriter writer;
  set_metadata(writer, shape, options, chosen.file_type);
  set_tokenizer(writer, shape);
  add_random_tensors(writer, specs, chosen.types, options);
  return writer;
}

}  // namespace braid
