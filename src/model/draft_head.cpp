// draft_head.cpp -- the head that drafts (MTP): one attention layer over [embedding ; hidden row before].
//
// Its entry for a token stands at the token's own cell: x_p with the hidden row of position p - 1, so that
// the cells of a block are a function of the tokens up to its end, as those of the trunk are, and blocks can
// be shared. Position 0 has no hidden row before it; its entry is hidden from all others (kFirstCell).
//
// Entries of a step's rows need no more than keys and values (keep_entries). Only draft() attends.
#include "model/decoder_model.h"

namespace braid {
namespace {

constexpr int32_t kFirstCell = 1;

AttentionParams head_params(const ModelConfig& config) {
  AttentionParams params = config.mtp[0].attention.params();
  params.first_cell = kFirstCell;
  return params;
}

const KvLayer& head_cells(const ModelConfig& config, const SequenceMemory& memory) {
  return memory.kv[static_cast<size_t>(config.count(LayerKind::attention))];
}

}  // namespace

// From tokens and lane.draft.before to the residual stream of the head.
void DecoderModel::enter_head(const Lane& lane, const Batch& batch) {
  const MtpWeights& head = weights_.mtp[0];
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor joined = lane.draft.joined.top(batch.tokens);
  ops_->embed(x, *head.embedding, batch);
  ops_->add_norm(joined.columns(0, config_.width), x, {}, head.embedding_norm, config_.eps);
  ops_->add_norm(joined.columns(config_.width, config_.width), lane.draft.before.top(batch.tokens), {},
                 head.hidden_norm, config_.eps);
  const LinearPart in[] = {{&head.eh_proj, nullptr, x}};
  ops_->linear(in, joined);
}

// After the layers of a step: the head's keys and values of its rows, and their hidden rows for later.
void DecoderModel::keep_entries(const Lane& lane, const Run& run) {
  const Batch& batch = run.batch;
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor h = lane.normed.top(batch.tokens);
  ops_->add_norm(h, x, {}, weights_.output_norm, config_.eps);
  ops_->hidden_before(lane.draft.before.top(batch.tokens), h, run.memory.hidden, batch);
  ops_->hidden_keep(run.memory.hidden, h, batch);
  enter_head(lane, batch);
  const LayerWeights& w = weights_.mtp[0].layer;
  const KvLayer& kv = head_cells(config_, run.memory);
  attention_store(*ops_, x, h, {w.mixer_norm, config_.eps},
                  lane.ropes[config_.mtp[0].attention.rope].top(batch.tokens), w.attention,
                  head_params(config_), kv, lane.draft.layer.attention, batch.of_group(kv.group));
}

void DecoderModel::draft(Tensor logits, const Batch& batch, const SequenceMemory& memory, bool first) {
  BRAID_CHECK(config_.drafts() && batch.tokens <= whole_.residual.rows);
  const Lane& lane = whole_;
  const MtpWeights& head = weights_.mtp[0];
  const LayerConfig& config = config_.mtp[0];
  const LayerWeights& w = head.layer;
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor h = lane.normed.top(batch.tokens);
  const Tensor before = lane.draft.before.top(batch.tokens);
  const Tensor rope = lane.ropes[config.attention.rope].top(batch.tokens);
  ops_->rope_table(rope, config_.ropes[config.attention.rope], batch);
  if (first) ops_->hidden_before(before, {}, memory.hidden, batch);
  enter_head(lane, batch);
  const KvLayer& kv = head_cells(config_, memory);
  const AttentionScratch& scratch = lane.draft.layer.attention;
  attention_in(*ops_, x, h, {w.mixer_norm, config_.eps}, rope, w.attention, head_params(config_), kv, scratch,
               batch.of_group(kv.group), true);
  attention_out(*ops_, x, w.attention, scratch);
  if (w.mlp.gate || w.moe.router) run_feed_forward(x, h, config, w, lane.draft.layer);
  ops_->add_norm(before, x, {}, head.head_norm, config_.eps);  // what the next one follows
  ops_->add_norm(h, x, {}, head.head_norm, config_.eps);
  BRAID_CHECK(logits.cols == config_.vocabulary || logits.cols == config_.draft_vocabulary);
  ops_->logits(logits.top(batch.tokens), logits.cols == head.head->n ? *head.head : head.first_rows, h);
}

}  // namespace braid
