// weights.cpp -- see weights.h.
#include "model/weights.h"

#include <algorithm>
#include <cstring>

namespace braid {
namespace {

uint64_t file_bytes(const Weight& w) {
  return static_cast<uint64_t>(w.experts) * static_cast<uint64_t>(w.n) * w.file_row_bytes();
}

void release_pages(const GgufFile& file, const Weight& w) {
  for (const MappedFile& mapping : file.mappings()) {
    const auto bytes = mapping.bytes();
    if (w.file.data() >= bytes.data() && w.file.data() < bytes.data() + bytes.size())
      mapping.release(w.file);
  }
}

}  // namespace

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

std::array<Weight*, 20> LayerWeights::matrices() {
  return {&attention.q, &attention.k, &attention.v,     &attention.gate, &attention.output,
          &delta.qkv,   &delta.z,     &delta.alpha,     &delta.beta,     &delta.output,
          &mlp.gate,    &mlp.up,      &mlp.down,        &moe.router,     &moe.gate,
          &moe.up,      &moe.down,    &moe.shared_gate, &moe.shared_up,  &moe.shared_down};
}

std::vector<Weight*> ModelWeights::all() {
  std::vector<Weight*> list = {&embedding, &own_head};
  const auto add_layer = [&](LayerWeights& l) {
    for (Weight* w : l.matrices()) list.push_back(w);
  };
  for (LayerWeights& layer : layers) add_layer(layer);
  for (MtpWeights& head : mtp) {
    for (Weight* w : {&head.eh_proj, &head.own_embedding, &head.own_head, &head.draft_rows})
      list.push_back(w);
    add_layer(head.layer);
  }
  std::erase_if(list, [](const Weight* w) { return !*w; });
  return list;
}

std::span<float> ModelWeights::add_vector(const float*& user, size_t elements) {
  constexpr size_t kAlignElements = 16;
  const size_t offset = (vectors_.size() + kAlignElements - 1) / kAlignElements * kAlignElements;
  vectors_.resize(offset + elements);
  vector_uses_.push_back({&user, offset, elements});
  return std::span(vectors_).subspan(offset);
}

std::span<const float> ModelWeights::vector_values(const float* const& user) const {
  for (const VectorUse& use : vector_uses_)
    if (use.user == &user) return std::span(vectors_).subspan(use.offset, use.elements);
  return {};
}

size_t ModelWeights::planned_bytes(const WeightBytes& bytes_of) {
  size_t bytes = vectors_.size() * sizeof(float);
  for (const Weight* w : all()) bytes += bytes_of(*w);
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
  size_t bytes = head().device_bytes;
  for (size_t i = 0; i < layers.size(); ++i) {
    const FeedForwardConfig& ffn = config.layers[i].feed_forward;
    for (const Weight* w : layers[i].matrices())
      if (*w)
        bytes +=
            w->experts == 1 ? w->device_bytes : w->device_bytes / ffn.experts * ffn.experts_used;
  }
  return bytes;
}

}  // namespace braid
