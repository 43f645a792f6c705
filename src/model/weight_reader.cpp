// weight_reader.cpp -- see weight_reader.h.
#include "model/weight_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gguf/block_layouts.h"

namespace braid {
namespace {

constexpr int64_t kMaxVocabulary = 1 << 24;

using Shape = WeightReader::Shape;

std::string shown(const Shape& shape) {
  size_t dims = 4;
  while (dims > 1 && shape[dims - 1] == 1) --dims;
  return fmt::format("{{{}}}", fmt::join(shape.begin(), shape.begin() + dims, ", "));
}

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

void decode(const GgufTensor& tensor, float* out) {
  const auto row = static_cast<int64_t>(tensor.ne[0]);
  for (uint64_t r = 0; r < tensor.rows(); ++r)
    decode_row(tensor.type, tensor.data.data() + r * tensor.bytes_per_row(),
               out + static_cast<int64_t>(r) * row, row);
}

}  // namespace

Status WeightReader::matrix(Weight& w, const std::string& name, int64_t n, int64_t k,
                            int64_t experts) {
  const std::string full = name + ".weight";
  BRAID_ASSIGN(const GgufTensor* tensor, checked(full, {u(k), u(n), u(experts), 1}));
  w.name = full;
  w.type = tensor->type;
  w.n = n;
  w.k = k;
  w.experts = experts;
  w.file = tensor->data;
  for (const char* spelling : {".scale", ".weight.scale"}) {
    const GgufTensor* scale = file_.find_tensor(name + spelling);
    if (scale == nullptr) continue;
    const uint64_t count = scale->elems();
    if (count != 1 && count != u(experts)) return wrong_shape(*scale, {u(experts), 1, 1, 1});
    auto& values = out_.scales_.emplace_back(count);
    decode(*scale, values.data());
    w.scales = values;
    break;
  }
  return {};
}

Status WeightReader::vector(const float*& user, const std::string& name, int64_t rows,
                            int64_t per_row) {
  const Shape shape = per_row == 0 ? Shape{u(rows), 1, 1, 1} : Shape{u(per_row), u(rows), 1, 1};
  BRAID_ASSIGN(const GgufTensor* tensor, checked(name, shape));
  decode(*tensor, out_.add_vector(user, tensor->elems(), layer_).data());
  return {};
}

Status WeightReader::attention(AttentionBlock& a, const AttentionConfig& c,
                               const std::string& prefix) {
  const int64_t query_rows = c.query_rows();
  const int64_t kv_rows = c.kv_width();
  for (const char* bias : {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"})
    if (has(prefix + bias))
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: tensor {}{}: braid does not add biases in attention",
                               file_.name(), prefix, bias)};
  if (has(prefix + "attn_qkv.weight")) {
    Weight fused;
    BRAID_TRY(matrix(fused, prefix + "attn_qkv", query_rows + 2 * kv_rows, config_.width));
    a.q = rows_of(fused, {{0, query_rows}}, " (q)");
    a.k = rows_of(fused, {{query_rows, kv_rows}}, " (k)");
    a.v = rows_of(fused, {{query_rows + kv_rows, kv_rows}}, " (v)");
  } else {
    BRAID_TRY(matrix(a.q, prefix + "attn_q", query_rows, config_.width));
    BRAID_TRY(matrix(a.k, prefix + "attn_k", kv_rows, config_.width));
    BRAID_TRY(matrix(a.v, prefix + "attn_v", kv_rows, config_.width));
  }
  if (c.gate.separate())
    BRAID_TRY(matrix(a.gate, prefix + "attn_gate", c.gate_rows(), config_.width));
  BRAID_TRY(matrix(a.output, prefix + "attn_output", config_.width, c.query_width()));
  BRAID_TRY(vector(a.norms.q_norm, prefix + "attn_q_norm.weight", c.head_dim));
  BRAID_TRY(vector(a.norms.k_norm, prefix + "attn_k_norm.weight", c.head_dim));
  a.norms.eps = config_.eps;
  return {};
}

Status WeightReader::delta_projections(DeltaBlock& d, const DeltaShape& s,
                                       const std::string& prefix) {
  BRAID_TRY(matrix(d.qkv, prefix + "attn_qkv", s.channels(), config_.width));
  return matrix(d.z, prefix + "attn_gate", s.value_width(), config_.width);
}

Status WeightReader::delta_rest(DeltaBlock& d, const DeltaShape& s, const std::string& prefix) {
  BRAID_TRY(matrix(d.output, prefix + "ssm_out", config_.width, s.value_width()));
  BRAID_TRY(vector(d.small.conv, prefix + "ssm_conv1d.weight", s.channels(), s.conv_width));
  BRAID_TRY(vector(d.small.a, prefix + "ssm_a", s.value_heads));
  BRAID_TRY(vector(d.small.dt, prefix + "ssm_dt.bias", s.value_heads));
  BRAID_TRY(vector(d.small.norm, prefix + "ssm_norm.weight", s.value_dim));
  d.small.eps = config_.eps;
  return {};
}

Status read_plain_delta(WeightReader& reader, DeltaBlock& d, const DeltaShape& s,
                        const std::string& prefix) {
  BRAID_TRY(reader.delta_projections(d, s, prefix));
  BRAID_TRY(reader.matrix(d.alpha, prefix + "ssm_alpha", s.value_heads, reader.width()));
  BRAID_TRY(reader.matrix(d.beta, prefix + "ssm_beta", s.value_heads, reader.width()));
  return reader.delta_rest(d, s, prefix);
}

Status WeightReader::feed_forward(LayerWeights& layer, const FeedForwardConfig& c,
                                  const std::string& prefix) {
  const int64_t width = config_.width;
  if (!c.is_moe()) {
    BRAID_TRY(matrix(layer.mlp.gate, prefix + "ffn_gate", c.width, width));
    BRAID_TRY(matrix(layer.mlp.up, prefix + "ffn_up", c.width, width));
    return matrix(layer.mlp.down, prefix + "ffn_down", width, c.width);
  }
  MoeBlock& m = layer.moe;
  const int64_t experts = c.experts;
  const int64_t routed = c.expert_width;
  BRAID_TRY(matrix(m.router, prefix + "ffn_gate_inp", experts, width));
  if (has(prefix + "exp_probs_b.bias")) {
    if (c.score != RouteParams::Score::sigmoid)
      return Error{
          ErrorKind::unsupported,
          fmt::format("{}: tensor {}exp_probs_b.bias: braid does not add a bias to softmax scores",
                      file_.name(), prefix)};
    BRAID_TRY(vector(m.route_bias, prefix + "exp_probs_b.bias", experts));
  }
  if (has(prefix + "ffn_gate_up_exps.weight")) {
    BRAID_TRY(fused_experts(m, c, prefix));
  } else {
    BRAID_TRY(matrix(m.gate, prefix + "ffn_gate_exps", routed, width, experts));
    BRAID_TRY(matrix(m.up, prefix + "ffn_up_exps", routed, width, experts));
  }
  BRAID_TRY(matrix(m.down, prefix + "ffn_down_exps", width, routed, experts));
  if (c.shared_width == 0) return {};
  BRAID_TRY(matrix(m.shared_gate, prefix + "ffn_gate_shexp", c.shared_width, width));
  BRAID_TRY(matrix(m.shared_up, prefix + "ffn_up_shexp", c.shared_width, width));
  BRAID_TRY(matrix(m.shared_down, prefix + "ffn_down_shexp", width, c.shared_width));
  return c.shared_gated ? vector(m.shared_scale, prefix + "ffn_gate_inp_shexp.weight", width)
                        : Status();
}

Status WeightReader::fused_experts(MoeBlock& m, const FeedForwardConfig& c,
                                   const std::string& prefix) {
  const int64_t routed = c.expert_width;
  Weight fused;
  BRAID_TRY(matrix(fused, prefix + "ffn_gate_up_exps", 2 * routed, config_.width, c.experts));
  if (const GgufTensor* scale = file_.find_tensor(prefix + "ffn_up_exps.scale");
      scale != nullptr && fused.scales.empty()) {
    if (scale->elems() != 1 && scale->elems() != u(c.experts))
      return wrong_shape(*scale, {u(c.experts), 1, 1, 1});
    auto& values = out_.scales_.emplace_back(scale->elems());
    decode(*scale, values.data());
    fused.scales = values;
  }
  m.gate = rows_of(fused, {{0, routed}}, " (gate)");
  m.up = rows_of(fused, {{routed, routed}}, " (up)");
  return {};
}

Status WeightReader::mtp_head(const DecoderTensors& tensors, const LayerConfig& layer,
                              MtpWeights& head, const std::string& prefix) {
  const int64_t width = config_.width;
  BRAID_TRY(matrix(head.eh_proj, prefix + "nextn.eh_proj", width, 2 * width));
  BRAID_TRY(vector(head.embedding_norm, prefix + "nextn.enorm.weight", width));
  BRAID_TRY(vector(head.hidden_norm, prefix + "nextn.hnorm.weight", width));
  const bool has_norm = has(prefix + "nextn.shared_head_norm.weight");
  const std::string norm_name =
      has_norm ? prefix + "nextn.shared_head_norm.weight" : "output_norm.weight";
  BRAID_TRY(vector(head.head_norm, norm_name, width));
  if (!has_norm) parameters_ -= width;  // counted with the trunk
  head.embedding = &out_.embedding;
  if (has(prefix + "nextn.embed_tokens.weight")) {
    BRAID_TRY(matrix(head.own_embedding, prefix + "nextn.embed_tokens", config_.vocabulary, width));
    mark_as_table(head.own_embedding, false);
    head.embedding = &head.own_embedding;
  }
  head.head = &out_.head();
  if (has(prefix + "nextn.shared_head_head.weight")) {
    BRAID_TRY(matrix(head.own_head, prefix + "nextn.shared_head_head", config_.vocabulary, width));
    head.head = &head.own_head;
  }
  BRAID_TRY(vector(head.layer.mixer_norm, prefix + "attn_norm.weight", width));
  BRAID_TRY(attention(head.layer.attention, layer.attention, prefix));
  BRAID_TRY(vector(head.layer.ffn_norm, prefix + std::string(tensors.ffn_norm), width));
  // Some files lack the feed-forward part of this block; then it is omitted.
  const bool has_ffn = has(prefix + "ffn_down.weight") || has(prefix + "ffn_down_exps.weight");
  return has_ffn ? feed_forward(head.layer, layer.feed_forward, prefix) : Status();
}

Status WeightReader::decoder(const DecoderTensors& tensors, bool with_mtp) {
  BRAID_TRY(ends());
  const size_t count = config_.layers.size();
  out_.layers = std::vector<LayerWeights>(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    const LayerConfig& c = config_.layers[i];
    LayerWeights& layer = out_.layers[i];
    layer_ = static_cast<int32_t>(i);
    BRAID_TRY(vector(layer.mixer_norm, prefix + "attn_norm.weight", config_.width));
    if (c.kind == LayerKind::attention) {
      BRAID_TRY(attention(layer.attention, c.attention, prefix));
    } else {
      BRAID_TRY(tensors.delta(*this, layer.delta, c.delta, prefix));
    }
    BRAID_TRY(vector(layer.ffn_norm, prefix + std::string(tensors.ffn_norm), config_.width));
    BRAID_TRY(feed_forward(layer, c.feed_forward, prefix));
  }
  layer_ = ModelWeights::kLastStage;
  BRAID_TRY(vector(out_.output_norm, "output_norm.weight", config_.width));
  const int64_t trunk = parameters_;

  // Some files announce the head and do not hold it.
  if (with_mtp && !config_.mtp.empty() && has(fmt::format("blk.{}.nextn.eh_proj.weight", count))) {
    out_.mtp = std::vector<MtpWeights>(config_.mtp.size());
    for (size_t i = 0; i < config_.mtp.size(); ++i)
      BRAID_TRY(mtp_head(tensors, config_.mtp[i], out_.mtp[i], fmt::format("blk.{}.", count + i)));
  }
  out_.count_parameters(trunk, parameters_ - trunk);
  return {};
}

Result<const GgufTensor*> WeightReader::checked(const std::string& name, const Shape& shape) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} is missing (expected, with shape {})", file_.name(),
                             name, shown(shape))};
  if (tensor->ne != shape) return wrong_shape(*tensor, shape);
  parameters_ += static_cast<int64_t>(tensor->elems());
  return tensor;
}

