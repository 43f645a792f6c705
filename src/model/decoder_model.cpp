// decoder_model.cpp -- see decoder_model.h. run_layers() is the layer loop; the rest is sizes.
#include "model/decoder_model.h"

#include <algorithm>
#include <chrono>

#include "model/weight_reader.h"

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

size_t DecoderModel::place(int32_t stage, Lane& lane, std::byte* base, int32_t max_tokens,
                           int32_t max_outputs, DType activations) const {
  const DType act = activations;
  const int64_t t = max_tokens;
  Placer common(base, 0);
  lane.residual = common.take(t, config_.width);
  lane.normed = common.take(t, config_.width, act);
  for (const RopeParams& rope : config_.ropes) lane.ropes.push_back(common.take(t, rope.dims));
  const bool last = stage == config_.last_stage();
  if (last) {
    lane.gathered = common.take(max_outputs, config_.width);
    lane.hidden = common.take(max_outputs, config_.width, act);
  }

  size_t end = common.offset();
  for (const LayerConfig& c : config_.layers) {
    LayerScratch& layer = lane.layers.emplace_back();
    if (c.stage == stage) end = std::max(end, place_layer(layer, c, common, t, act));
  }
  if (last && config_.drafts()) {
    Placer head = common;
    lane.draft.before = head.take(t, config_.width);
    lane.draft.joined = head.take(t, 2 * config_.width, act);
    end = std::max(end, place_layer(lane.draft.layer, config_.mtp[0], head, t, act));
  }
  return end;
}

size_t DecoderModel::lane_bytes(int32_t stage, int32_t max_tokens, int32_t max_outputs,
                                DType activations) const {
  Lane counted;
  return place(stage, counted, nullptr, max_tokens, max_outputs, activations);
}

size_t DecoderModel::activation_bytes(int32_t stage, const StepSizes& sizes,
                                      DType activations) const {
  return lane_bytes(stage, sizes.tokens, sizes.outputs, activations) +
         lane_bytes(stage, sizes.interleaved_tokens, sizes.interleaved_tokens, activations);
}

