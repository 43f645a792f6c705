// tail_scorer.cpp -- see tail_scorer.h.
#include "engine/tail_scorer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace braid {
namespace {

bool sees_all(const LayerConfig& layer) {
  return layer.kind == LayerKind::attention && layer.attention.window == 0 &&
         layer.attention.heads <= kMostTailHeads;
}

}  // namespace

Result<std::unique_ptr<TailScorer>> TailScorer::create(Engine& engine,
                                                       const TailScoreOptions& options) {
  if (options.rows < 1 || options.rows > kMostTailRows || options.last_layers < 0)
    return Error{ErrorKind::invalid_argument, "tail scores take 1 to 16 rows"};
  if (engine.devices().count() != 1)
    return Error{ErrorKind::unsupported, "a model that scores prompts must be on one device"};
  std::unique_ptr<TailScorer> scorer(new TailScorer(engine, options));
  const std::vector<LayerConfig>& layers = engine.config().layers;
  std::vector<int32_t> usable;
  for (int32_t layer = 0; layer < static_cast<int32_t>(layers.size()); ++layer) {
    const LayerConfig& config = layers[static_cast<size_t>(layer)];
    if (config.kind == LayerKind::attention && scorer->first_layer_ < 0)
      scorer->first_layer_ = layer;
    if (sees_all(config)) usable.push_back(layer);
  }
  if (usable.empty())
    return Error{ErrorKind::unsupported,
                 "the model has no attention layer that sees all positions, so it cannot score "
                 "prompts"};
  const auto count = static_cast<int32_t>(usable.size());
  const int32_t skipped = options.last_layers > 0 ? std::max(0, count - options.last_layers) : 0;
  scorer->scored_from_ = usable[static_cast<size_t>(skipped)];
  BRAID_TRY(scorer->allocate());
  return scorer;
}

Status TailScorer::allocate() {
  Device& device = engine_.devices().first();
  positions_ = engine_.context_tokens();
  const size_t row_bytes = static_cast<size_t>(positions_) * sizeof(float);
  BRAID_ASSIGN(scores_memory_, device.allocate(static_cast<size_t>(options_.rows) * row_bytes,
                                               "scores of a prompt"));
  scores_ = {scores_memory_.data(), DType::f32, options_.rows, positions_, positions_};
  if (options_.angles) return {};
  std::vector<int32_t> numbers(static_cast<size_t>(positions_));
  std::iota(numbers.begin(), numbers.end(), 0);
  BRAID_ASSIGN(const Buffer places,
               device.allocate(numbers.size() * sizeof(int32_t), "positions of a prompt"));
  device.to_device(places.data(), numbers.data(), numbers.size() * sizeof(int32_t));
  Batch all;
  all.tokens = positions_;
  all.position = static_cast<const int32_t*>(places.data());
  for (const RopeParams& rope : engine_.config().ropes) {
    BRAID_ASSIGN(Buffer memory,
                 device.allocate(row_bytes * static_cast<size_t>(std::max(rope.dims, 1)),
                                 "angles of a prompt"));
    const Tensor table{memory.data(), DType::f32, positions_, rope.dims, rope.dims};
    if (rope.dims > 0) device.ops().rope_table(table, rope, all);
    ropes_.push_back(table);
    rope_memory_.push_back(std::move(memory));
  }
  device.synchronize();
  return device.health();
}

void TailScorer::begin(int32_t prompt_tokens) {
  BRAID_CHECK(prompt_tokens > 0 && prompt_tokens <= positions_);
  prompt_ = prompt_tokens;
  at_ = next_ = 0;
  const std::vector<float> zeros(static_cast<size_t>(options_.rows) *
                                 static_cast<size_t>(positions_));
  Device& device = engine_.devices().first();
  device.to_device(scores_memory_.data(), zeros.data(), zeros.size() * sizeof(float));
  device.synchronize();
}

void TailScorer::attention(int32_t layer, Tensor q, const KvLayer& kv, const Batch& batch) {
  const auto tokens = static_cast<int32_t>(q.rows);
  if (layer == first_layer_) {
    at_ = next_;
    next_ += tokens;
  }
  const int32_t tail = std::max(0, prompt_ - options_.rows);
  const int32_t first = std::max(at_, tail);
  const int32_t rows = std::min(at_ + tokens, prompt_) - first;
  const LayerConfig& config = engine_.config().layers[static_cast<size_t>(layer)];
  if (rows <= 0 || layer < scored_from_ || !sees_all(config)) return;
  Tensor scores = scores_.middle(first - tail, rows);
  scores.cols = prompt_;
  Tensor own, all;
  float magnitude = 1;
  if (!options_.angles) {
    const auto rope = static_cast<size_t>(config.attention.rope);
    all = ropes_[rope];
    own = all.middle(at_, tokens);
    magnitude = static_cast<float>(engine_.config().ropes[rope].magnitude);
  }
  engine_.devices().first().ops().tail_scores(scores, q.middle(first - at_, rows), own, all,
                                              magnitude, config.attention.params(), kv, batch);
}

Result<std::vector<float>> TailScorer::scores() {
  BRAID_CHECK(next_ >= prompt_);
  Device& device = engine_.devices().first();
  const auto rows = static_cast<size_t>(std::min(prompt_, options_.rows));
  const auto columns = static_cast<size_t>(positions_);
  std::vector<float> all(rows * columns);
  device.to_host(all.data(), scores_memory_.data(), all.size() * sizeof(float));
  device.synchronize();
  BRAID_TRY(device.health());
  std::vector<float> mean(static_cast<size_t>(prompt_));
  for (size_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += all[row * columns + i];
  for (float& score : mean) score /= static_cast<float>(rows);
  return mean;
}

}  // namespace braid
