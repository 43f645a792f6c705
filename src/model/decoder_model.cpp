// decoder_model.cpp -- see decoder_model.h. run_layers() is the layer loop; the rest is sizes.
#include "model/decoder_model.h"

#include <algorithm>
#include <chrono>

#include "model/weight_reader.h"
#include "ops/devices.h"

namespace braid {

Result<std::unique_ptr<Model>> DecoderModel::open(const Architecture& architecture,
                                                  const GgufFile& file,
                                                  const ModelOptions& options) {
  auto model = std::make_unique<DecoderModel>(file);
  BRAID_ASSIGN(model->config_, architecture.read_config(file));
  BRAID_TRY(architecture.describe_weights(file, model->config_, options.with_mtp, model->weights_));
  if (model->weights_.mtp.empty()) model->config_.mtp.clear();
  model->choose_draft_vocabulary(options.draft_vocabulary);
  if (options.attention_window > 0) model->config_.limit_windows(options.attention_window);
  return std::unique_ptr<Model>(std::move(model));
}

// Places from `start` on; returns the end.
size_t DecoderModel::place_layer(LayerScratch& layer, const LayerConfig& c, const Placer& start,
                                 int64_t t, DType act) {
  Placer mixer = start;
  if (c.kind == LayerKind::attention) {
    const AttentionConfig& a = c.attention;
    const bool head_gates = a.gate.layout == AttentionGate::Layout::head;
    layer.attention.qg = mixer.take(t, a.query_rows(), act);
    layer.attention.k = mixer.take(t, a.kv_width(), act);
    layer.attention.v = mixer.take(t, a.kv_width(), act);
    if (a.gate.separate())
      layer.attention.gates = mixer.take(t, a.gate_rows(), head_gates ? DType::f32 : act);
    layer.attention.q = mixer.take(t, a.query_width(), act);
    layer.attention.attended = mixer.take(t, a.query_width(), act);
  } else {
    const DeltaShape& d = c.delta;
    layer.delta = {mixer.take(t, d.channels(), act), mixer.take(t, d.value_width(), act),
                   mixer.take(t, d.value_heads), mixer.take(t, d.value_heads),
                   mixer.take(t, d.value_width(), act)};
  }
  Placer feed_forward = start;
  const FeedForwardConfig& f = c.feed_forward;
  if (f.is_moe()) {
    layer.moe = {feed_forward.take(t, f.experts), feed_forward.take(t, f.experts_used, DType::i32),
                 feed_forward.take(t, f.experts_used)};
  } else {
    layer.mlp = {feed_forward.take(t, f.width, act)};
  }
  return std::max(mixer.offset(), feed_forward.offset());
}

size_t DecoderModel::place(int32_t stage, int32_t rank, Lane& lane, std::byte* base,
                           int32_t max_tokens, int32_t max_outputs, int32_t slots,
                           DType activations) const {
  const DType act = activations;
  const int64_t t = max_tokens;
  const ModelConfig& config = config_of(rank);
  Placer common(base, 0);
  lane.residual = common.take(t, config.width);
  lane.normed = common.take(t, config.width, act);
  for (const RopeParams& rope : config.ropes) lane.ropes.push_back(common.take(t, rope.dims));
  if (ranks() > 1) {
    lane.partial = common.take(t, config.width);
    lane.zeros = common.take(1, config.width);
    lane.zeros.rows = t;
    lane.zeros.stride = 0;
  }
  const bool last = stage == config.last_stage() && rank == 0;
  if (last) {
    lane.gathered = common.take(max_outputs, config.width);
    for (int32_t slot = 0; slot < slots; ++slot)
      lane.hidden.push_back(common.take(max_outputs, config.width, act));
  }

  size_t end = common.offset();
  for (const LayerConfig& c : config.layers) {
    LayerScratch& layer = lane.layers.emplace_back();
    if (c.stage == stage) end = std::max(end, place_layer(layer, c, common, t, act));
  }
  if (last && config.drafts()) {
    Placer head = common;
    lane.draft.before = head.take(t, config.width);
    lane.draft.joined = head.take(t, 2 * config.width, act);
    end = std::max(end, place_layer(lane.draft.layer, config.mtp[0], head, t, act));
  }
  return end;
}

size_t DecoderModel::lane_bytes(int32_t stage, int32_t rank, int32_t max_tokens,
                                int32_t max_outputs, int32_t slots, DType activations) const {
  Lane counted;
  return place(stage, rank, counted, nullptr, max_tokens, max_outputs, slots, activations);
}

size_t DecoderModel::activation_bytes(int32_t stage, int32_t rank, const StepSizes& sizes,
                                      DType activations) const {
  return lane_bytes(stage, rank, sizes.tokens, sizes.outputs, sizes.slots, activations) +
         lane_bytes(stage, rank, sizes.interleaved_tokens, sizes.interleaved_tokens, 1,
                    activations);
}

Device::WorkspaceNeeds DecoderModel::workspace_needs(int32_t max_tokens) const {
  Device::WorkspaceNeeds needs;
  needs.max_tokens = max_tokens;
  needs.max_width = config_.width * (config_.drafts() ? 2 : 1);
  needs.delta = config_.largest_delta();
  needs.model_width = config_.width;
  std::vector<LayerConfig> layers = config_.layers;
  layers.insert(layers.end(), config_.mtp.begin(), config_.mtp.end());
  for (const LayerConfig& c : layers) {
    const FeedForwardConfig& f = c.feed_forward;
    if (c.kind == LayerKind::attention) {
      needs.max_width = std::max(needs.max_width, c.attention.query_width());
      needs.max_heads = std::max(needs.max_heads, c.attention.heads);
      needs.head_dim = std::max(needs.head_dim, c.attention.head_dim);
      needs.kv_heads = std::max(needs.kv_heads, c.attention.kv_heads);
    } else {
      needs.max_width = std::max(needs.max_width, c.delta.value_width());
    }
    needs.max_width = std::max({needs.max_width, f.width, f.expert_width, f.shared_width});
    needs.experts = std::max(needs.experts, f.experts);
    needs.experts_used = std::max(needs.experts_used, f.experts_used);
    needs.expert_width = std::max({needs.expert_width, f.expert_width, f.shared_width});
  }
  return needs;
}

int64_t DecoderModel::flops_per_token() const {
  int64_t products = config_.vocabulary * config_.width;
  for (const LayerConfig& c : config_.layers) {
    if (c.kind == LayerKind::attention) {
      const AttentionConfig& a = c.attention;
      products +=
          config_.width * (a.query_rows() + a.gate_rows() + 2 * a.kv_width() + a.query_width());
    } else {
      const DeltaShape& d = c.delta;
      products += config_.width * (d.channels() + d.value_width() + 2 * d.value_heads) +
                  d.value_width() * config_.width + 4 * d.state_elements() +
                  d.conv_width * d.channels();
    }
    const FeedForwardConfig& f = c.feed_forward;
    products +=
        f.is_moe()
            ? config_.width * (f.experts + 3 * (f.experts_used * f.expert_width + f.shared_width))
            : 3 * config_.width * f.width;
  }
  return 2 * products;
}

void DecoderModel::attach(StepTap& tap, std::vector<AttentionConfig> layers) {
  tap_ = &tap;
  config_.drafter = std::move(layers);
}

void DecoderModel::forward_stage(int32_t stage, const Batch& batch,
                                 std::span<const SequenceMemory> memory, int32_t slot) {
  StepPacing never_pauses;
  const Stage& own = stages_[static_cast<size_t>(stage)];
  StepCursor at = own.begin;
  at.catches_up = catches_up_;
  BRAID_CHECK(run_layers(own, at, {batch, memory, never_pauses, false, slot}));
}

bool DecoderModel::forward_interleaved(StepCursor& at, const Batch& batch,
                                       std::span<const SequenceMemory> memory, StepPacing& pacing) {
  BRAID_CHECK(batch.tokens <= stages_[0].parts[0].interleaved.residual.rows);
  if (at.layer < 0) at.catches_up = catches_up_;
  while (true) {
    if (!run_layers(stages_[static_cast<size_t>(at.stage)], at, {batch, memory, pacing, true}))
      return false;
    if (at.stage == config_.last_stage()) return true;
    hand_off(at.stage, batch.tokens, batch.tokens, true);
    ++at.stage;
    at.has_ropes = false;
  }
}

// Measures the time of `work` where it ends with its calls.
template <typename Work>
void DecoderModel::catching_up(const Work& work) {
  if (last().device->traits().asynchronous) return work();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  catch_up_ms_ += took.count();
}

void DecoderModel::hand_off(int32_t stage, int32_t rows, int32_t computed, bool interleaved) {
  if (stage == config_.last_stage() || rows == 0) return;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks()); ++rank) {
    const Part& from = stages_[static_cast<size_t>(stage)].parts[rank];
    const Part& to = stages_[static_cast<size_t>(stage) + 1].parts[rank];
    const Tensor padding = from.lane(interleaved).residual.middle(computed, rows - computed);
    if (from.device->traits().host_visible)
      std::fill_n(static_cast<float*>(padding.data), padding.rows * padding.cols, 0.0f);
    move_rows(*to.device, to.lane(interleaved).residual.top(rows), *from.device,
              from.lane(interleaved).residual.top(rows));
  }
  if (tap_ != nullptr) tap_->hand_off(stage, rows, interleaved);
}

