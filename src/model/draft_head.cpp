// draft_head.cpp -- the MTP head: one attention layer over [embedding ; previous hidden row].
// The entry of x_p is at its own cell and uses the hidden row of position p - 1. So cells of a KV
// block depend only on tokens up to its end, and blocks can be shared. Position 0 has no previous
// row; its entry is hidden from all others (kFirstCell). Steps store only keys and values
// (keep_entries); only draft() attends.
#include <numeric>

#include "model/decoder_model.h"
#include "model/weight_reader.h"

namespace braid {
namespace {

constexpr int32_t kDraftTokens = 40960;  // of a vocabulary several times as large
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

// Computes the residual of the head from tokens and lane.draft.before.
void DecoderModel::enter_head(const Lane& lane, const Batch& batch) {
  const MtpWeights& head = ends().mtp[0];
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor joined = lane.draft.joined.top(batch.tokens);
  Ops& ops = *last().ops;
  ops.embed(x, *head.embedding, batch);
  ops.add_norm(joined.columns(0, config_.width), x, {}, head.embedding_norm, config_.eps);
  ops.add_norm(joined.columns(config_.width, config_.width), lane.draft.before.top(batch.tokens),
               {}, head.hidden_norm, config_.eps);
  const LinearPart in[] = {{&head.eh_proj, nullptr, x}};
  ops.linear(in, joined);
}

void DecoderModel::keep_entries(const Lane& lane, const Batch& batch,
                                const SequenceMemory& memory) {
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor h = lane.normed.top(batch.tokens);
  Ops& ops = *last().ops;
  ops.add_norm(h, x, {}, ends().output_norm, config_.eps);
  ops.hidden_before(lane.draft.before.top(batch.tokens), h, memory.hidden, batch);
  ops.hidden_keep(memory.hidden, h, batch);
  enter_head(lane, batch);
  const LayerWeights& w = ends().mtp[0].layer;
  const KvLayer& kv = head_cells(config_, memory);
  attention_store(ops, x, h, {w.mixer_norm, config_.eps},
                  lane.ropes[config_.mtp[0].attention.rope].top(batch.tokens), w.attention,
                  head_params(config_), kv, lane.draft.layer.attention, batch.of_group(kv.group));
}

void DecoderModel::draft(Tensor logits, const Batch& batch, const SequenceMemory& memory,
                         bool first) {
  const Lane& lane = last().whole;
  BRAID_CHECK(config_.drafts() && batch.tokens <= lane.residual.rows);
  Ops& ops = *last().ops;
  const MtpWeights& head = ends().mtp[0];
  const LayerConfig& config = config_.mtp[0];
  const LayerWeights& w = head.layer;
  const Tensor x = lane.residual.top(batch.tokens);
  const Tensor h = lane.normed.top(batch.tokens);
  const Tensor before = lane.draft.before.top(batch.tokens);
  const Tensor rope = lane.ropes[config.attention.rope].top(batch.tokens);
  ops.rope_table(rope, config_.ropes[config.attention.rope], batch);
  if (first) ops.hidden_before(before, {}, memory.hidden, batch);
  enter_head(lane, batch);
  const KvLayer& kv = head_cells(config_, memory);
  const AttentionScratch& scratch = lane.draft.layer.attention;
  attention_in(ops, x, h, {w.mixer_norm, config_.eps}, rope, w.attention, head_params(config_), kv,
               scratch, batch.of_group(kv.group), true);
  attention_out(ops, {x}, w.attention, scratch);
  if (w.mlp.gate || w.moe.router)
    feed_forward_block(ops, x, h, {w.ffn_norm, config_.eps}, config, w, lane.draft.layer, {x},
                       batch);
  ops.add_norm(before, x, {}, head.head_norm, config_.eps);  // input of the next draft()
  ops.add_norm(h, x, {}, head.head_norm, config_.eps);
  BRAID_CHECK(logits.cols == draft_columns());
  ops.logits(logits.top(batch.tokens), head.draft_rows ? head.draft_rows : *head.head, h);
}

// Call before loading.
void DecoderModel::choose_draft_vocabulary(int32_t wanted) {
  if (wanted == ModelOptions::kDraftTokensByModel)
    wanted = config_.vocabulary >= 4 * kDraftTokens ? kDraftTokens : 0;
  if (!config_.drafts() || wanted == 0 || wanted >= config_.vocabulary) return;
  config_.draft_vocabulary = wanted;
  MtpWeights& head = weights_.mtp[0];
  std::vector<RowRun> rows;
  for (int64_t row = 0; row < wanted; ++row) rows.push_back({row, 1});
  head.draft_rows = rows_of(*head.head, rows, " (drafts)");
  head.draft_rows.is_table = false;
  head.draft_rows.is_product = true;
}

Status DecoderModel::load_draft_vocabulary() {
  if (config_.draft_vocabulary == 0) return {};
  const auto count = static_cast<size_t>(config_.draft_vocabulary);
  BRAID_ASSIGN(draft_tokens_, last().device->allocate(count * sizeof(int32_t), "draft vocabulary"));
  BRAID_ASSIGN(draft_tokens_on_host_,
               last().device->allocate_host(count * sizeof(int32_t), "draft vocabulary"));
  auto* tokens = static_cast<int32_t*>(draft_tokens_on_host_.data());
  std::iota(tokens, tokens + count, 0);
  change_draft_rows({});
  last().device->synchronize();
  return last().device->health();
}

const int32_t* DecoderModel::draft_token_of() const {
  return static_cast<const int32_t*>(draft_tokens_.data());
}

void DecoderModel::change_draft_rows(std::span<const DraftRow> changes) {
  Weight& w = mtp().draft_rows;
  auto* tokens = static_cast<int32_t*>(draft_tokens_on_host_.data());
  std::vector<int32_t> rows;
  for (const DraftRow& change : changes) {
    rows.push_back(change.row);
    tokens[change.row] = change.token;
    w.runs[static_cast<size_t>(change.row)].first = change.token;
  }
  last().device->copy_rows(w, *mtp().head, rows);
  last().device->to_device(draft_tokens_.data(), tokens, draft_tokens_.size_bytes());
}

}  // namespace braid
