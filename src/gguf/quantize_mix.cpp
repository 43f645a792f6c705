// quantize_mix.cpp -- rules for the type of each tensor; quantize.cpp converts the bytes.
#include <algorithm>

#include "gguf/quantize.h"

namespace braid {

namespace {

constexpr QuantizeMix kMixes[] = {
    {"F32", GgmlType::F32, 0},      {"F16", GgmlType::F16, 1},      {"BF16", GgmlType::BF16, 32},
    {"Q8_0", GgmlType::Q8_0, 7},    {"Q4_0", GgmlType::Q4_0, 2},    {"Q4_1", GgmlType::Q4_1, 3},
    {"Q5_0", GgmlType::Q5_0, 8},    {"Q5_1", GgmlType::Q5_1, 9},    {"Q4_K_S", GgmlType::Q4_K, 14},
    {"Q4_K_M", GgmlType::Q4_K, 15}, {"Q5_K_S", GgmlType::Q5_K, 16}, {"Q5_K_M", GgmlType::Q5_K, 17},
    {"Q6_K", GgmlType::Q6_K, 18},
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_copied(const MixTensor& tensor) {
  if (tensor.ne[1] == 1 && tensor.ne[2] == 1 && tensor.ne[3] == 1) return true;
  if (!tensor.name.ends_with("weight")) return true;
  if (tensor.name == "position_embd.weight" || tensor.name == "token_types.weight") return true;
  for (const std::string_view part : {"_norm.weight",
                                      "ffn_gate_inp.weight",
                                      "altup",
                                      "laurel",
                                      "per_layer_model_proj",
                                      "ssm_conv1d",
                                      "shortconv.conv.weight",
                                      "time_mix_first.weight",
                                      "time_mix_w0.weight",
                                      "time_mix_w1.weight",
                                      "time_mix_w2.weight",
                                      "time_mix_v0.weight",
                                      "time_mix_v1.weight",
                                      "time_mix_v2.weight",
                                      "time_mix_a0.weight",
                                      "time_mix_a1.weight",
                                      "time_mix_a2.weight",
                                      "time_mix_g1.weight",
                                      "time_mix_g2.weight",
                                      "time_mix_decay_w1.weight",
                                      "time_mix_decay_w2.weight",
                                      "time_mix_lerp_fused.weight",
                                      "attn_rel_b.weight",
                                      ".position_embd",
                                      "sam.pos_embd",
                                      "sam.neck.",
                                      "sam.net_",
                                      ".rel_pos",
                                      ".patch_embd",
                                      ".patch_merger",
                                      "indexer.k_proj.weight",
                                      "indexer.q_proj.weight",
                                      "ffn_gate_tid2eid.weight"}) {
    if (contains(tensor.name, part)) return true;
  }
  return false;
}

// attn_v and fused tensors with it, where errors hurt attention most.
bool is_v_like(std::string_view name) {
  return contains(name, "attn_qkv.weight") || contains(name, "attn_kv_b.weight") ||
         contains(name, "attn_v.weight");
}

// Of n layers, the first and last eighth and every third between get more bits.
bool more_bits(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

// The replacement for rows that are not whole blocks of `type`.
GgmlType fitting(GgmlType type, uint64_t row_elems) {
  if (row_elems % block_elems(type) == 0) return type;
  GgmlType other = GgmlType::F16;
  if (type == GgmlType::Q4_K) other = GgmlType::Q5_0;
  if (type == GgmlType::Q5_K) other = GgmlType::Q5_1;
  if (type == GgmlType::Q6_K) other = GgmlType::Q8_0;
  return row_elems % block_elems(other) == 0 ? other : GgmlType::F16;
}

class Chooser {
 public:
  Chooser(const QuantizeMix& mix, std::span<const MixTensor> tensors, uint32_t n_layer,
          uint32_t n_expert)
      : mix_(mix),
        n_layer_(static_cast<int>(std::min<uint32_t>(n_layer, 1 << 20))),
        n_expert_(n_expert) {
    for (const MixTensor& tensor : tensors) {
      if (is_v_like(tensor.name)) ++v_count_;
      if (tensor.name == "output.weight") tied_ = false;
    }
  }

  // REQUIRES: called once for every quantized tensor, in order, because it counts them.
  GgmlType choose(const MixTensor& tensor) {
    const bool k_small = mix_.name == "Q4_K_S";
    const bool k_medium = mix_.name == "Q4_K_M" || mix_.name == "Q5_K_M";
    const std::string_view name = tensor.name;
    const GgmlType usual = mix_.default_type;
    if (name == "output.weight" || (tied_ && is_embedding(name))) {
      if (tensor.ne[0] % block_elems(usual) != 0) return GgmlType::Q8_0;
      return usual == GgmlType::Q8_0 ? usual : GgmlType::Q6_K;
    }
    if (is_embedding(name)) return usual;
    if (is_v_like(name)) {
      const int i = v_seen_++;
      if (n_expert_ == 8) return GgmlType::Q8_0;
      if (k_medium && more_bits(i, v_count_)) return GgmlType::Q6_K;
      return k_small && i < 4 ? GgmlType::Q5_K : usual;
    }
    if (contains(name, "attn_k.weight")) return n_expert_ == 8 ? GgmlType::Q8_0 : usual;
    if (contains(name, "attn_q.weight")) return usual;
    if (contains(name, "attn_output.weight")) {
      return n_expert_ == 8 && usual == GgmlType::Q4_K ? GgmlType::Q5_K : usual;
    }
    if (contains(name, "ffn_up") || contains(name, "ffn_gate")) return usual;
    if (contains(name, "ffn_down")) {
      const int seen = down_seen_++;
      // all expert tensors of a layer get the same choice
      const int i = n_expert_ > 1 ? tensor_layer(name) : seen;
      if (i < 0) return usual;
      if (k_medium && more_bits(i, n_layer_)) return GgmlType::Q6_K;
      if (k_small && i < n_layer_ / 8) return GgmlType::Q5_K;
    }
    return usual;
  }

 private:
  static bool is_embedding(std::string_view name) {
    return name == "token_embd.weight" || name == "per_layer_token_embd.weight";
  }

  const QuantizeMix& mix_;
  int n_layer_;
  uint32_t n_expert_;
  bool tied_ = true;
  int v_count_ = 0;
  int v_seen_ = 0;
  int down_seen_ = 0;
};

}  // namespace

std::span<const QuantizeMix> quantize_mixes() { return kMixes; }

std::string quantize_mix_names() {
  std::string names;
  for (const QuantizeMix& mix : kMixes)
    names += (names.empty() ? "" : ", ") + std::string(mix.name);
  return names;
}

const QuantizeMix* find_quantize_mix(std::string_view name) {
  const auto upper = [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  };
  for (const QuantizeMix& mix : kMixes) {
    if (std::equal(mix.name.begin(), mix.name.end(), name.begin(), name.end(),
                   [&](char a, char b) { return a == upper(b); })) {
      return &mix;
    }
  }
  return nullptr;
}

std::vector<GgmlType> tensor_types_for(const QuantizeMix& mix, std::span<const MixTensor> tensors,
                                       uint32_t n_layer, uint32_t n_expert) {
  Chooser chooser(mix, tensors, n_layer, n_expert);
  const bool plain = block_elems(mix.default_type) == 1;
  std::vector<GgmlType> types;
  types.reserve(tensors.size());
  for (const MixTensor& tensor : tensors) {
    if (is_copied(tensor)) {
      types.push_back(tensor.type);
    } else {
      types.push_back(plain ? mix.default_type : fitting(chooser.choose(tensor), tensor.ne[0]));
    }
  }
  return types;
}

int tensor_layer(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int layer = 0;
  size_t at = 4;
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at) {
    if (layer > 100'000'000) return -1;
    layer = 10 * layer + (name[at] - '0');
  }
  return at > 4 && at < name.size() && name[at] == '.' ? layer : -1;
}

bool tensor_comes_before(std::string_view a, std::string_view b) {
  const int layer_a = tensor_layer(a);
  const int layer_b = tensor_layer(b);
  return layer_a != layer_b ? layer_a < layer_b : a < b;
}

}  // namespace braid
