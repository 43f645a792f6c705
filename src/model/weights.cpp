// weights.cpp -- see weights.h.
#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
  MoeWeights w;
  w.gate = &gate;
  w.up = &up;
  w.down = &down;
  w.first_expert = first_expert;
  w.all_experts = static_cast<int32_t>(router.n);
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

void ModelWeights::split(const ModelConfig& config, bool drafts_embed) {
  layer_stage_.clear();
  for (const LayerConfig& layer : config.layers) layer_stage_.push_back(layer.stage);
  const bool tied = has_head_ && !own_head;
  const Weight* const table = &embedding;
  const Weight* const copy = &embedding_copy_;
  for (const MtpWeights& head : mtp)
    drafts_embed = drafts_embed || head.embedding == table || head.embedding == copy;
  const bool copies = stages() > 1 && (tied || drafts_embed);
  if (tied) embedding.is_product = !copies;
  embedding_copy_ = copies ? embedding : Weight{};
  if (copies) {
    embedding_copy_.is_table = drafts_embed;
    embedding_copy_.is_product = tied;
  }
  for (MtpWeights& head : mtp)
    for (const Weight** user : {&head.embedding, &head.head})
      if (*user == table || *user == copy) *user = copies ? copy : table;
}

std::vector<Weight*> ModelWeights::matrices_of(int32_t stage) {
  std::vector<Weight*> list;
  const auto add_layer = [&](LayerWeights& l) {
    for (Weight* w : l.matrices()) list.push_back(w);
  };
  if (stage == 0) list.push_back(&embedding);
  for (size_t i = 0; i < layers.size(); ++i)
    if (stage_of(static_cast<int32_t>(i)) == stage) add_layer(layers[i]);
  if (stage == stage_of(kLastStage)) {
    list.push_back(&embedding_copy_);
    list.push_back(&own_head);
    for (MtpWeights& head : mtp) {
      for (Weight* w : {&head.eh_proj, &head.own_embedding, &head.own_head, &head.draft_rows})
        list.push_back(w);
      add_layer(head.layer);
    }
  }
  std::erase_if(list, [](const Weight* w) { return !*w; });
  return list;
}

ModelWeights::Range ModelWeights::vectors_of(int32_t stage) const {
  Range range{vectors_.size(), 0};
  for (size_t i = 0; i < vector_uses_.size(); ++i) {
    if (stage_of(vector_uses_[i].layer) != stage) continue;
    range.first = std::min(range.first, vector_uses_[i].offset);
    range.end = std::max(range.end, vector_uses_[i].offset + vector_uses_[i].elements);
  }
  range.first = std::min(range.first, range.end);
  return range;
}

std::span<float> ModelWeights::add_vector(const float*& user, size_t elements, int32_t layer) {
  constexpr size_t kAlignElements = 16;
  const size_t offset = (vectors_.size() + kAlignElements - 1) / kAlignElements * kAlignElements;
  vectors_.resize(offset + elements);
  vector_uses_.push_back({&user, offset, elements, layer});
  return std::span(vectors_).subspan(offset);
}

std::span<const float> ModelWeights::vector_values(const float* const& user) const {
  for (const VectorUse& use : vector_uses_)
    if (use.user == &user) return std::span(vectors_).subspan(use.offset, use.elements);
  return {};
}

size_t ModelWeights::planned_bytes(int32_t stage, const WeightBytes& bytes_of) {
  const Range vectors = vectors_of(stage);
  size_t bytes = (vectors.end - vectors.first) * sizeof(float);
  for (const Weight* w : matrices_of(stage)) bytes += bytes_of(*w);
  return bytes;
}

int32_t ModelWeights::set_expert_slots(int32_t stage, int32_t slots) {
  int32_t count = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    MoeBlock& moe = layers[i].moe;
    const bool here = stage == kAllStages || stage_of(static_cast<int32_t>(i)) == stage;
    if (!here || !moe.gate) continue;
    const int32_t own = slots < moe.gate.experts ? slots : 0;
    for (Weight* w : {&moe.gate, &moe.up, &moe.down}) w->slots = own;
    count += own > 0 ? 1 : 0;
  }
  return count;
}

size_t ModelWeights::expert_staging_bytes(int32_t stage, const Device& device) {
  return device.expert_staging_bytes(matrices_of(stage));
}

size_t ModelWeights::expert_copy_bytes(int32_t stage, const Device& device) {
  size_t bytes = 0;
  for (const Weight* w : matrices_of(stage)) bytes += device.expert_copy_bytes(*w);
  return bytes;
}

size_t ModelWeights::loaded_bytes(int32_t stage) {
  size_t bytes = vector_memory_[static_cast<size_t>(stage)].size_bytes();
  for (const Weight* w : matrices_of(stage)) bytes += w->device_bytes;
  return bytes;
}

Status ModelWeights::load(std::span<Device* const> devices, bool releases,
                          const Progress& progress) {
  BRAID_CHECK(file_ != nullptr && vector_memory_.empty());
  BRAID_CHECK(static_cast<int32_t>(devices.size()) == stages());
  uint64_t total_bytes = 0;
  for (int32_t stage = 0; stage < stages(); ++stage) {
    Device& device = *devices[static_cast<size_t>(stage)];
    const Range range = vectors_of(stage);
    const size_t bytes = (range.end - range.first) * sizeof(float);
    BRAID_ASSIGN(Buffer memory, device.allocate(bytes, "small weights"));
    auto* const values = static_cast<float*>(memory.data());
    device.to_device(values, vectors_.data() + range.first, bytes);
    device.synchronize();
    for (const VectorUse& use : vector_uses_)
      if (stage_of(use.layer) == stage) *use.user = values + (use.offset - range.first);
    vector_memory_.push_back(std::move(memory));
    for (const Weight* w : matrices_of(stage)) total_bytes += file_bytes(*w);
  }
  vectors_ = {};
  vector_uses_ = {};

  uint64_t done_bytes = 0;
  const auto done = [&](const Weight& w) {
    done_bytes += file_bytes(w);
    if (releases) release_pages(*file_, w);
    if (progress) progress(done_bytes, total_bytes);
  };
  for (int32_t stage = 0; stage < stages(); ++stage)
    BRAID_TRY(devices[static_cast<size_t>(stage)]->load_weights(matrices_of(stage), done));
  return {};
}

ModelWeights::LayerBytes ModelWeights::layer_bytes(size_t layer, const ModelConfig& config,
                                                   const WeightBytes& bytes_of) {
  const FeedForwardConfig& ffn = config.layers[layer].feed_forward;
  const MoeBlock& moe = layers[layer].moe;
  LayerBytes bytes;
  for (const Weight* w : layers[layer].matrices()) {
    if (!*w) continue;
    const size_t all = bytes_of(*w);
    const bool chosen = w == &moe.gate || w == &moe.up || w == &moe.down;
    const int32_t there = w->slots > 0 ? w->slots : ffn.experts;
    bytes.all += all;
    bytes.read +=
        chosen ? all / static_cast<size_t>(there) * static_cast<size_t>(ffn.experts_used) : all;
  }
  return bytes;
}

size_t ModelWeights::step_read_bytes(const ModelConfig& config) {
  size_t bytes = head().device_bytes;
  for (size_t i = 0; i < layers.size(); ++i)
    bytes += layer_bytes(i, config, [](const Weight& w) { return w.device_bytes; }).read;
  return bytes;
}

}  // namespace braid
