// random_drafter.cpp -- drafters with random weights; see random_model.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/random_tensors.h"

namespace braid {
namespace {

constexpr std::array<std::string_view, 3> kKinds = {"dflash", "dflash2", "dspark"};

// As in published drafters for the 27B; drafters of other models differ in width.
constexpr int32_t kLayers = 5, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kTaps = 5;
constexpr int32_t kWindow = 2048, kConvTaps = 2, kConvGroup = 16, kRank = 256, kCandidates = 16;

struct DrafterShape {
  const RandomShape& target;
  bool mixes;   // DFlash2
  bool markov;  // DSpark
  int32_t block() const { return mixes ? 8 : 16; }
  int64_t ffn_width() const { return target.ffn_width > 0 ? target.ffn_width : 3 * target.width; }
};

std::vector<int32_t> tapped_inputs(const RandomShape& target) {
  std::vector<int32_t> inputs;
  for (int32_t i = 0; i < kTaps; ++i) inputs.push_back(2 + i * (target.layers - 4) / (kTaps - 1));
  return inputs;
}

void set_drafter_metadata(GgufWriter& w, const DrafterShape& d, uint32_t file_type) {
  const auto u32 = [&](const char* key, int64_t value) {
    w.set_u32(fmt::format("dflash.{}", key), static_cast<uint32_t>(value));
  };
  w.set_string("general.architecture", "dflash");
  w.set_string("general.type", "model");
  w.set_string("general.name", fmt::format("random-drafter-{}", d.target.name));
  u32("block_count", kLayers);
  u32("context_length", d.target.context_length);
  u32("embedding_length", d.target.width);
  u32("feed_forward_length", d.ffn_width());
  u32("attention.head_count", kHeads);
  u32("attention.head_count_kv", kKvHeads);
  u32("attention.key_length", kHeadDim);
  u32("attention.value_length", kHeadDim);
  w.set_f32("dflash.attention.layer_norm_rms_epsilon", 1e-6f);
  w.set_f32("dflash.rope.freq_base", 1e7f);
  w.set_bool("dflash.attention.causal", false);
  if (!d.markov) u32("attention.sliding_window", kWindow);
  u32("block_size", d.block());
  w.set_i32s("dflash.target_layers", tapped_inputs(d.target));
  if (d.mixes) {
    u32("conv_kernel_size", kConvTaps);
    u32("conv_group_size", kConvGroup);
    u32("selector_rank", kRank);
    u32("selector_top_k", kCandidates);
  }
  if (d.markov) w.set_bool("dflash.has_confidence_head", true);
  w.set_u32("tokenizer.ggml.mask_token_id", static_cast<uint32_t>(d.target.vocabulary - 250));
  w.set_u32("general.file_type", file_type);
  w.set_u32("general.quantization_version", 2);
}

void add_layer(SpecList& t, const DrafterShape& d, const std::string& p) {
  const int64_t width = d.target.width;
  t.norm(p + "attn_norm.weight", width);
  t.matrix(p + "attn_q", width, kHeads * kHeadDim);
  t.matrix(p + "attn_k", width, kKvHeads * kHeadDim);
  t.matrix(p + "attn_v", width, kKvHeads * kHeadDim);
  t.matrix(p + "attn_output", kHeads * kHeadDim, width);
  t.norm(p + "attn_q_norm.weight", kHeadDim);
  t.norm(p + "attn_k_norm.weight", kHeadDim);
  t.norm(p + "ffn_norm.weight", width);
  t.matrix(p + "ffn_gate", width, d.ffn_width());
  t.matrix(p + "ffn_up", width, d.ffn_width());
  t.matrix(p + "ffn_down", d.ffn_width(), width);
  if (!d.mixes) return;
  for (const char* part : {"attn_conv", "ffn_conv"}) {
    t.vector(p + part + "_base", kConvTaps, 0.3f, 0.6f, width);
    t.list.back().ne[2] = 2;
    t.list.back().dims = 3;
    t.matrix(p + part + "_proj", width, 2 * kConvTaps * width / kConvGroup);
  }
}

std::vector<RandomTensor> drafter_tensors(const DrafterShape& d) {
  const int64_t width = d.target.width, vocabulary = d.target.vocabulary;
  SpecList t;
  t.matrix("fc", kTaps * width, width);
  t.norm("enc.output_norm.weight", width);
  t.norm("output_norm.weight", width);
  for (int32_t i = 0; i < kLayers; ++i) add_layer(t, d, fmt::format("blk.{}.", i));
  if (d.mixes) {
    t.matrix("selector_hidden", width, kRank);
    t.matrix("selector_predecessor", kRank, vocabulary);
    t.matrix("selector_successor", kRank, vocabulary);
  }
  if (d.markov) {
    t.matrix("markov_w1", kRank, vocabulary);
    t.matrix("markov_w2", kRank, vocabulary);
    t.vector("conf_proj.weight", width + kRank, -0.01f, 0.01f);
    t.vector("conf_proj.bias", 1, 0.0f, 1.0f);
  }
  return t.list;
}

}  // namespace

std::span<const std::string_view> random_drafter_kinds() { return kKinds; }

Result<GgufWriter> random_drafter(const RandomShape& shape, std::string_view kind,
                                  const RandomOptions& options) {
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end())
    return Error{ErrorKind::invalid_argument,
                 fmt::format("there is no drafter {}: choose one of {}, {}, {}", kind, kKinds[0],
                             kKinds[1], kKinds[2])};
  if (shape.layers < 2 * kTaps || shape.width % kConvGroup != 0 || shape.vocabulary <= 250)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} is too small for a drafter", shape.name)};
  const DrafterShape drafter = {shape, kind == "dflash2", kind == "dspark"};
  const std::vector<RandomTensor> specs = drafter_tensors(drafter);
  BRAID_ASSIGN(const RandomTypes chosen, random_types(specs, options.mix, kLayers, 0));
  GgufWriter writer;
  set_drafter_metadata(writer, drafter, chosen.file_type);
  add_random_tensors(writer, specs, chosen.types, options);
  return writer;
}

}  // namespace braid
