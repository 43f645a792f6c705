// weights.cpp -- the tensors of qwen35 / qwen35moe files: names, shapes, presence; and bringing them to a
// device.
#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "gguf/formats/block_layouts.h"

namespace braid {
namespace {

constexpr int64_t kMaxVocabulary = 1 << 24;

using Shape = std::array<uint64_t, 4>;

std::string shown(const Shape& shape) {
  size_t dims = 4;
  while (dims > 1 && shape[dims - 1] == 1) --dims;
  return fmt::format("{{{}}}", fmt::join(shape.begin(), shape.begin() + dims, ", "));
}

// Rows [first, first + rows) of every expert of a fused matrix.
Weight rows_of(const Weight& fused, int64_t first, int64_t rows, const char* part) {
  Weight w = fused;
  w.name += part;
  w.n = rows;
  const size_t first_byte = static_cast<size_t>(first) * fused.file_row_bytes();
  w.file = fused.file.subspan(first_byte);
  if (fused.experts > 1) {
    w.expert_stride_bytes = static_cast<size_t>(fused.n) * fused.file_row_bytes();
  } else {
    w.file = w.file.first(static_cast<size_t>(rows) * fused.file_row_bytes());
  }
  return w;
}

uint64_t file_bytes(const Weight& w) {
  return static_cast<uint64_t>(w.experts) * static_cast<uint64_t>(w.n) * w.file_row_bytes();
}

void release_pages(const GgufFile& file, const Weight& w) {
  for (const MappedFile& mapping : file.mappings()) {
    const auto bytes = mapping.bytes();
    if (w.file.data() >= bytes.data() && w.file.data() < bytes.data() + bytes.size()) mapping.release(w.file);
  }
}

}  // namespace

// Looks tensors up, checks shapes, and fills the fields of ModelWeights.
class WeightReader {
 public:
  WeightReader(const GgufFile& file, const ModelConfig& config, ModelWeights& out)
      : file_(file), config_(config), out_(out) {}