BlockSum DecoderModel::sum_of(const Stage& stage, const Part& part, const Run& run) {
  const Lane& lane = part.lane(run.interleaved);
  const int32_t tokens = run.batch.tokens;
  if (stage.exchange == nullptr) return {lane.residual.top(tokens)};
  return {lane.partial.top(tokens), Tail::store, lane.zeros.top(tokens)};
}

// All ranks send before the first collects (letter.h). The numbers of a step's sums begin anew in
// each stage, which has an exchange of its own.
void DecoderModel::exchange_sums(const Stage& stage, int32_t layer, Sum sum, const Run& run) {
  if (stage.exchange == nullptr || run.batch.tokens == 0) return;
  const int32_t number =
      2 * (layer - std::max(stage.begin.layer, 0)) + (sum == Sum::feed_forward ? 1 : 0);
  const int32_t tokens = run.batch.tokens;
  const DType type = split_.exact_sums || tokens <= kMostFewRows ? DType::f32 : DType::f16;
  const auto letter = [&](const Part& part) {
    return stage.exchange->letter(run.interleaved ? 1 : 0, part.rank, number, tokens, config_.width,
                                  type);
  };
  for (const Part& part : stage.parts)
    part.ops->send(letter(part), part.lane(run.interleaved).partial.top(tokens),
                   run.batch.on_device(part.index));
  for (const Part& part : stage.parts)
    part.ops->collect(part.lane(run.interleaved).residual.top(tokens), letter(part), Tail::add,
                      run.batch.on_device(part.index));
}