void DecoderModel::split(std::span<const int32_t> first_layers, bool drafts_embed) {
  BRAID_CHECK(stages_.empty() && !first_layers.empty() && first_layers[0] == 0);
  config_.stages = static_cast<int32_t>(first_layers.size());
  for (size_t i = 0, stage = 0; i < config_.layers.size(); ++i) {
    while (stage + 1 < first_layers.size() && first_layers[stage + 1] <= static_cast<int32_t>(i))
      ++stage;
    config_.layers[i].stage = static_cast<int32_t>(stage);
  }
  weights_.split(config_, drafts_embed);
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

Status DecoderModel::load(std::span<Device* const> devices, const StepSizes& sizes,
                          const ModelWeights::Progress& progress) {
  BRAID_CHECK(stages_.empty() && static_cast<int32_t>(devices.size()) == config_.stages);
  BRAID_TRY(weights_.load(devices, progress));
  StepCursor begin;
  for (int32_t number = 0; number < config_.stages; ++number) {
    Device& device = *devices[static_cast<size_t>(number)];
    Stage& stage = stages_.emplace_back();
    const DType activations = device.activation_type();
    BRAID_ASSIGN(stage.activations,
                 device.allocate(activation_bytes(number, sizes, activations), "activations"));
    auto* base = static_cast<std::byte*>(stage.activations.data());
    base += place(number, stage.whole, base, sizes.tokens, sizes.outputs, activations);
    place(number, stage.interleaved, base, sizes.interleaved_tokens, sizes.interleaved_tokens,
          activations);
    stage.ops = &device.ops();
    stage.device = &device;
    stage.begin = begin;
    stage.end = config_.first_layer(number + 1);
    for (begin.layer = std::max(begin.layer, 0); begin.layer < stage.end; ++begin.layer)
      ++(config_.layers[static_cast<size_t>(begin.layer)].kind == LayerKind::delta ? begin.delta
                                                                                   : begin.kv);
    ++begin.stage;
  }
  return load_draft_vocabulary();
}

void DecoderModel::attach(StepTap& tap, std::vector<AttentionConfig> layers) {
  tap_ = &tap;
  config_.drafter = std::move(layers);
}

void DecoderModel::forward_stage(int32_t stage, const Batch& batch, const SequenceMemory& memory) {
  StepPacing never_pauses;
  const Stage& own = stages_[static_cast<size_t>(stage)];
  StepCursor at = own.begin;
  at.catches_up = catches_up_;
  const Batch own_batch = batch.of_stage(stage);
  BRAID_CHECK(run_layers(own, at, {own_batch, memory, never_pauses, false}));
}

bool DecoderModel::forward_interleaved(StepCursor& at, const Batch& batch,
                                       const SequenceMemory& memory, StepPacing& pacing) {
  BRAID_CHECK(batch.tokens <= stages_[0].interleaved.residual.rows);
  if (at.layer < 0) at.catches_up = catches_up_;
  while (true) {
    const Batch own = batch.of_stage(at.stage);
    if (!run_layers(stages_[static_cast<size_t>(at.stage)], at, {own, memory, pacing, true}))
      return false;
    if (at.stage == config_.last_stage()) return true;
    hand_off(at.stage, batch.tokens, true);
    ++at.stage;
    at.has_ropes = false;
  }
}

// Measures the time of `work` where it ends with its calls.
template <typename Work>
void DecoderModel::catching_up(const Work& work) {
  if (last_device().traits().asynchronous) return work();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  catch_up_ms_ += took.count();
}

void DecoderModel::hand_off(int32_t stage, int32_t rows, bool interleaved) {
  if (stage == config_.last_stage() || rows == 0) return;
  const Stage& from = stages_[static_cast<size_t>(stage)];
  const Stage& to = stages_[static_cast<size_t>(stage) + 1];
  to.device->receive(to.lane(interleaved).residual.top(rows), *from.device,
                     from.lane(interleaved).residual.top(rows));
  if (tap_ != nullptr) tap_->hand_off(stage, rows, interleaved);
}

bool DecoderModel::run_layers(const Stage& stage, StepCursor& at, const Run& run) {
  const Lane& lane = stage.lane(run.interleaved);
  Ops& ops = *stage.ops;
  const int32_t tokens = run.batch.tokens;
  const Tensor x = lane.residual.top(tokens);
  const Tensor h = lane.normed.top(tokens);
  if (at.layer < 0) {
    if (!run.pacing.may_run(StepPart::embedding)) return false;
    ops.embed(x, weights_.embedding, run.batch);
  }
  if (!at.has_ropes) {
    for (size_t i = 0; i < config_.ropes.size(); ++i)
      ops.rope_table(lane.ropes[i].top(tokens), config_.ropes[i], run.batch);
    at.has_ropes = true;
  }
  if (at.layer < 0) {
    at.layer = 0;
    run.pacing.queued();
  }
  for (; at.layer < stage.end; ++at.layer) {
    const auto index = static_cast<size_t>(at.layer);
    const LayerConfig& config = config_.layers[index];
    const LayerWeights& layer = weights_.layers[index];
    if (config.kind == LayerKind::delta) {
      if (!run.pacing.may_run(StepPart::delta_layer)) return false;
      delta_block(ops, x, h, {layer.mixer_norm, config_.eps}, layer.delta,
                  run.memory.delta[at.delta], lane.layers[index].delta, run.batch);
      ++at.delta;
    } else {
      if (!run_attention(stage, at, run)) return false;
      ++at.kv;
    }
    run_feed_forward(ops, x, h, {layer.ffn_norm, config_.eps}, config, layer, lane.layers[index]);
    if (tap_ != nullptr && at.catches_up)
      catching_up([&] { tap_->layer_output(at.layer, x, run.interleaved); });
    if (observer_ != nullptr) show(stage, lane, index, run.batch);
    run.pacing.queued();
  }
  return at.stage < config_.last_stage() || run_outputs(stage, at, run);
}

bool DecoderModel::run_outputs(const Stage& stage, const StepCursor& at, const Run& run) {
  const Lane& lane = stage.lane(run.interleaved);
  const Batch& batch = run.batch;
  if (!run.pacing.may_run(StepPart::outputs)) return false;
  ended_interleaved_ = run.interleaved;
  last_outputs_ = batch.outputs;
  if (batch.outputs > 0) {
    const Tensor rows = lane.gathered.top(batch.outputs);
    stage.ops->gather_rows(rows, lane.residual.top(batch.tokens), batch.output_row, batch.outputs);
    stage.ops->add_norm(lane.hidden.top(batch.outputs), rows, {}, weights_.output_norm,
                        config_.eps);
  }
  if (at.catches_up) {
    catching_up([&] {
      if (config_.drafts()) keep_entries(lane, run);
      if (tap_ != nullptr) tap_->step_output(batch, run.memory, run.interleaved);
    });
  }
  run.pacing.queued();
  return true;
}

// An attention layer without its feed-forward. Returns false if it paused.
bool DecoderModel::run_attention(const Stage& stage, StepCursor& at, const Run& run) {
  const Lane& lane = stage.lane(run.interleaved);
  Ops& ops = *stage.ops;
  const auto index = static_cast<size_t>(at.layer);
  const LayerWeights& layer = weights_.layers[index];
  const AttentionConfig& config = config_.layers[index].attention;
  const AttentionScratch& scratch = lane.layers[index].attention;
  const KvLayer& kv = run.memory.kv[at.kv];
  const AttentionParams params = config.params();
  const int32_t tokens = run.batch.tokens;
  const Tensor x = lane.residual.top(tokens);
  if (at.attention == StepPart::attention_in) {
    if (!run.pacing.may_run(StepPart::attention_in)) return false;
    const bool splits = run.pacing.splits_attention();
    const Batch batch = run.batch.of_group(kv.group);
    attention_in(ops, x, lane.normed.top(tokens), {layer.mixer_norm, config_.eps},
                 lane.ropes[config.rope].top(tokens), layer.attention, params, kv, scratch, batch,
                 !splits && observer_ == nullptr);
    if (observer_ != nullptr) {
      stage.device->synchronize();
      observer_->attention(at.layer, scratch.q.top(tokens), kv, batch);
      if (!splits) attention_rows(ops, params, kv, scratch, 0, batch);
    }
    at.row = splits ? 0 : tokens;
    at.attention = StepPart::attention_rows;
    run.pacing.queued();
  }
  while (at.row < tokens) {
    const Batch rows = run.pacing.attention_rows(at.row).of_stage(at.stage);
    if (rows.tokens == 0) return false;
    BRAID_CHECK(at.row + rows.tokens <= tokens);
    attention_rows(ops, params, kv, scratch, at.row, rows.of_group(kv.group));
    at.row += rows.tokens;
    run.pacing.queued();
  }
  if (!run.pacing.may_run(StepPart::attention_out)) return false;
  attention_out(ops, x, layer.attention, scratch);
  at.attention = StepPart::attention_in;  // for the next attention layer
  return true;
}

void DecoderModel::run_feed_forward(Ops& ops, Tensor x, Tensor h, const BlockNorm& norm,
                                    const LayerConfig& config, const LayerWeights& w,
                                    const LayerScratch& scratch) {
  if (config.feed_forward.is_moe()) {
    moe_block(ops, x, h, norm, w.moe, config.feed_forward, scratch.moe);
  } else {
    mlp_block(ops, x, h, norm, w.mlp, scratch.mlp);
  }
}

void DecoderModel::logits(Tensor logits, int32_t first, int32_t count) {
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= last_outputs_);
  last_ops().logits(logits.top(count), weights_.head(), ended().hidden.middle(first, count));
}

void DecoderModel::show(const Stage& stage, const Lane& lane, size_t layer, const Batch& batch) {
  stage.device->synchronize();
  const auto number = static_cast<int32_t>(layer);
  const MoeScratch& moe = lane.layers[layer].moe;
  if (config_.layers[layer].feed_forward.is_moe())
    observer_->experts(number, moe.ids.top(batch.tokens), moe.weights.top(batch.tokens), batch);
  observer_->layer_output(number, lane.residual.top(batch.tokens), batch);
}

}  // namespace braid
