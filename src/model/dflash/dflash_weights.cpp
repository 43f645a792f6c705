// dflash_weights.cpp -- see dflash_weights.h.
#include "model/dflash/dflash_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gguf/block_layouts.h"

namespace braid {
namespace {

constexpr size_t kAlignElements = 16;
const std::vector<std::string> kFc = {"fc.weight", "dflash_fc.weight", "dflash.fc.weight"};

void decode(const DflashTensor& tensor, float* out) {
  const auto row = static_cast<int64_t>(tensor.ne[0]);
  const size_t row_bytes = tensor.ne[0] / block_elems(tensor.type) * block_bytes(tensor.type);
  for (uint64_t r = 0; r < tensor.ne[1]; ++r)
    decode_row(tensor.type, tensor.data.data() + r * row_bytes, out + static_cast<int64_t>(r) * row,
               row);
}

}  // namespace

// "{}" stands for the layer.
std::vector<std::string> DflashWeights::spelled(const Names& names, int layer) {
  std::vector<std::string> list;
  const auto add = [&](std::string_view name) {
    std::string text(name);
    if (const size_t at = text.find("{}"); at != std::string::npos)
      text.replace(at, 2, std::to_string(layer));
    list.push_back(std::move(text));
  };
  add(names.safetensors);
  for (const std::string_view name : names.gguf) add(name);
  return list;
}

Result<DflashTensor> DflashWeights::checked(const std::vector<std::string>& names,
                                            std::array<uint64_t, 3> ne) {
  const std::string expected = ne[2] == 1 ? fmt::format("{{{}, {}}}", ne[0], ne[1])
                                          : fmt::format("{{{}}}", fmt::join(ne, ", "));
  BRAID_ASSIGN(auto tensor, file_->find(names));
  if (!tensor)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} is missing (expected, with shape {})", file_->name(),
                             names[0], expected)};
  if (tensor->ne != std::array<uint64_t, 4>{ne[0], ne[1], ne[2], 1})
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} has shape {{{}}}; expected {}", file_->name(),
                             tensor->name, fmt::join(tensor->ne, ", "), expected)};
  if (tensor->type == GgmlType::I64)
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: tensor {} holds whole numbers", file_->name(), tensor->name)};
  parameters_ += static_cast<int64_t>(ne[0] * ne[1] * ne[2]);
  return *std::move(tensor);
}

Status DflashWeights::matrix(Weight& w, const std::vector<std::string>& names, int64_t n,
                             int64_t k) {
  BRAID_ASSIGN(const DflashTensor tensor,
               checked(names, {static_cast<uint64_t>(k), static_cast<uint64_t>(n), 1}));
  w.name = tensor.name;
  w.type = tensor.type;
  w.n = n;
  w.k = k;
  w.file = tensor.data;
  w.may_round = true;
  const std::string base = tensor.name.substr(0, tensor.name.rfind(".weight"));
  const std::vector<std::string> scales = {base + ".scale", base + ".weight.scale"};
  BRAID_ASSIGN(const auto scale, file_->find(scales));
  if (!scale) return {};
  if (scale->ne != std::array<uint64_t, 4>{1, 1, 1, 1})
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} is not one number", file_->name(), scale->name)};
  decode(*scale, &scales_.emplace_back());
  w.scales = {&scales_.back(), 1};
  return {};
}

// Rows for look-ups. The scale is returned, to be applied to results.
Status DflashWeights::table(Weight& w, float& scale, const std::vector<std::string>& names,
                            int64_t n, int64_t k) {
  BRAID_TRY(matrix(w, names, n, k));
  scale = w.scales.empty() ? 1.0f : w.scales[0];
  w.scales = {};
  w.is_table = true;
  w.is_product = false;
  return {};
}

float* DflashWeights::add_vector(const float*& user, int64_t count) {
  const size_t offset = (vectors_.size() + kAlignElements - 1) / kAlignElements * kAlignElements;
  vectors_.resize(offset + static_cast<size_t>(count));
  vector_uses_.push_back({&user, offset});
  return vectors_.data() + offset;
}

Status DflashWeights::vector(const float*& user, const std::vector<std::string>& names,
                             int64_t count) {
  BRAID_ASSIGN(const DflashTensor tensor, checked(names, {static_cast<uint64_t>(count), 1, 1}));
  decode(tensor, add_vector(user, count));
  return {};
}