  int64_t parameters() const { return parameters_; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // `name` without ".weight".
  Status matrix(Weight& w, const std::string& name, int64_t n, int64_t k, int64_t experts = 1) {
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

  // `name` complete. The values are decoded at once, the pointer is set by ModelWeights::load().
  Status vector(const float*& user, const std::string& name, int64_t rows, int64_t per_row = 0) {
    const Shape shape = per_row == 0 ? Shape{u(rows), 1, 1, 1} : Shape{u(per_row), u(rows), 1, 1};
    BRAID_ASSIGN(const GgufTensor* tensor, checked(name, shape));
    constexpr size_t kAlignElements = 16;
    const size_t offset = (out_.vectors_.size() + kAlignElements - 1) / kAlignElements * kAlignElements;
    out_.vectors_.resize(offset + tensor->elems());
    decode(*tensor, out_.vectors_.data() + offset);
    out_.vector_uses_.push_back({&user, offset});
    return {};
  }

  Status attention(AttentionBlock& a, const std::string& prefix) {
    const int64_t query_rows = int64_t{2} * config_.heads * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.kv_heads} * config_.head_dim;
    for (const char* bias : {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"})
      if (has(prefix + bias))
        return Error{ErrorKind::unsupported,
                     fmt::format("{}: tensor {}{}: braid does not add biases in attention", file_.name(),
                                 prefix, bias)};
    if (has(prefix + "attn_qkv.weight")) {
      Weight fused;
      BRAID_TRY(matrix(fused, prefix + "attn_qkv", query_rows + 2 * kv_rows, config_.width));
      a.q = rows_of(fused, 0, query_rows, " (q)");
      a.k = rows_of(fused, query_rows, kv_rows, " (k)");
      a.v = rows_of(fused, query_rows + kv_rows, kv_rows, " (v)");
    } else {
      BRAID_TRY(matrix(a.q, prefix + "attn_q", query_rows, config_.width));
      BRAID_TRY(matrix(a.k, prefix + "attn_k", kv_rows, config_.width));
      BRAID_TRY(matrix(a.v, prefix + "attn_v", kv_rows, config_.width));
    }
    BRAID_TRY(
        matrix(a.output, prefix + "attn_output", config_.width, int64_t{config_.heads} * config_.head_dim));
    BRAID_TRY(vector(a.norms.q_norm, prefix + "attn_q_norm.weight", config_.head_dim));
    BRAID_TRY(vector(a.norms.k_norm, prefix + "attn_k_norm.weight", config_.head_dim));
    a.norms.eps = config_.eps;
    return {};
  }

  Status delta(DeltaBlock& d, const std::string& prefix) {
    const DeltaShape& s = config_.delta;
    BRAID_TRY(matrix(d.qkv, prefix + "attn_qkv", s.channels(), config_.width));
    BRAID_TRY(matrix(d.z, prefix + "attn_gate", s.value_width(), config_.width));
    BRAID_TRY(matrix(d.alpha, prefix + "ssm_alpha", s.value_heads, config_.width));
    BRAID_TRY(matrix(d.beta, prefix + "ssm_beta", s.value_heads, config_.width));
    BRAID_TRY(matrix(d.output, prefix + "ssm_out", config_.width, s.value_width()));
    BRAID_TRY(vector(d.small.conv, prefix + "ssm_conv1d.weight", s.channels(), s.conv_width));
    BRAID_TRY(vector(d.small.a, prefix + "ssm_a", s.value_heads));
    BRAID_TRY(vector(d.small.dt, prefix + "ssm_dt.bias", s.value_heads));
    BRAID_TRY(vector(d.small.norm, prefix + "ssm_norm.weight", s.value_dim));
    d.small.eps = config_.eps;
    return {};
  }

  Status feed_forward(LayerWeights& layer, const std::string& prefix) {
    const int64_t width = config_.width;
    if (!config_.is_moe()) {
      BRAID_TRY(matrix(layer.mlp.gate, prefix + "ffn_gate", config_.ffn_width, width));
      BRAID_TRY(matrix(layer.mlp.up, prefix + "ffn_up", config_.ffn_width, width));
      return matrix(layer.mlp.down, prefix + "ffn_down", width, config_.ffn_width);
    }
    MoeBlock& m = layer.moe;
    const int64_t experts = config_.experts;
    const int64_t routed = config_.expert_width;
    BRAID_TRY(matrix(m.router, prefix + "ffn_gate_inp", experts, width));
    if (has(prefix + "ffn_gate_up_exps.weight")) {
      BRAID_TRY(fused_experts(m, prefix, routed));
    } else {
      BRAID_TRY(matrix(m.gate, prefix + "ffn_gate_exps", routed, width, experts));
      BRAID_TRY(matrix(m.up, prefix + "ffn_up_exps", routed, width, experts));
    }
    BRAID_TRY(matrix(m.down, prefix + "ffn_down_exps", width, routed, experts));
    if (config_.shared_width == 0) return {};
    BRAID_TRY(matrix(m.shared_gate, prefix + "ffn_gate_shexp", config_.shared_width, width));
    BRAID_TRY(matrix(m.shared_up, prefix + "ffn_up_shexp", config_.shared_width, width));
    BRAID_TRY(matrix(m.shared_down, prefix + "ffn_down_shexp", width, config_.shared_width));
    return vector(m.shared_scale, prefix + "ffn_gate_inp_shexp.weight", width);
  }

  Status mtp(MtpWeights& head, const std::string& prefix) {
    BRAID_TRY(matrix(head.eh_proj, prefix + "nextn.eh_proj", config_.width, 2 * config_.width));
    BRAID_TRY(vector(head.embedding_norm, prefix + "nextn.enorm.weight", config_.width));
    BRAID_TRY(vector(head.hidden_norm, prefix + "nextn.hnorm.weight", config_.width));
    const bool has_norm = has(prefix + "nextn.shared_head_norm.weight");
    const std::string norm_name = has_norm ? prefix + "nextn.shared_head_norm.weight" : "output_norm.weight";
    BRAID_TRY(vector(head.head_norm, norm_name, config_.width));
    if (!has_norm) parameters_ -= config_.width;  // counted with the trunk
    head.embedding = &out_.embedding;
    if (has(prefix + "nextn.embed_tokens.weight")) {
      BRAID_TRY(matrix(head.own_embedding, prefix + "nextn.embed_tokens", config_.vocabulary, config_.width));
      head.own_embedding.is_table = true;
      head.own_embedding.is_product = false;
      head.embedding = &head.own_embedding;
    }
    head.head = &out_.head();
    if (has(prefix + "nextn.shared_head_head.weight")) {
      BRAID_TRY(matrix(head.own_head, prefix + "nextn.shared_head_head", config_.vocabulary, config_.width));
      head.head = &head.own_head;
    }
    BRAID_TRY(vector(head.layer.mixer_norm, prefix + "attn_norm.weight", config_.width));
    BRAID_TRY(attention(head.layer.attention, prefix));
    BRAID_TRY(vector(head.layer.ffn_norm, prefix + "post_attention_norm.weight", config_.width));
    // Some files lack the feed-forward part of this block: then the block goes without.
    const bool has_ffn = has(prefix + "ffn_down.weight") || has(prefix + "ffn_down_exps.weight");
    return has_ffn ? feed_forward(head.layer, prefix) : Status();
  }

 private:
  static uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

  Status fused_experts(MoeBlock& m, const std::string& prefix, int64_t routed) {
    Weight fused;
    BRAID_TRY(matrix(fused, prefix + "ffn_gate_up_exps", 2 * routed, config_.width, config_.experts));
    if (const GgufTensor* scale = file_.find_tensor(prefix + "ffn_up_exps.scale");
        scale != nullptr && fused.scales.empty()) {
      if (scale->elems() != 1 && scale->elems() != u(config_.experts))
        return wrong_shape(*scale, {u(config_.experts), 1, 1, 1});
      auto& values = out_.scales_.emplace_back(scale->elems());
      decode(*scale, values.data());
      fused.scales = values;
    }
    m.gate = rows_of(fused, 0, routed, " (gate)");
    m.up = rows_of(fused, routed, routed, " (up)");
    return {};
  }

  Result<const GgufTensor*> checked(const std::string& name, const Shape& shape) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr)
      return Error{ErrorKind::corrupt, fmt::format("{}: tensor {} is missing (expected, with shape {})",
                                                   file_.name(), name, shown(shape))};
    if (tensor->ne != shape) return wrong_shape(*tensor, shape);
    parameters_ += static_cast<int64_t>(tensor->elems());
    return tensor;
  }

  Error wrong_shape(const GgufTensor& tensor, const Shape& expected) const {
    return {ErrorKind::corrupt, fmt::format("{}: tensor {} has shape {}; expected {} from the metadata",
                                            file_.name(), tensor.name, shown(tensor.ne), shown(expected))};
  }

  static void decode(const GgufTensor& tensor, float* out) {
    const auto row = static_cast<int64_t>(tensor.ne[0]);
    for (uint64_t r = 0; r < tensor.rows(); ++r)
      decode_row(tensor.type, tensor.data.data() + r * tensor.bytes_per_row(),
                 out + static_cast<int64_t>(r) * row, row);
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  ModelWeights& out_;
  int64_t parameters_ = 0;
};

MoeWeights MoeBlock::view() const {
  MoeWeights w{&gate, &up, &down, nullptr, nullptr, nullptr, nullptr};
  if (shared_gate) {
    w.shared_gate = &shared_gate;
    w.shared_up = &shared_up;
    w.shared_down = &shared_down;
    w.shared_scale = shared_scale;
  }
  return w;
}

std::array<Weight*, 19> LayerWeights::matrices() {
  return {&attention.q, &attention.k,     &attention.v,   &attention.output, &delta.qkv,
          &delta.z,     &delta.alpha,     &delta.beta,    &delta.output,     &mlp.gate,
          &mlp.up,      &mlp.down,        &moe.router,    &moe.gate,         &moe.up,
          &moe.down,    &moe.shared_gate, &moe.shared_up, &moe.shared_down};
}

Status ModelWeights::describe(const GgufFile& file, ModelConfig& config, bool with_mtp) {
  file_ = &file;
  const GgufTensor* table = file.find_tensor("token_embd.weight");
  if (table != nullptr) {
    if (table->ne[1] > static_cast<uint64_t>(kMaxVocabulary))
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor token_embd.weight has {} rows; at most {} are possible",
                               file.name(), table->ne[1], kMaxVocabulary)};
    config.vocabulary = static_cast<int64_t>(table->ne[1]);
  }
  WeightReader reader(file, config, *this);
  BRAID_TRY(reader.matrix(embedding, "token_embd", config.vocabulary, config.width));
  if (!embedding.scales.empty())
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: tensor token_embd.scale: braid does not scale embeddings", file.name())};
  embedding.is_table = true;
  embedding.is_product = !reader.has("output.weight");
  if (!embedding.is_product) BRAID_TRY(reader.matrix(own_head, "output", config.vocabulary, config.width));
  BRAID_TRY(reader.vector(output_norm, "output_norm.weight", config.width));

