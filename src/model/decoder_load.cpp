// decoder_load.cpp -- from the described weights to loaded parts of stages and ranks.
#include <fmt/format.h>

#include <algorithm>

#include "model/decoder_model.h"
#include "model/shard_map.h"
#include "model/shard_weights.h"

namespace braid {

Status DecoderModel::split(const ModelSplit& split) {
  const std::vector<int32_t>& first = split.first_layers;
  BRAID_CHECK(stages_.empty() && !first.empty() && first[0] == 0 && split.ranks > 0);
  split_ = split;
  shards_.clear();
  config_.stages = static_cast<int32_t>(first.size());
  for (size_t i = 0, stage = 0; i < config_.layers.size(); ++i) {
    while (stage + 1 < first.size() && first[stage + 1] <= static_cast<int32_t>(i)) ++stage;
    config_.layers[i].stage = static_cast<int32_t>(stage);
  }
  if (split.ranks > 1) BRAID_TRY(make_shards());
  for (int32_t rank = 0; rank < split.ranks; ++rank)
    weights_of(rank).split(config_of(rank), split.drafts_embed && rank == 0);
  return {};
}

// Rank 0 has all that is before and after the trunk; every rank has the token table.
Status DecoderModel::make_shards() {
  ModelConfig trunk = config_;
  trunk.mtp.clear();
  trunk.drafter.clear();
  ColumnBlocks blocks = column_blocks(weights_);
  blocks.mtp.clear();
  BRAID_ASSIGN(const ShardMap map, ShardMap::make(trunk, blocks, split_.ranks, split_.rank_ratio));
  for (int32_t rank = 0; rank < split_.ranks; ++rank) {
    auto shard_of = std::make_unique<Shard>(file_);
    shard_of->config = map.config(rank);
    shard_of->config.vocabulary = config_.vocabulary;
    shard_of->config.draft_vocabulary = config_.draft_vocabulary;
    if (rank == 0) {
      shard_of->config.mtp = config_.mtp;
      shard_of->config.drafter = config_.drafter;
    }
    shard_trunk(weights_, map, rank, shard_of->weights);
    shards_.push_back(std::move(shard_of));
  }
  return {};
}

Status DecoderModel::load(std::span<Device* const> devices, const StepSizes& sizes,
                          const ModelWeights::Progress& progress) {
  BRAID_CHECK(stages_.empty());
  BRAID_CHECK(static_cast<int32_t>(devices.size()) == config_.stages * ranks());
  const auto count = static_cast<uint64_t>(ranks());
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    std::vector<Device*> own;
    for (int32_t stage = 0; stage < config_.stages; ++stage)
      own.push_back(devices[static_cast<size_t>(stage * ranks() + rank)]);
    const auto number = static_cast<uint64_t>(rank);
    const auto all_progress = [&](uint64_t done, uint64_t total) {
      progress(number * total + done, count * total);
    };
    BRAID_TRY(weights_of(rank).load(own, rank + 1 == ranks(),
                                    progress ? all_progress : ModelWeights::Progress()));
  }
  StepCursor begin;
  for (int32_t number = 0; number < config_.stages; ++number) {
    Stage& stage = stages_.emplace_back();
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      Part& part = stage.parts.emplace_back();
      part.rank = rank;
      part.index = number * ranks() + rank;
      part.device = devices[static_cast<size_t>(part.index)];
      BRAID_TRY(load_part(part, number, sizes));
    }
    stage.begin = begin;
    stage.end = config_.first_layer(number + 1);
    for (begin.layer = std::max(begin.layer, 0); begin.layer < stage.end; ++begin.layer)
      ++(config_.layers[static_cast<size_t>(begin.layer)].kind == LayerKind::delta ? begin.delta
                                                                                   : begin.kv);
    ++begin.stage;
    if (ranks() > 1) BRAID_TRY(connect(stage, sizes));
  }
  return load_draft_vocabulary();
}

Status DecoderModel::load_part(Part& part, int32_t stage, const StepSizes& sizes) {
  const DType activations = part.device->activation_type();
  BRAID_ASSIGN(
      part.activations,
      part.device->allocate(activation_bytes(stage, part.rank, sizes, activations), "activations"));
  auto* base = static_cast<std::byte*>(part.activations.data());
  base += place(stage, part.rank, part.whole, base, sizes.tokens, sizes.outputs, sizes.slots,
                activations);
  place(stage, part.rank, part.interleaved, base, sizes.interleaved_tokens,
        sizes.interleaved_tokens, 1, activations);
  part.ops = &part.device->ops();
  part.config = &config_of(part.rank);
  part.weights = &weights_of(part.rank);
  return {};
}

// Lanes of letters: whole steps, interleaved steps.
Status DecoderModel::connect(Stage& stage, const StepSizes& sizes) {
  std::vector<Device*> ranks;
  for (const Part& part : stage.parts) ranks.push_back(part.device);
  const LaneNeeds lanes[] = {{sizes.tokens, config_.width, DType::f32},
                             {std::max(1, sizes.interleaved_tokens), config_.width, DType::f32}};
  BRAID_ASSIGN(stage.exchange, ranks[0]->connect(ranks, lanes));
  return {};
}

// Each of two halves has a place for whole rows, and for few rows with their flags of every rank.
size_t DecoderModel::exchange_bytes(const StepSizes& sizes) const {
  const auto row_bytes = static_cast<size_t>(Letter::pitch_of(config_.width, DType::f32)) * 4;
  const auto rows = static_cast<size_t>(sizes.tokens + std::max(1, sizes.interleaved_tokens));
  const auto few = static_cast<size_t>(ranks()) * kMostFewRows * 2;
  return 2 * row_bytes * (rows + 2 * few);
}

void DecoderModel::stop() {
  for (Stage& stage : stages_)
    if (stage.exchange != nullptr) stage.exchange->stop();
}

// Stages take their turns together, so that one number serves all.
int32_t DecoderModel::next_turn() {
  int32_t turn = 0;
  for (Stage& stage : stages_)
    if (stage.exchange != nullptr) turn = stage.exchange->next_turn();
  return turn;
}

}  // namespace braid
