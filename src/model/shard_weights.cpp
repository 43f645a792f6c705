// shard_weights.cpp -- see shard_weights.h.
#include "model/shard_weights.h"

#include <algorithm>

#include "model/weight_parts.h"

namespace braid {
namespace {

int64_t block_elements(const Weight& w) { return w ? block_elems(w.type) : 1; }

ColumnBlocks::Layer blocks_of(const LayerWeights& layer) {
  ColumnBlocks::Layer blocks;
  blocks.output =
      std::max(block_elements(layer.attention.output), block_elements(layer.delta.output));
  blocks.down = std::max(block_elements(layer.mlp.down), block_elements(layer.moe.down));
  blocks.shared = block_elements(layer.moe.shared_down);
  return blocks;
}

void take_rows(Weight& to, const Weight& from, const std::vector<RowRun>& rows) {
  if (from && !rows.empty()) to = rows_of(from, rows);
}

void take_columns(Weight& to, const Weight& from, const std::vector<ColumnRun>& columns) {
  if (from && !columns.empty()) to = columns_of(from, columns);
}

class Sharding {
 public:
  Sharding(const ModelWeights& whole, ModelWeights& out) : whole_(whole), out_(out) {}

  // Rows of a vector [rows][per_row], or all.
  void vector(const float*& to, const float* const& from, const std::vector<RowRun>& rows = {},
              int64_t per_row = 1) {
    const std::span<const float> values = whole_.vector_values(from);
    if (values.empty()) return;
    std::vector<RowRun> taken = rows;
    if (rows.empty()) taken = {{0, std::ssize(values) / per_row}};
    int64_t count = 0;
    for (const RowRun& run : taken) count += run.count;
    float* at = out_.add_vector(to, static_cast<size_t>(count * per_row), layer_).data();
    for (const RowRun& run : taken) {
      const auto part = values.subspan(static_cast<size_t>(run.first * per_row),
                                       static_cast<size_t>(run.count * per_row));
      at = std::copy(part.begin(), part.end(), at);
    }
  }

  void end_trunk() { layer_ = ModelWeights::kLastStage; }

  void whole_head(MtpWeights& to, const MtpWeights& from) {
    to = from;
    to.embedding = from.own_embedding ? &to.own_embedding : &out_.embedding;
    to.head = from.own_head ? &to.own_head : &out_.head();
    vector(to.embedding_norm, from.embedding_norm);
    vector(to.hidden_norm, from.hidden_norm);
    vector(to.head_norm, from.head_norm);
    vector(to.layer.mixer_norm, from.layer.mixer_norm);
    vector(to.layer.ffn_norm, from.layer.ffn_norm);
    vector(to.layer.attention.norms.q_norm, from.layer.attention.norms.q_norm);
    vector(to.layer.attention.norms.k_norm, from.layer.attention.norms.k_norm);
    vector(to.layer.moe.route_bias, from.layer.moe.route_bias);
    vector(to.layer.moe.shared_scale, from.layer.moe.shared_scale);
  }

  void layer(int32_t number, LayerWeights& to, const LayerWeights& from, const LayerShard& s) {
    layer_ = number;
    vector(to.mixer_norm, from.mixer_norm);
    vector(to.ffn_norm, from.ffn_norm);
    attention(to.attention, from.attention, s);
    delta(to.delta, from.delta, s);
    take_rows(to.mlp.gate, from.mlp.gate, s.hidden);
    take_rows(to.mlp.up, from.mlp.up, s.hidden);
    take_columns(to.mlp.down, from.mlp.down, s.hidden);
    moe(to.moe, from.moe, s);
  }

 private:
  void attention(AttentionBlock& to, const AttentionBlock& from, const LayerShard& s) {
    take_rows(to.q, from.q, s.query_rows);
    take_rows(to.k, from.k, s.kv_rows);
    take_rows(to.v, from.v, s.kv_rows);
    take_rows(to.gate, from.gate, s.gate_rows);
    take_columns(to.output, from.output, s.query_columns);
    vector(to.norms.q_norm, from.norms.q_norm);
    vector(to.norms.k_norm, from.norms.k_norm);
    to.norms.eps = from.norms.eps;
  }

  void delta(DeltaBlock& to, const DeltaBlock& from, const LayerShard& s) {
    if (!from.qkv) return;
    take_rows(to.qkv, from.qkv, s.qkv_rows);
    take_rows(to.z, from.z, s.value_rows);
    take_rows(to.alpha, from.alpha, s.value_heads);
    take_rows(to.beta, from.beta, s.value_heads);
    take_columns(to.output, from.output, s.value_rows);
    const int64_t taps = std::ssize(whole_.vector_values(from.small.conv)) / from.qkv.n;
    vector(to.small.conv, from.small.conv, s.qkv_rows, taps);
    vector(to.small.a, from.small.a, s.value_heads);
    vector(to.small.dt, from.small.dt, s.value_heads);
    vector(to.small.norm, from.small.norm);
    to.small.eps = from.small.eps;
  }

