// dflash.cpp -- see dflash.h.
#include "model/dflash/dflash.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/placer.h"
#include "ops/devices.h"

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

size_t Dflash::place(ContextLane& lane, std::byte* base, int32_t tokens, DType activations,
                     bool has_early_taps) const {
  const int64_t kv_width = config_.layers[0].attention.kv_width();
  Placer placer(base);
  lane.features = placer.take(tokens, config_.features(), activations);
  if (has_early_taps) lane.arrived = placer.take(tokens, config_.width);
  lane.fused = placer.take(tokens, config_.width);
  lane.normed = placer.take(tokens, config_.width, activations);
  lane.rope = placer.take(tokens, config_.rope.dims);
  lane.k = placer.take(tokens, kv_width, activations);
  lane.v = placer.take(tokens, kv_width, activations);
  return placer.offset();
}

size_t Dflash::place(BlockScratch& scratch, std::byte* base, int32_t rows,
                     DType activations) const {
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
  if (config_.conv_taps > 0) {
    scratch.mixed = placer.take(rows, config_.width, activations);
    scratch.given = placer.take(rows, config_.width);
    scratch.mix = placer.take(rows, 2 * config_.conv_taps * (config_.width / config_.conv_group));
  }
  scratch.gathered = placer.take(rows, config_.width);
  scratch.hidden = placer.take(rows, config_.width, activations);
  if (weights_.gate) scratch.gate = placer.take(rows, config_.pair_rank);
  if (has_confidence()) scratch.confidence = placer.take(rows, 1);
  return placer.offset();
}

// taps count layers' outputs from 0.
int32_t Dflash::stage_of_tap(size_t tap, const ModelConfig& target) const {
  return target.layers[static_cast<size_t>(config_.taps[tap])].stage;
}

bool Dflash::has_early_taps(const ModelConfig& target) const {
  for (size_t i = 0; i < config_.taps.size(); ++i)
    if (stage_of_tap(i, target) != target.last_stage()) return true;
  return false;
}

size_t Dflash::activation_bytes(int32_t stage, const ModelConfig& target, const Sizes& sizes,
                                DType activations) const {
  const auto tokens = static_cast<size_t>(sizes.step.tokens + sizes.step.interleaved_tokens);
  if (stage != target.last_stage()) {
    size_t bytes = 0;
    for (size_t i = 0; i < config_.taps.size(); ++i)
      if (stage_of_tap(i, target) == stage)
        bytes += tokens * static_cast<size_t>(config_.width) * sizeof(float);
    return bytes;
  }
  ContextLane lane;
  BlockScratch scratch;
  const bool early = has_early_taps(target);
  return place(lane, nullptr, sizes.step.tokens, activations, early) +
         place(lane, nullptr, sizes.step.interleaved_tokens, activations, early) +
         place(scratch, nullptr, sizes.block_rows, activations);
}

void Dflash::add_needs(Device::WorkspaceNeeds& needs, const Sizes& sizes) const {
  const AttentionConfig& a = config_.layers[0].attention;
  needs.max_width = std::max(
      {needs.max_width, config_.features(), config_.ffn_width, a.query_width(), config_.width});
  needs.max_tokens = std::max(needs.max_tokens, sizes.block_rows);
  needs.max_heads = std::max(needs.max_heads, a.heads);
  needs.head_dim = std::max(needs.head_dim, a.head_dim);
}

Status Dflash::load(std::span<Device* const> stages, const ModelConfig& target,
                    const ModelWeights& weights, const Sizes& sizes) {
  BRAID_CHECK(ops_ == nullptr && static_cast<int32_t>(stages.size()) == target.stages);
  Device& device = *stages.back();
  BRAID_TRY(weights_.load(device));
  embedding_ = weights_.own_embedding ? &weights_.own_embedding : &weights.last_embedding();
  head_ = weights_.own_head ? &weights_.own_head : &weights.head();
  const DType activations = device.activation_type();
  BRAID_ASSIGN(activations_,
               device.allocate(activation_bytes(target.last_stage(), target, sizes, activations),
                               "drafter activations"));
  auto* base = static_cast<std::byte*>(activations_.data());
  const bool early = has_early_taps(target);
  base += place(whole_, base, sizes.step.tokens, activations, early);
  base += place(interleaved_, base, sizes.step.interleaved_tokens, activations, early);
  place(block_, base, sizes.block_rows, activations);
  ops_ = &device.ops();
  device_ = &device;
  return make_early_taps(stages, target, sizes.step);
}

