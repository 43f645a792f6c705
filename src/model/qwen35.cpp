// qwen35.cpp -- see qwen35.h. The loop over layers is forward(); everything else is sizes.
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

size_t Qwen35Model::place_activations(std::byte* base, int32_t max_tokens, int32_t max_outputs,
                                      DType activations) {
  const DType act = activations;
  const int64_t t = max_tokens;
  const ModelConfig& c = config_;
  Placer common(base, 0);
  residual_ = common.take(t, c.width);
  normed_ = common.take(t, c.width, act);
  rope_ = common.take(t, c.rope.dims);
  gathered_ = common.take(max_outputs, c.width);
  hidden_ = common.take(max_outputs, c.width, act);

  // Blocks run one at a time: their scratch shares one stretch.
  Placer attention(base, common.offset());
  const int64_t head_width = int64_t{c.heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  attention_ = {attention.take(t, 2 * head_width, act), attention.take(t, kv_width, act),
                attention.take(t, kv_width, act), attention.take(t, head_width, act),
                attention.take(t, head_width, act)};
  Placer delta(base, common.offset());
  delta_ = {delta.take(t, c.delta.channels(), act), delta.take(t, c.delta.value_width(), act),
            delta.take(t, c.delta.value_heads), delta.take(t, c.delta.value_heads),
            delta.take(t, c.delta.value_width(), act)};
  Placer feed_forward(base, common.offset());
  if (c.is_moe()) {
    moe_ = {feed_forward.take(t, c.experts), feed_forward.take(t, c.experts_used, DType::i32),
            feed_forward.take(t, c.experts_used)};
  } else {
    mlp_ = {feed_forward.take(t, c.ffn_width, act)};
  }
  return std::max({attention.offset(), delta.offset(), feed_forward.offset()});
}

size_t Qwen35Model::activation_bytes(int32_t max_tokens, int32_t max_outputs, DType activations) const {
  Qwen35Model counted;
  counted.config_ = config_;
  return counted.place_activations(nullptr, max_tokens, max_outputs, activations);
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

Status Qwen35Model::load(Device& device, int32_t max_tokens, int32_t max_outputs,
                         const ModelWeights::Progress& progress) {
  BRAID_CHECK(ops_ == nullptr);
  BRAID_TRY(weights_.load(device, progress));
  const DType activations = device.activation_type();
  BRAID_ASSIGN(activations_,
               device.allocate(activation_bytes(max_tokens, max_outputs, activations), "activations"));
  place_activations(static_cast<std::byte*>(activations_.data()), max_tokens, max_outputs, activations);
  ops_ = &device.ops();
  device_ = &device;
  return {};
}

void Qwen35Model::forward(const Batch& batch, const SequenceMemory& memory, bool has_uncertain) {
  Ops& ops = *ops_;
  const Tensor x = residual_.top(batch.tokens);
  const Tensor h = normed_.top(batch.tokens);
  const Tensor rope = rope_.top(batch.tokens);
  const AttentionParams attention{config_.heads, config_.attention_scale, 0, true};
  const RouteParams route{config_.experts, config_.experts_used};

  ops.embed(x, weights_.embedding, batch);
  ops.rope_table(rope, config_.rope, batch);
  size_t kv = 0;
  size_t delta = 0;
  for (int32_t i = 0; i < config_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    ops.add_norm(h, x, {}, layer.mixer_norm, config_.eps);
    if (config_.kinds[i] == LayerKind::attention) {
      attention_block(ops, x, h, rope, layer.attention, attention, memory.kv[kv++], attention_, batch);
    } else {
      DeltaJournal* journal = has_uncertain ? &memory.journals[delta] : nullptr;
      delta_block(ops, x, h, layer.delta, memory.delta[delta++], journal, delta_, batch);
    }
    ops.add_norm(h, x, {}, layer.ffn_norm, config_.eps);
    if (config_.is_moe()) {
      moe_block(ops, x, h, layer.moe, route, moe_);
    } else {
      mlp_block(ops, x, h, layer.mlp, mlp_);
    }
    if (observer_ != nullptr) show(i, batch);
  }
  last_outputs_ = batch.outputs;
  if (batch.outputs == 0) return;
  const Tensor rows = gathered_.top(batch.outputs);
  ops.gather_rows(rows, x, batch.output_row, batch.outputs);
  ops.add_norm(hidden_.top(batch.outputs), rows, {}, weights_.output_norm, config_.eps);
}

void Qwen35Model::logits(Tensor logits, int32_t first, int32_t count) {
  BRAID_CHECK(first >= 0 && count > 0 && first + count <= last_outputs_);
  ops_->logits(logits.top(count), weights_.head(), hidden_.middle(first, count));
}

void Qwen35Model::show(int32_t layer, const Batch& batch) {
  device_->synchronize();
  if (config_.is_moe())
    observer_->experts(layer, moe_.ids.top(batch.tokens), moe_.weights.top(batch.tokens), batch);
  observer_->layer_output(layer, residual_.top(batch.tokens), batch);
}

}  // namespace braid