bool DecoderModel::run_layers(const Stage& stage, StepCursor& at, const Run& run) {
  const int32_t tokens = run.batch.tokens;
  if (at.layer < 0) {
    if (!run.pacing.may_run(StepPart::embedding)) return false;
    for (const Part& part : stage.parts)
      part.ops->embed(part.lane(run.interleaved).residual.top(tokens), part.weights->embedding,
                      run.batch.on_device(part.index));
  }
  if (!at.has_ropes) {
    for (const Part& part : stage.parts)
      for (size_t i = 0; i < config_.ropes.size(); ++i)
        part.ops->rope_table(part.lane(run.interleaved).ropes[i].top(tokens), config_.ropes[i],
                             run.batch.on_device(part.index));
    at.has_ropes = true;
  }
  if (at.layer < 0) {
    at.layer = 0;
    run.pacing.queued();
  }
  for (; at.layer < stage.end; ++at.layer) {
    const auto index = static_cast<size_t>(at.layer);
    const bool recurrent = config_.layers[index].kind == LayerKind::delta;
    if (!(recurrent ? run_delta(stage, at, run) : run_attention(stage, at, run))) return false;
    ++(recurrent ? at.delta : at.kv);
    run_feed_forward(stage, at.layer, run);
    const Part& first = stage.parts[0];
    const Lane& lane = first.lane(run.interleaved);
    if (tap_ != nullptr && at.catches_up)
      catching_up(
          [&] { tap_->layer_output(at.layer, lane.residual.top(tokens), run.interleaved); });
    if (observer_ != nullptr) show(first, lane, index, run.batch.on_device(first.index));
    run.pacing.queued();
  }
  return at.stage < config_.last_stage() || run_outputs(stage, at, run);
}