Status Dflash::make_early_taps(std::span<Device* const> stages, const ModelConfig& target,
                               const StepSizes& sizes) {
  for (size_t i = 0; i < config_.taps.size(); ++i) {
    EarlyTap tap;
    tap.tap = i;
    tap.stage = stage_of_tap(i, target);
    if (tap.stage == target.last_stage()) continue;
    tap.device = stages[static_cast<size_t>(tap.stage)];
    const int64_t tokens = sizes.tokens + sizes.interleaved_tokens;
    BRAID_ASSIGN(Buffer memory,
                 tap.device->allocate(static_cast<size_t>(tokens * config_.width) * sizeof(float),
                                      "drafter inputs"));
    const Tensor all{memory.data(), DType::f32, tokens, config_.width, config_.width};
    tap.whole = all.top(sizes.tokens);
    tap.interleaved = all.middle(sizes.tokens, sizes.interleaved_tokens);
    early_memory_.push_back(std::move(memory));
    early_taps_.push_back(tap);
  }
  return {};
}

std::span<const KvLayer> Dflash::own(const SequenceMemory& memory) const {
  BRAID_CHECK(memory.kv.size() > config_.layers.size());
  return memory.kv.last(config_.layers.size());
}

void Dflash::layer_output(int32_t layer, Tensor residual, bool interleaved) {
  for (size_t i = 0; i < config_.taps.size(); ++i) {
    if (config_.taps[i] != layer) continue;
    const auto early = std::find_if(early_taps_.begin(), early_taps_.end(),
                                    [&](const EarlyTap& tap) { return tap.tap == i; });
    if (early == early_taps_.end()) {
      take(interleaved ? interleaved_ : whole_, i, residual);
    } else {
      early->device->ops().gather_rows(early->rows(interleaved).top(residual.rows), residual,
                                       nullptr, static_cast<int32_t>(residual.rows));
    }
  }
}

void Dflash::take(const ContextLane& lane, size_t tap, Tensor residual) {
  Tensor columns = lane.features.top(residual.rows);
  columns.data = static_cast<std::byte*>(columns.data) +
                 tap * static_cast<size_t>(config_.width) * size_bytes(columns.type);
  columns.cols = config_.width;
  ops_->gather_rows(columns, residual, nullptr, static_cast<int32_t>(residual.rows));
}

void Dflash::hand_off(int32_t stage, int32_t rows, bool interleaved) {
  const ContextLane& lane = interleaved ? interleaved_ : whole_;
  for (EarlyTap& tap : early_taps_) {
    if (tap.stage != stage) continue;
    const Tensor arrived = lane.arrived.top(rows);
    move_rows(*device_, arrived, *tap.device, tap.rows(interleaved).top(rows));
    take(lane, tap.tap, arrived);
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
    params.heads = 0;  // stores without attending
    ops_->qk_norm_rope_store({}, {}, k, v, rope, w.norms, params, kv[i],
                             batch.of_group(kv[i].group));
  }
}

// Rows of a non-causal block see each other, which needs a separate op after all keys are stored.
void Dflash::attend(const DflashLayer& layer, const KvLayer& kv, const Batch& batch,
                    const int32_t* last_position) {
  if (layer.causal) return;
  Batch together = batch;
  together.position = last_position;
  attention_rows(*ops_, layer.attention.params(), kv, block_.attention, 0, together);
}

void Dflash::run_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position,
                       const KvLayer& kv) {
  const DflashLayer& layer = config_.layers[i];
  const LayerWeights& w = weights_.layers[i];
  const Tensor h = block_.normed.top(x.rows);
  const Batch batch = blocks.of_group(kv.group);
  attention_in(*ops_, x, h, {w.mixer_norm, config_.eps}, block_.rope.top(x.rows), w.attention,
               layer.attention.params(), kv, block_.attention, batch, layer.causal);
  attend(layer, kv, batch, last_position);
  attention_out(*ops_, {x}, w.attention, block_.attention);
  mlp_block(*ops_, x, h, {w.ffn_norm, config_.eps}, w.mlp, block_.mlp, {x});
}

