// random_tensors.cpp -- see random_tensors.h.
#include "model/random_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gguf/quantize.h"

namespace braid {
namespace {

void add_attention(SpecList& t, const RandomShape& s, const std::string& p, int32_t layer,
                   bool fused) {
  const bool joint_gates = s.architecture.starts_with("qwen35") || s.architecture == "qwen3next";
  const int64_t width = int64_t{s.heads_of(layer)} * s.head_dim;
  const int64_t query_rows = joint_gates ? 2 * width : width;
  const int64_t kv_rows = int64_t{s.kv_heads} * s.head_dim;
  if (fused) {
    t.matrix(p + "attn_qkv", s.width, query_rows + 2 * kv_rows);
  } else {
    t.matrix(p + "attn_q", s.width, query_rows);
    t.matrix(p + "attn_k", s.width, kv_rows);
    t.matrix(p + "attn_v", s.width, kv_rows);
  }
  if (s.architecture == "laguna") t.matrix(p + "attn_gate", s.width, s.heads_of(layer));
  t.matrix(p + "attn_output", width, s.width);
  t.norm(p + "attn_q_norm.weight", s.head_dim);
  t.norm(p + "attn_k_norm.weight", s.head_dim);
}

void add_delta(SpecList& t, const RandomShape& s, const std::string& p) {
  const int64_t value_width = int64_t{s.value_heads} * s.delta_dim;
  const int64_t channels = int64_t{2} * s.key_heads * s.delta_dim + value_width;
  t.matrix(p + "attn_qkv", s.width, channels);
  t.matrix(p + "attn_gate", s.width, value_width);
  if (s.architecture == "qwen3next") {
    t.matrix(p + "ssm_ba", s.width, int64_t{2} * s.value_heads);
  } else {
    t.matrix(p + "ssm_alpha", s.width, s.value_heads);
    t.matrix(p + "ssm_beta", s.width, s.value_heads);
  }
  t.matrix(p + "ssm_out", value_width, s.width);
  t.vector(p + "ssm_conv1d.weight", channels, -0.5f, 0.5f, 4);
  t.vector(p + "ssm_a", s.value_heads, -4.0f, -0.05f);
  t.vector(p + "ssm_dt.bias", s.value_heads, -6.0f, -1.0f);
  t.norm(p + "ssm_norm.weight", s.delta_dim);
}

void add_feed_forward(SpecList& t, const RandomShape& s, const std::string& p, int32_t layer,
                      bool fused) {
  if (!s.has_experts(layer)) {
    t.matrix(p + "ffn_gate", s.width, s.ffn_width);
    t.matrix(p + "ffn_up", s.width, s.ffn_width);
    t.matrix(p + "ffn_down", s.ffn_width, s.width);
    return;
  }
  t.matrix(p + "ffn_gate_inp", s.width, s.experts);
  if (s.architecture == "laguna") t.vector(p + "exp_probs_b.bias", s.experts, -0.1f, 0.1f);
  if (fused) {
    t.matrix(p + "ffn_gate_up_exps", s.width, 2 * s.expert_width, s.experts);
  } else {
    t.matrix(p + "ffn_gate_exps", s.width, s.expert_width, s.experts);
    t.matrix(p + "ffn_up_exps", s.width, s.expert_width, s.experts);
  }
  t.matrix(p + "ffn_down_exps", s.expert_width, s.width, s.experts);
  if (s.shared_width == 0) return;
  if (s.architecture != "laguna") t.vector(p + "ffn_gate_inp_shexp.weight", s.width, -0.05f, 0.05f);
  t.matrix(p + "ffn_gate_shexp", s.width, s.shared_width);
  t.matrix(p + "ffn_up_shexp", s.width, s.shared_width);
  t.matrix(p + "ffn_down_shexp", s.shared_width, s.width);
}

}  // namespace

void SpecList::matrix(const std::string& name, int64_t k, int64_t n, int64_t experts,
                      float deviation) {
  RandomTensor s;
  s.name = name + ".weight";
  s.ne = {static_cast<uint64_t>(k), static_cast<uint64_t>(n), static_cast<uint64_t>(experts), 1};
  s.dims = experts > 1 ? 3 : 2;
  s.deviation = deviation > 0 ? deviation : 1.0f / std::sqrt(static_cast<float>(k));
  list.push_back(std::move(s));
}

void SpecList::vector(const std::string& name, int64_t n, float low, float high, int64_t columns) {
  RandomTensor s;
  s.name = name;
  s.ne = {static_cast<uint64_t>(columns > 0 ? columns : n),
          columns > 0 ? static_cast<uint64_t>(n) : 1, 1, 1};
  s.dims = columns > 0 ? 2 : 1;
  s.low = low;
  s.high = high;
  list.push_back(std::move(s));
}

std::vector<RandomTensor> random_tensors(const RandomShape& s, bool with_mtp, bool fused) {
  const bool own_ffn_norm = s.architecture.starts_with("qwen3m") || s.architecture == "qwen3" ||
                            s.architecture == "laguna";
  SpecList t;
  t.matrix("token_embd", s.width, s.vocabulary, 1, 0.5f);
  if (!s.tied) t.matrix("output", s.width, s.vocabulary);
  t.norm("output_norm.weight", s.width);
  for (int32_t i = 0; i < s.layers + (with_mtp ? 1 : 0); ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    t.norm(p + "attn_norm.weight", s.width);
    t.norm(p + (own_ffn_norm ? "ffn_norm.weight" : "post_attention_norm.weight"), s.width);
    if (i == s.layers || s.attends(i)) {
      add_attention(t, s, p, i, fused);
    } else {
      add_delta(t, s, p);
    }
    add_feed_forward(t, s, p, i, fused);
    if (i < s.layers) continue;
    t.matrix(p + "nextn.eh_proj", 2 * s.width, s.width);
    for (const char* norm :
         {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"})
      t.norm(p + norm, s.width);
  }
  std::sort(t.list.begin(), t.list.end(), [](const RandomTensor& a, const RandomTensor& b) {
    return tensor_comes_before(a.name, b.name);
  });
  return t.list;
}

}  // namespace braid