Status DflashWeights::layer(LayerWeights& w, const DflashLayer& c, int index) {
  const int64_t width = config_->width;
  const int64_t ffn = config_->ffn_width;
  const auto names = [&](std::string_view safetensors, std::vector<std::string_view> gguf) {
    return spelled({safetensors, std::move(gguf)}, index);
  };
  const AttentionConfig& a = c.attention;
  BRAID_TRY(vector(w.mixer_norm,
                   names("layers.{}.input_layernorm.weight", {"blk.{}.attn_norm.weight"}), width));
  BRAID_TRY(matrix(w.attention.q,
                   names("layers.{}.self_attn.q_proj.weight", {"blk.{}.attn_q.weight"}),
                   a.query_width(), width));
  BRAID_TRY(matrix(w.attention.k,
                   names("layers.{}.self_attn.k_proj.weight", {"blk.{}.attn_k.weight"}),
                   a.kv_width(), width));
  BRAID_TRY(matrix(w.attention.v,
                   names("layers.{}.self_attn.v_proj.weight", {"blk.{}.attn_v.weight"}),
                   a.kv_width(), width));
  BRAID_TRY(matrix(w.attention.output,
                   names("layers.{}.self_attn.o_proj.weight", {"blk.{}.attn_output.weight"}), width,
                   a.query_width()));
  BRAID_TRY(vector(w.attention.norms.q_norm,
                   names("layers.{}.self_attn.q_norm.weight", {"blk.{}.attn_q_norm.weight"}),
                   a.head_dim));
  BRAID_TRY(vector(w.attention.norms.k_norm,
                   names("layers.{}.self_attn.k_norm.weight", {"blk.{}.attn_k_norm.weight"}),
                   a.head_dim));
  w.attention.norms.eps = config_->eps;
  BRAID_TRY(vector(w.ffn_norm,
                   names("layers.{}.post_attention_layernorm.weight",
                         {"blk.{}.ffn_norm.weight", "blk.{}.post_attention_norm.weight"}),
                   width));
  BRAID_TRY(matrix(w.mlp.gate, names("layers.{}.mlp.gate_proj.weight", {"blk.{}.ffn_gate.weight"}),
                   ffn, width));
  BRAID_TRY(matrix(w.mlp.up, names("layers.{}.mlp.up_proj.weight", {"blk.{}.ffn_up.weight"}), ffn,
                   width));
  return matrix(w.mlp.down, names("layers.{}.mlp.down_proj.weight", {"blk.{}.ffn_down.weight"}),
                width, ffn);
}

Result<uint64_t> DflashWeights::fc_columns(DflashFile& file) {
  BRAID_ASSIGN(const auto tensor, file.find(kFc));
  if (!tensor)
    return Error{ErrorKind::corrupt, fmt::format("{}: tensor {} is missing", file.name(), kFc[0])};
  return tensor->ne[0];
}

Status DflashWeights::describe(DflashFile& file, DflashConfig& config, int64_t vocabulary) {
  file_ = &file;
  config_ = &config;
  BRAID_TRY(matrix(fc, kFc, config.width, config.features()));
  BRAID_TRY(vector(context_norm,
                   spelled({"hidden_norm.weight",
                            {"enc.output_norm.weight", "dflash_hidden_norm.weight",
                             "dflash.hidden_norm.weight"}}),
                   config.width));
  BRAID_TRY(vector(output_norm,
                   spelled({"norm.weight", {"output_norm.weight", "final_norm.weight"}}),
                   config.width));
  layers = std::vector<LayerWeights>(config.layers.size());
  for (size_t i = 0; i < layers.size(); ++i)
    BRAID_TRY(layer(layers[i], config.layers[i], static_cast<int>(i)));
  BRAID_TRY(describe_convolutions());
  BRAID_TRY(describe_head(vocabulary));
  BRAID_TRY(describe_pairs(vocabulary));
  if (const std::string left = file.left_over(); !left.empty())
    return Error{
        ErrorKind::unsupported,
        fmt::format(
            "{}: tensor {} belongs to another kind of drafter; braid computes DFlash, DFlash2 "
            "and DSpark with a vanilla Markov head",
            file.name(), left)};
  file_ = nullptr;
  config_ = nullptr;
  return {};
}

std::vector<Weight*> DflashWeights::matrices() {
  std::vector<Weight*> list = {&fc,        &own_embedding, &own_head,         &predecessor,
                               &successor, &gate,          &hidden_confidence};
  for (Convolutions& c : convolutions) list.insert(list.end(), {&c.attention_mix, &c.ffn_mix});
  for (LayerWeights& l : layers)
    for (Weight* w : l.matrices()) list.push_back(w);
  std::erase_if(list, [](const Weight* w) { return !*w; });
  return list;
}

size_t DflashWeights::planned_bytes(const ModelWeights::WeightBytes& bytes_of) {
  size_t bytes = vectors_.size() * sizeof(float) + token_of_.size() * sizeof(int32_t);
  for (const Weight* w : matrices()) bytes += bytes_of(*w);
  return bytes;
}

size_t DflashWeights::loaded_bytes() {
  size_t bytes = vector_memory_.size_bytes() + token_memory_.size_bytes();
  for (const Weight* w : matrices()) bytes += w->device_bytes;
  return bytes;
}

Status DflashWeights::load(Device& device) {
  BRAID_CHECK(vector_memory_.data() == nullptr && !vectors_.empty());
  const size_t bytes = vectors_.size() * sizeof(float);
  BRAID_ASSIGN(vector_memory_, device.allocate(bytes, "small weights of the drafter"));
  auto* values = static_cast<float*>(vector_memory_.data());
  device.to_device(values, vectors_.data(), bytes);
  if (!token_of_.empty()) {
    const size_t token_bytes = token_of_.size() * sizeof(int32_t);
    BRAID_ASSIGN(token_memory_, device.allocate(token_bytes, "tokens of the drafter"));
    device.to_device(token_memory_.data(), token_of_.data(), token_bytes);
  }
  device.synchronize();
  for (const VectorUse& use : vector_uses_) *use.user = values + use.offset;
  vectors_ = {};
  vector_uses_ = {};
  return device.load_weights(matrices(), [](const Weight&) {});
}

}  // namespace braid