  layers = std::vector<LayerWeights>(static_cast<size_t>(config.layers));
  for (int32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    LayerWeights& layer = layers[i];
    BRAID_TRY(reader.vector(layer.mixer_norm, prefix + "attn_norm.weight", config.width));
    if (config.kinds[i] == LayerKind::attention) {
      BRAID_TRY(reader.attention(layer.attention, prefix));
    } else {
      BRAID_TRY(reader.delta(layer.delta, prefix));
    }
    BRAID_TRY(reader.vector(layer.ffn_norm, prefix + "post_attention_norm.weight", config.width));
    BRAID_TRY(reader.feed_forward(layer, prefix));
  }
  trunk_parameters_ = reader.parameters();

  // Files exist that announce the head and do not hold it.
  const bool usable =
      config.mtp_layers > 0 && reader.has(fmt::format("blk.{}.nextn.eh_proj.weight", config.layers));
  if (with_mtp && usable) {
    mtp = std::vector<MtpWeights>(static_cast<size_t>(config.mtp_layers));
    for (int32_t i = 0; i < config.mtp_layers; ++i)
      BRAID_TRY(reader.mtp(mtp[i], fmt::format("blk.{}.", config.layers + i)));
  }
  mtp_parameters_ = reader.parameters() - trunk_parameters_;
  return {};
}

std::vector<Weight*> ModelWeights::all() {
  std::vector<Weight*> list = {&embedding, &own_head};
  const auto add_layer = [&](LayerWeights& l) {
    for (Weight* w : l.matrices()) list.push_back(w);
  };
  for (LayerWeights& layer : layers) add_layer(layer);
  for (MtpWeights& head : mtp) {
    for (Weight* w : {&head.eh_proj, &head.own_embedding, &head.own_head}) list.push_back(w);
    add_layer(head.layer);
  }
  std::erase_if(list, [](const Weight* w) { return !*w; });
  return list;
}

size_t ModelWeights::planned_bytes(const Device& device) {
  size_t bytes = vectors_.size() * sizeof(float);
  for (const Weight* w : all()) bytes += device.weight_bytes(*w);
  return bytes;
}

size_t ModelWeights::loaded_bytes() {
  size_t bytes = vector_memory_.size_bytes();
  for (const Weight* w : all()) bytes += w->device_bytes;
  return bytes;
}

Status ModelWeights::load(Device& device, const Progress& progress) {
  BRAID_CHECK(file_ != nullptr && vector_memory_.data() == nullptr);
  BRAID_ASSIGN(vector_memory_, device.allocate(vectors_.size() * sizeof(float), "small weights"));
  auto* values = static_cast<float*>(vector_memory_.data());
  device.to_device(values, vectors_.data(), vectors_.size() * sizeof(float));
  device.synchronize();
  for (const VectorUse& use : vector_uses_) *use.user = values + use.offset;
  vectors_ = {};
  vector_uses_ = {};

  const std::vector<Weight*> list = all();
  uint64_t total_bytes = 0;
  for (const Weight* w : list) total_bytes += file_bytes(*w);
  uint64_t done_bytes = 0;
  return device.load_weights(list, [&](const Weight& w) {
    done_bytes += file_bytes(w);
    release_pages(*file_, w);
    if (progress) progress(done_bytes, total_bytes);
  });
}

size_t ModelWeights::step_read_bytes(const ModelConfig& config) {
  size_t bytes = 0;
  const auto add = [&](const Weight& w) {
    if (w) bytes += w.experts == 1 ? w.device_bytes : w.device_bytes / config.experts * config.experts_used;
  };
  for (LayerWeights& layer : layers)
    for (const Weight* w : layer.matrices()) add(*w);
  add(head());
  return bytes;
}

}  // namespace braid