// With convolutions: x += conv(f(conv(norm(x)))) for each sublayer f, with taps from norm(x).
void Dflash::run_mixed_layer(size_t i, Tensor x, const Batch& blocks, const int32_t* last_position,
                             const KvLayer& kv) {
  const DflashLayer& layer = config_.layers[i];
  const LayerWeights& w = weights_.layers[i];
  const DflashWeights::Convolutions& c = weights_.convolutions[i];
  const Tensor h = block_.normed.top(x.rows), mixed = block_.mixed.top(x.rows);
  const Tensor given = block_.given.top(x.rows), mix = block_.mix.top(x.rows);
  const int64_t side = mix.cols / 2;
  const auto convolve = [&](Tensor y, Tensor from, const float* base, int which, Tail tail) {
    const ShortConv conv = {base + which * config_.conv_taps * config_.width, config_.conv_taps,
                            config_.conv_group};
    ops_->short_conv(y, from, mix.columns(which * side, side), conv, tail, blocks);
  };
  const AttentionScratch& a = block_.attention;
  const Tensor q = a.q.top(x.rows), qg = a.qg.top(x.rows), k = a.k.top(x.rows), v = a.v.top(x.rows);
  const Tensor rope = block_.rope.top(x.rows);
  const AttentionParams params = layer.attention.params();
  const Batch batch = blocks.of_group(kv.group);

  const LinearPart taps[] = {{&c.attention_mix, nullptr, mix}};
  ops_->norm_linear(taps, h, x, w.mixer_norm, config_.eps);
  convolve(mixed, h, c.attention_base, 0, Tail::store);
  const LinearPart in[] = {
      {&w.attention.q, nullptr, qg}, {&w.attention.k, nullptr, k}, {&w.attention.v, nullptr, v}};
  ops_->linear(in, mixed);
  const Tensor attended = a.attended.top(x.rows);
  if (layer.causal) {
    ops_->store_attend(attended, q, qg, k, v, {}, rope, w.attention.norms, params, kv, batch);
  } else {
    ops_->qk_norm_rope_store(q, qg, k, v, rope, w.attention.norms, params, kv, batch);
  }
  attend(layer, kv, batch, last_position);
  const LinearPart out[] = {{&w.attention.output, nullptr, given}};
  ops_->linear(out, attended);
  convolve(x, given, c.attention_base, 1, Tail::add);

  const LinearPart ffn_taps[] = {{&c.ffn_mix, nullptr, mix}};
  ops_->norm_linear(ffn_taps, h, x, w.ffn_norm, config_.eps);
  convolve(mixed, h, c.ffn_base, 0, Tail::store);
  const Tensor hidden = block_.mlp.hidden.top(x.rows);
  const LinearPart gated[] = {{&w.mlp.gate, &w.mlp.up, hidden, Tail::silu_mul}};
  ops_->linear(gated, mixed);
  const LinearPart down[] = {{&w.mlp.down, nullptr, given}};
  ops_->linear(down, hidden);
  convolve(x, given, c.ffn_base, 1, Tail::add);
}

void Dflash::forward(const Batch& blocks, const int32_t* last_position,
                     const SequenceMemory& memory) {
  const Tensor x = block_.residual.top(blocks.tokens);
  ops_->embed(x, *embedding_, blocks);
  ops_->rope_table(block_.rope.top(blocks.tokens), config_.rope, blocks);
  const std::span<const KvLayer> kv = own(memory);
  for (size_t i = 0; i < kv.size(); ++i) {
    if (weights_.convolutions.empty()) {
      run_layer(i, x, blocks, last_position, kv[i]);
    } else {
      run_mixed_layer(i, x, blocks, last_position, kv[i]);
    }
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

void Dflash::guess(const Guesses& guesses, Tensor logits, const Batch& blocks) {
  BRAID_CHECK(blocks.outputs == outputs_);
  ops_->top_k(guesses.values, guesses.ids, guesses.log_sums, logits.top(outputs_));
  if (!has_pairs()) return;
  const Tensor hidden = block_.hidden.top(outputs_);
  PairInputs in = {guesses.values, guesses.ids, {}, {}};
  LinearPart parts[2];
  size_t count = 0;
  if (weights_.gate) {
    in.gate = block_.gate.top(outputs_);
    parts[count++] = {&weights_.gate, nullptr, in.gate};
  }
  if (has_confidence()) {
    in.confidence = block_.confidence.top(outputs_);
    parts[count++] = {&weights_.hidden_confidence, nullptr, in.confidence};
  }
  if (count > 0) ops_->linear(std::span(parts).first(count), hidden);
  const PairWeights w = {&weights_.predecessor, &weights_.successor, weights_.device_token_of(),
                         weights_.pair_scale, weights_.pair_confidence};
  ops_->pair_scores(guesses.scores, guesses.confidence, in, w, blocks);
}

float Dflash::acceptance(float confidence) const {
  return 1 / (1 + std::exp(-(confidence + weights_.confidence_bias)));
}

}  // namespace braid