Error WeightReader::wrong_shape(const GgufTensor& tensor, const Shape& expected) const {
  return {ErrorKind::corrupt,
          fmt::format("{}: tensor {} has shape {}; expected {} from the metadata", file_.name(),
                      tensor.name, shown(tensor.ne), shown(expected))};
}

void WeightReader::mark_as_table(Weight& w, bool also_product) {
  w.is_table = true;
  w.is_product = also_product;
}

Status WeightReader::ends() {
  const GgufTensor* table = file_.find_tensor("token_embd.weight");
  if (table != nullptr) {
    if (table->ne[1] > static_cast<uint64_t>(kMaxVocabulary))
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor token_embd.weight has {} rows; at most {} are possible",
                               file_.name(), table->ne[1], kMaxVocabulary)};
    config_.vocabulary = static_cast<int64_t>(table->ne[1]);
  }
  BRAID_TRY(matrix(out_.embedding, "token_embd", config_.vocabulary, config_.width));
  if (!out_.embedding.scales.empty())
    return Error{
        ErrorKind::unsupported,
        fmt::format("{}: tensor token_embd.scale: braid does not scale embeddings", file_.name())};
  const bool tied = !has("output.weight");
  mark_as_table(out_.embedding, tied);
  return tied ? Status() : matrix(out_.own_head, "output", config_.vocabulary, config_.width);
}

}  // namespace braid
