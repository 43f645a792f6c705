// qwen35.cpp -- see qwen35.h. The layer loop is run_layers(); everything else is sizes.
#include "model/qwen35.h"

#include <algorithm>

namespace braid {
namespace {

constexpr size_t kAlignBytes = 64;

// Hands out consecutive stretches of memory as tensors.
class Placer {
 public:
  Placer(std::byte* base, size_t offset) : base_(base), offset_(offset) {}
  size_t offset() const { return offset_; }

  Tensor take(int64_t rows, int64_t cols, DType type = DType::f32) {
    Tensor t{base_ == nullptr ? nullptr : base_ + offset_, type, rows, cols, cols};
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(cols) * size_bytes(type);
    offset_ += (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    return t;
  }

 private:
  std::byte* base_;
  size_t offset_;
};

}  // namespace

Result<std::unique_ptr<Model>> Qwen35Model::open(const GgufFile& file, const ModelOptions& options) {
  auto model = std::make_unique<Qwen35Model>();
  BRAID_ASSIGN(model->config_, read_qwen35_config(file));
  BRAID_TRY(model->weights_.describe(file, model->config_, options.with_mtp));
  return std::unique_ptr<Model>(std::move(model));
}

size_t Qwen35Model::place(Lane& lane, std::byte* base, int32_t max_tokens, int32_t max_outputs,
                          DType activations) const {
  const DType act = activations;
  const int64_t t = max_tokens;
  const ModelConfig& c = config_;
  Placer common(base, 0);
  lane.residual = common.take(t, c.width);
  lane.normed = common.take(t, c.width, act);
  lane.rope = common.take(t, c.rope.dims);
  lane.gathered = common.take(max_outputs, c.width);
  lane.hidden = common.take(max_outputs, c.width, act);

  // Blocks run one at a time: their scratch shares one stretch.
  Placer attention(base, common.offset());
  const int64_t head_width = int64_t{c.heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  lane.attention = {attention.take(t, 2 * head_width, act), attention.take(t, kv_width, act),
                    attention.take(t, kv_width, act), attention.take(t, head_width, act),
                    attention.take(t, head_width, act)};
  Placer delta(base, common.offset());
  lane.delta = {delta.take(t, c.delta.channels(), act), delta.take(t, c.delta.value_width(), act),
                delta.take(t, c.delta.value_heads), delta.take(t, c.delta.value_heads),
                delta.take(t, c.delta.value_width(), act)};
  Placer feed_forward(base, common.offset());
  if (c.is_moe()) {
    lane.moe = {feed_forward.take(t, c.experts), feed_forward.take(t, c.experts_used, DType::i32),
                feed_forward.take(t, c.experts_used)};
  } else {
    lane.mlp = {feed_forward.take(t, c.ffn_width, act)};
  }
  return std::max({attention.offset(), delta.offset(), feed_forward.offset()});
}

size_t Qwen35Model::lane_bytes(int32_t max_tokens, int32_t max_outputs, DType activations) const {
  Lane counted;
  return place(counted, nullptr, max_tokens, max_outputs, activations);
}

size_t Qwen35Model::activation_bytes(const StepSizes& sizes, DType activations) const {
  return lane_bytes(sizes.tokens, sizes.outputs, activations) +
         lane_bytes(sizes.interleaved_tokens, sizes.interleaved_tokens, activations);
}

Device::WorkspaceNeeds Qwen35Model::workspace_needs(int32_t max_tokens) const {
  const ModelConfig& c = config_;
  Device::WorkspaceNeeds needs;
  needs.max_tokens = max_tokens;
  needs.max_width = std::max({c.width * (weights_.mtp.empty() ? 1 : 2), int64_t{c.heads} * c.head_dim,
                              c.delta.value_width(), c.ffn_width, c.expert_width, c.shared_width});
  needs.max_heads = c.heads;
  needs.head_dim = c.head_dim;
  needs.delta = c.delta;
  needs.experts = c.experts;
  needs.experts_used = c.experts_used;
  needs.expert_width = std::max(c.expert_width, c.shared_width);
  needs.model_width = c.width;
  return needs;
}

int64_t Qwen35Model::flops_per_token() const {
  const ModelConfig& c = config_;
  const DeltaShape& d = c.delta;
  const int64_t attention = c.width * c.head_dim * (int64_t{2} * c.heads + 2 * c.kv_heads) +
                            int64_t{c.heads} * c.head_dim * c.width;
  const int64_t delta = c.width * (d.channels() + d.value_width() + 2 * d.value_heads) +
                        d.value_width() * c.width + 4 * d.state_elements() + d.conv_elements();
  const int64_t ffn = c.is_moe()
                          ? c.width * (c.experts + 3 * (c.experts_used * c.expert_width + c.shared_width))
                          : 3 * c.width * c.ffn_width;
  return 2 * (c.count(LayerKind::attention) * attention + c.count(LayerKind::delta) * delta + c.layers * ffn +
              c.vocabulary * c.width);
}

Status Qwen35Model::load(Device& device, const StepSizes& sizes, const ModelWeights::Progress& progress) {
  BRAID_CHECK(ops_ == nullptr);
  BRAID_TRY(weights_.load(device, progress));
  const DType activations = device.activation_type();
  BRAID_ASSIGN(activations_, device.allocate(activation_bytes(sizes, activations), "activations"));
  auto* base = static_cast<std::byte*>(activations_.data());
  base += place(whole_, base, sizes.tokens, sizes.outputs, activations);
  place(interleaved_, base, sizes.interleaved_tokens, sizes.interleaved_tokens, activations);
  ops_ = &device.ops();
  device_ = &device;
  return {};
}

void Qwen35Model::forward(const Batch& batch, const SequenceMemory& memory, bool has_uncertain) {
  StepCursor at;
  StepPacing never_pauses;
  BRAID_CHECK(run_layers(whole_, at, {batch, memory, has_uncertain, never_pauses}));
}

bool Qwen35Model::forward_interleaved(StepCursor& at, const Batch& batch, const SequenceMemory& memory,
                                      StepPacing& pacing) {
  BRAID_CHECK(batch.tokens <= interleaved_.residual.rows);
  return run_layers(interleaved_, at, {batch, memory, false, pacing});
}

bool Qwen35Model::run_layers(const Lane& lane, StepCursor& at, const Run& run) {
  const int32_t tokens = run.batch.tokens;
  const Tensor x = lane.residual.top(tokens);
  const Tensor h = lane.normed.top(tokens);
  if (at.layer < 0) {
    if (!run.pacing.may_run(StepPart::embedding)) return false;
    ops_->embed(x, weights_.embedding, run.batch);
    ops_->rope_table(lane.rope.top(tokens), config_.rope, run.batch);
    at.layer = 0;
    run.pacing.queued();
  }
  for (; at.layer < config_.layers; ++at.layer) {
    const LayerWeights& layer = weights_.layers[at.layer];
    if (config_.kinds[at.layer] == LayerKind::delta) {
      if (!run.pacing.may_run(StepPart::delta_layer)) return false;
      DeltaJournal* journal = run.has_uncertain ? &run.memory.journals[at.delta] : nullptr;
      delta_block(*ops_, x, h, {layer.mixer_norm, config_.eps}, layer.delta, run.memory.delta[at.delta],
                  journal, lane.delta, run.batch);
      ++at.delta;
    } else {
      if (!run_attention(lane, at, run)) return false;
      ++at.kv;
    }
    run_feed_forward(lane, at.layer, run.batch);
    run.pacing.queued();
  }
  if (!run.pacing.may_run(StepPart::outputs)) return false;
  leave_outputs(lane, run.batch);
  run.pacing.queued();
  return true;
}

// An attention layer without its feed-forward. False: paused on the way.
bool Qwen35Model::run_attention(const Lane& lane, StepCursor& at, const Run& run) {
  const LayerWeights& layer = weights_.layers[at.layer];
  const KvLayer& kv = run.memory.kv[at.kv];
  const AttentionParams params{config_.heads, config_.attention_scale, 0, true};
  const int32_t tokens = run.batch.tokens;
  const Tensor x = lane.residual.top(tokens);
  if (at.attention == StepPart::attention_in) {
    if (!run.pacing.may_run(StepPart::attention_in)) return false;
    const bool splits = run.pacing.splits_attention();
    attention_in(*ops_, x, lane.normed.top(tokens), {layer.mixer_norm, config_.eps}, lane.rope.top(tokens),
                 layer.attention, params, kv, lane.attention, run.batch, !splits);
    at.row = splits ? 0 : tokens;
    at.attention = StepPart::attention_rows;
    run.pacing.queued();
  }
  while (at.row < tokens) {
    const Batch rows = run.pacing.attention_rows(at.row);
    if (rows.tokens == 0) return false;
    BRAID_CHECK(at.row + rows.tokens <= tokens);
    attention_rows(*ops_, params, kv, lane.attention, at.row, rows);
    at.row += rows.tokens;
    run.pacing.queued();
  }
  if (!run.pacing.may_run(StepPart::attention_out)) return false;
  attention_out(*ops_, x, layer.attention, lane.attention);
  at.attention = StepPart::attention_in;  // of the next such layer
  return true;
}

// The second half of a layer of either kind.
void Qwen35Model::run_feed_forward(const Lane& lane, int32_t layer, const Batch& batch) {
  const LayerWeights& w = weights_.layers[layer];
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor h = lane.normed.top(batch.tokens);
  const BlockNorm norm{w.ffn_norm, config_.eps};
  if (config_.is_moe()) {
    moe_block(*ops_, x, h, norm, w.moe, {config_.experts, config_.experts_used}, lane.moe);
  } else {
    mlp_block(*ops_, x, h, norm, w.mlp, lane.mlp);
  }
  if (observer_ != nullptr) show(lane, layer, batch);
}

void Qwen35Model::leave_outputs(const Lane& lane, const Batch& batch) {
  ended_ = &lane;
  last_outputs_ = batch.outputs;
  if (batch.outputs == 0) return;
  const Tensor rows = lane.gathered.top(batch.outputs);
  ops_->gather_rows(rows, lane.residual.top(batch.tokens), batch.output_row, batch.outputs);
  ops_->add_norm(lane.hidden.top(batch.outputs), rows, {}, weights_.output_norm, config_.eps);
}

void Qwen35Model::logits(Tensor logits, int32_t first, int32_t count) {
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= last_outputs_);
  ops_->logits(logits.top(count), weights_.head(), ended_->hidden.middle(first, count));
}

void Qwen35Model::show(const Lane& lane, int32_t layer, const Batch& batch) {
  device_->synchronize();
  if (config_.is_moe())
    observer_->experts(layer, lane.moe.ids.top(batch.tokens), lane.moe.weights.top(batch.tokens), batch);
  observer_->layer_output(layer, lane.residual.top(batch.tokens), batch);
}

}  // namespace braid