bool DecoderModel::run_delta(const Stage& stage, StepCursor& at, const Run& run) {
  if (!run.pacing.may_run(StepPart::delta_layer)) return false;
  const auto index = static_cast<size_t>(at.layer);
  const int32_t tokens = run.batch.tokens;
  for (const Part& part : stage.parts) {
    const Lane& lane = part.lane(run.interleaved);
    const LayerWeights& layer = part.weights->layers[index];
    const SequenceMemory& memory = run.memory[static_cast<size_t>(part.rank)];
    delta_block(*part.ops, lane.residual.top(tokens), lane.normed.top(tokens),
                {layer.mixer_norm, config_.eps}, layer.delta, memory.delta[at.delta],
                lane.layers[index].delta, run.batch.on_device(part.index),
                sum_of(stage, part, run));
  }
  exchange_sums(stage, at.layer, Sum::mixer, run);
  return true;
}

// Leaves the rows whose logits are wanted, and what drafters read.
bool DecoderModel::run_outputs(const Stage& stage, const StepCursor& at, const Run& run) {
  const Part& part = stage.parts[0];
  const Lane& lane = part.lane(run.interleaved);
  const Batch batch = run.batch.on_device(part.index);
  if (!run.pacing.may_run(StepPart::outputs)) return false;
  if (batch.outputs > 0) {
    const Tensor rows = lane.gathered.top(batch.outputs);
    part.ops->gather_rows(rows, lane.residual.top(batch.tokens), batch.output_row, batch.outputs);
    part.ops->add_norm(output_hidden(run.slot).top(batch.outputs), rows, {},
                       part.weights->output_norm, config_.eps);
  }
  if (at.catches_up) {
    catching_up([&] {
      if (config_.drafts()) keep_entries(lane, batch, run.memory[0]);
      if (tap_ != nullptr) tap_->step_output(batch, run.memory[0], run.interleaved);
    });
  }
  run.pacing.queued();
  return true;
}

