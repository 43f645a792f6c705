// dflash.cpp -- see dflash.h.
#include "model/dflash/dflash.h"

#include <algorithm>
#include <array>

#include "model/placer.h"

namespace braid {

Result<std::unique_ptr<Dflash>> Dflash::open(const std::string& path, const ModelConfig& target) {
  BRAID_ASSIGN(DflashFile file, DflashFile::open(path));
  return open(std::move(file), target);
}

Result<std::unique_ptr<Dflash>> Dflash::open(DflashFile file, const ModelConfig& target) {
  auto drafter = std::make_unique<Dflash>(std::move(file));
  DflashFile& own = drafter->file_;
  drafter->config_ = own.config();
  BRAID_ASSIGN(const uint64_t columns, DflashWeights::fc_columns(own));
  BRAID_TRY(fit(drafter->config_, target, columns, own.name()));
  BRAID_TRY(drafter->weights_.describe(own, drafter->config_, target.vocabulary));
  return drafter;
}

std::vector<AttentionConfig> Dflash::kv_layers() const {
  std::vector<AttentionConfig> layers;
  for (const DflashLayer& l : config_.layers) layers.emplace_back(l.attention).window = 0;
  return layers;
}

size_t Dflash::place(ContextLane& lane, std::byte* base, int32_t tokens, DType activations) const {
  const int64_t kv_width = config_.layers[0].attention.kv_width();
  Placer placer(base);
  lane.features = placer.take(tokens, config_.features(), activations);
  lane.fused = placer.take(tokens, config_.width);
  lane.normed = placer.take(tokens, config_.width, activations);
  lane.rope = placer.take(tokens, config_.rope.dims);
  lane.k = placer.take(tokens, kv_width, activations);
  lane.v = placer.take(tokens, kv_width, activations);
  return placer.offset();
}

size_t Dflash::place(BlockScratch& scratch, std::byte* base, int32_t rows, DType activations) const {
  const AttentionConfig& a = config_.layers[0].attention;
  Placer placer(base);
  scratch.residual = placer.take(rows, config_.width);
  scratch.normed = placer.take(rows, config_.width, activations);
  scratch.rope = placer.take(rows, config_.rope.dims);
  scratch.attention.qg = placer.take(rows, a.query_width(), activations);
  scratch.attention.k = placer.take(rows, a.kv_width(), activations);
  scratch.attention.v = placer.take(rows, a.kv_width(), activations);
  scratch.attention.q = placer.take(rows, a.query_width(), activations);
  scratch.attention.attended = placer.take(rows, a.query_width(), activations);
  scratch.mlp.hidden = placer.take(rows, config_.ffn_width, activations);
  scratch.gathered = placer.take(rows, config_.width);
  scratch.hidden = placer.take(rows, config_.width, activations);
  return placer.offset();
}

size_t Dflash::activation_bytes(const Sizes& sizes, DType activations) const {
  ContextLane lane;
  BlockScratch scratch;
  return place(lane, nullptr, sizes.step.tokens, activations) +
         place(lane, nullptr, sizes.step.interleaved_tokens, activations) +
         place(scratch, nullptr, sizes.block_rows, activations);
}

void Dflash::add_needs(Device::WorkspaceNeeds& needs, const Sizes& sizes) const {
  const AttentionConfig& a = config_.layers[0].attention;
  needs.max_width =
      std::max({needs.max_width, config_.features(), config_.ffn_width, a.query_width(), config_.width});
  needs.max_tokens = std::max(needs.max_tokens, sizes.block_rows);
  needs.max_heads = std::max(needs.max_heads, a.heads);
  needs.head_dim = std::max(needs.head_dim, a.head_dim);
}

Status Dflash::load(Device& device, const ModelWeights& target, const Sizes& sizes) {
  BRAID_CHECK(ops_ == nullptr);
  BRAID_TRY(weights_.load(device));
  embedding_ = weights_.own_embedding ? &weights_.own_embedding : &target.embedding;
  head_ = weights_.own_head ? &weights_.own_head : &target.head();
  const DType activations = device.activation_type();
  BRAID_ASSIGN(activations_, device.allocate(activation_bytes(sizes, activations), "drafter activations"));
  auto* base = static_cast<std::byte*>(activations_.data());
  base += place(whole_, base, sizes.step.tokens, activations);
  base += place(interleaved_, base, sizes.step.interleaved_tokens, activations);
  place(block_, base, sizes.block_rows, activations);
  ops_ = &device.ops();
  return {};
}

std::span<const KvLayer> Dflash::own(const SequenceMemory& memory) const {
  BRAID_CHECK(memory.kv.size() > config_.layers.size());
  return memory.kv.last(config_.layers.size());
}

void Dflash::layer_output(int32_t layer, Tensor residual, bool interleaved) {
  const ContextLane& lane = interleaved ? interleaved_ : whole_;
  for (size_t i = 0; i < config_.taps.size(); ++i) {
    if (config_.taps[i] != layer) continue;
    Tensor columns = lane.features.top(residual.rows);
    columns.data = static_cast<std::byte*>(columns.data) +
                   i * static_cast<size_t>(config_.width) * size_bytes(columns.type);
    columns.cols = config_.width;
    ops_->gather_rows(columns, residual, nullptr, static_cast<int32_t>(residual.rows));
  }
}

void Dflash::step_output(const Batch& batch, const SequenceMemory& memory, bool interleaved) {
  const ContextLane& lane = interleaved ? interleaved_ : whole_;
  const int32_t tokens = batch.tokens;
  if (tokens == 0) return;
  const Tensor fused = lane.fused.top(tokens);
  const Tensor context = lane.normed.top(tokens);
  const Tensor rope = lane.rope.top(tokens);
  const Tensor k = lane.k.top(tokens);
  const Tensor v = lane.v.top(tokens);
  const LinearPart fuse[] = {{&weights_.fc, nullptr, fused}};
  ops_->linear(fuse, lane.features.top(tokens));
  ops_->add_norm(context, fused, {}, weights_.context_norm, config_.eps);
  ops_->rope_table(rope, config_.rope, batch);
  const std::span<const KvLayer> kv = own(memory);
  for (size_t i = 0; i < kv.size(); ++i) {
    const AttentionBlock& w = weights_.layers[i].attention;
    const std::array<LinearPart, 2> in = {{{&w.k, nullptr, k}, {&w.v, nullptr, v}}};
    ops_->linear(in, context);
    AttentionParams params = config_.layers[i].attention.params();
    params.heads = 0;  // nobody asks yet
    ops_->qk_norm_rope_store({}, {}, k, v, rope, w.norms, params, kv[i], batch.of_group(kv[i].group));
  }
}

void Dflash::forward(const Batch& blocks, const int32_t* last_position, const SequenceMemory& memory) {
  const int32_t rows = blocks.tokens;
  const Tensor x = block_.residual.top(rows);
  const Tensor h = block_.normed.top(rows);
  const Tensor rope = block_.rope.top(rows);
  ops_->embed(x, *embedding_, blocks);
  ops_->rope_table(rope, config_.rope, blocks);
  const std::span<const KvLayer> kv = own(memory);
  for (size_t i = 0; i < kv.size(); ++i) {
    const DflashLayer& layer = config_.layers[i];
    const LayerWeights& w = weights_.layers[i];
    const AttentionParams params = layer.attention.params();
    const Batch batch = blocks.of_group(kv[i].group);
    attention_in(*ops_, x, h, {w.mixer_norm, config_.eps}, rope, w.attention, params, kv[i], block_.attention,
                 batch, layer.causal);
    if (!layer.causal) {
      Batch together = batch;
      together.position = last_position;
      attention_rows(*ops_, params, kv[i], block_.attention, 0, together);
    }
    attention_out(*ops_, x, w.attention, block_.attention);
    mlp_block(*ops_, x, h, {w.ffn_norm, config_.eps}, w.mlp, block_.mlp);
  }
  outputs_ = blocks.outputs;
  const Tensor kept = block_.gathered.top(outputs_);
  ops_->gather_rows(kept, x, blocks.output_row, outputs_);
  ops_->add_norm(block_.hidden.top(outputs_), kept, {}, weights_.output_norm, config_.eps);
}

void Dflash::logits(Tensor logits, int32_t first, int32_t count) {
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= outputs_);
  ops_->logits(logits.top(count), *head_, block_.hidden.middle(first, count));
}

}  // namespace braid