  void moe(MoeBlock& to, const MoeBlock& from, const LayerShard& s) {
    if (!from.router) return;
    to.router = from.router;
    vector(to.route_bias, from.route_bias);
    to.first_expert = static_cast<int32_t>(s.experts.first);
    take_rows(to.gate, experts_of(from.gate, s.experts), s.hidden);
    take_rows(to.up, experts_of(from.up, s.experts), s.hidden);
    take_columns(to.down, experts_of(from.down, s.experts), s.hidden);
    take_rows(to.shared_gate, from.shared_gate, s.shared_hidden);
    take_rows(to.shared_up, from.shared_up, s.shared_hidden);
    take_columns(to.shared_down, from.shared_down, s.shared_hidden);
    if (to.shared_gate) vector(to.shared_scale, from.shared_scale);
  }

  const ModelWeights& whole_;
  ModelWeights& out_;
  int32_t layer_ = ModelWeights::kLastStage;
};

}  // namespace

ColumnBlocks column_blocks(const ModelWeights& weights) {
  ColumnBlocks blocks;
  for (const LayerWeights& layer : weights.layers) blocks.layers.push_back(blocks_of(layer));
  for (const MtpWeights& head : weights.mtp) {
    blocks.mtp.push_back(blocks_of(head.layer));
    blocks.mtp.back().eh_proj = block_elements(head.eh_proj);
  }
  return blocks;
}

void shard_trunk(const ModelWeights& whole, const ShardMap& map, int rank, ModelWeights& out) {
  BRAID_CHECK(!whole.vector_values(whole.output_norm).empty());  // gone once loaded
  BRAID_CHECK(rank >= 0 && rank < map.ranks() && !out.embedding && out.layers.empty());
  Sharding sharding(whole, out);
  out.has_head_ = rank == 0;
  out.embedding = whole.embedding;
  out.embedding.is_product = rank == 0 && !whole.own_head;
  out.layers = std::vector<LayerWeights>(whole.layers.size());
  for (size_t i = 0; i < whole.layers.size(); ++i)
    sharding.layer(static_cast<int32_t>(i), out.layers[i], whole.layers[i], map.layer(rank, i));
  sharding.end_trunk();
  if (rank == 0) {
    out.own_head = whole.own_head;
    sharding.vector(out.output_norm, whole.output_norm);
    out.mtp = std::vector<MtpWeights>(whole.mtp.size());
    for (size_t i = 0; i < whole.mtp.size(); ++i) sharding.whole_head(out.mtp[i], whole.mtp[i]);
  }
  out.count_parameters(whole.trunk_parameters(), whole.mtp_parameters());
}

void shard(const ModelWeights& whole, const ShardMap& map, int rank, ModelWeights& out) {
  BRAID_CHECK(!whole.vector_values(whole.output_norm).empty());  // gone once loaded
  BRAID_CHECK(rank >= 0 && rank < map.ranks() && !out.embedding && out.layers.empty());
  Sharding sharding(whole, out);
  const std::vector<RowRun> tokens = {map.vocabulary(rank)};
  take_rows(out.embedding, whole.embedding, tokens);
  take_rows(out.own_head, whole.own_head, tokens);
  out.layers = std::vector<LayerWeights>(whole.layers.size());
  for (size_t i = 0; i < whole.layers.size(); ++i)
    sharding.layer(static_cast<int32_t>(i), out.layers[i], whole.layers[i], map.layer(rank, i));
  sharding.end_trunk();
  sharding.vector(out.output_norm, whole.output_norm);
  out.mtp = std::vector<MtpWeights>(whole.mtp.size());
  for (size_t i = 0; i < whole.mtp.size(); ++i) {
    const MtpWeights& from = whole.mtp[i];
    MtpWeights& to = out.mtp[i];
    take_columns(to.eh_proj, from.eh_proj, map.mtp(rank, i).joined_columns);
    sharding.vector(to.embedding_norm, from.embedding_norm);
    sharding.vector(to.hidden_norm, from.hidden_norm);
    sharding.vector(to.head_norm, from.head_norm);
    take_rows(to.own_embedding, from.own_embedding, tokens);
    take_rows(to.own_head, from.own_head, tokens);
    to.embedding = to.own_embedding ? &to.own_embedding : &out.embedding;
    to.head = to.own_head ? &to.own_head : &out.head();
    std::vector<RowRun> slots;
    for (int64_t slot = rank; slot < from.draft_rows.n; slot += map.ranks())
      slots.push_back({slot, 1});
    take_rows(to.draft_rows, from.draft_rows, slots);
    sharding.layer(ModelWeights::kLastStage, to.layer, from.layer, map.mtp(rank, i));
  }
  out.count_parameters(whole.trunk_parameters(), whole.mtp_parameters());
}

}  // namespace braid