// An attention layer without its feed-forward.
bool DecoderModel::run_attention(const Stage& stage, StepCursor& at, const Run& run) {
  const auto index = static_cast<size_t>(at.layer);
  const int32_t tokens = run.batch.tokens;
  struct Own {
    const Part& part;
    const Lane& lane;
    const LayerWeights& layer;
    const AttentionConfig& config;
    const AttentionScratch& scratch;
    const KvLayer& kv;
  };
  const auto own = [&](const Part& part) {
    const Lane& lane = part.lane(run.interleaved);
    return Own{part,
               lane,
               part.weights->layers[index],
               part.config->layers[index].attention,
               lane.layers[index].attention,
               run.memory[static_cast<size_t>(part.rank)].kv[at.kv]};
  };
  if (at.attention == StepPart::attention_in) {
    if (!run.pacing.may_run(StepPart::attention_in)) return false;
    const bool splits = run.pacing.splits_attention();
    for (const Part& part : stage.parts) {
      const Own o = own(part);
      const Batch batch = run.batch.on_device(part.index).of_group(o.kv.group);
      attention_in(*part.ops, o.lane.residual.top(tokens), o.lane.normed.top(tokens),
                   {o.layer.mixer_norm, config_.eps}, o.lane.ropes[o.config.rope].top(tokens),
                   o.layer.attention, o.config.params(), o.kv, o.scratch, batch,
                   !splits && observer_ == nullptr);
      if (observer_ == nullptr) continue;
      part.device->synchronize();
      if (part.rank == 0) observer_->attention(at.layer, o.scratch.q.top(tokens), o.kv, batch);
      if (!splits) attention_rows(*part.ops, o.config.params(), o.kv, o.scratch, 0, batch);
    }
    at.row = splits ? 0 : tokens;
    at.attention = StepPart::attention_rows;
    run.pacing.queued();
  }
  while (at.row < tokens) {
    const Batch rows = run.pacing.attention_rows(at.row);
    if (rows.tokens == 0) return false;
    BRAID_CHECK(at.row + rows.tokens <= tokens);
    for (const Part& part : stage.parts) {
      const Own o = own(part);
      attention_rows(*part.ops, o.config.params(), o.kv, o.scratch, at.row,
                     rows.on_device(part.index).of_group(o.kv.group));
    }
    at.row += rows.tokens;
    run.pacing.queued();
  }
  if (!run.pacing.may_run(StepPart::attention_out)) return false;
  for (const Part& part : stage.parts) {
    const Own o = own(part);
    attention_out(*part.ops, sum_of(stage, part, run), o.layer.attention, o.scratch);
  }
  exchange_sums(stage, at.layer, Sum::mixer, run);
  at.attention = StepPart::attention_in;  // for the next attention layer
  return true;
}

void DecoderModel::run_feed_forward(const Stage& stage, int32_t layer, const Run& run) {
  const auto index = static_cast<size_t>(layer);
  const int32_t tokens = run.batch.tokens;
  for (const Part& part : stage.parts) {
    const Lane& lane = part.lane(run.interleaved);
    const LayerWeights& w = part.weights->layers[index];
    feed_forward_block(*part.ops, lane.residual.top(tokens), lane.normed.top(tokens),
                       {w.ffn_norm, config_.eps}, part.config->layers[index], w, lane.layers[index],
                       sum_of(stage, part, run), run.batch.on_device(part.index));
  }
  exchange_sums(stage, layer, Sum::feed_forward, run);
}

void DecoderModel::feed_forward_block(Ops& ops, Tensor x, Tensor h, const BlockNorm& norm,
                                      const LayerConfig& config, const LayerWeights& w,
                                      const LayerScratch& scratch, const BlockSum& sum,
                                      const Batch& batch) {
  if (config.feed_forward.is_moe()) {
    moe_block(ops, x, h, norm, w.moe, config.feed_forward, scratch.moe, sum, batch);
  } else {
    mlp_block(ops, x, h, norm, w.mlp, scratch.mlp, sum);
  }
}

void DecoderModel::logits(Tensor logits, int32_t first, int32_t count, int32_t slot) {
  last().ops->logits(logits.top(count), ends().head(), output_hidden(slot).middle(first, count));
}

void DecoderModel::show(const Part& part, const Lane& lane, size_t layer, const Batch& batch) {
  part.device->synchronize();
  const auto number = static_cast<int32_t>(layer);
  const MoeScratch& moe = lane.layers[layer].moe;
  if (config_.layers[layer].feed_forward.is_moe())
    observer_->experts(number, moe.ids.top(batch.tokens), moe.weights.top(batch.tokens), batch);
  observer_->layer_output(number, lane.residual.top(batch.tokens), batch);
}

}  // namespace braid
