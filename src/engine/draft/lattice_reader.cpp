// lattice_reader.cpp -- see lattice_reader.h.
#include "engine/draft/lattice_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/schedule/oracle.h"

namespace braid {
namespace {

// Without the spine, tokens per round for echo fall from 9.1 to 5.3 (22 drafts): for rows predicted
// together, the product along a path underestimates deep tokens.
constexpr float kLeastSpine = 0.1f;

// Removes what the sampler would not draw from the drafter's row.
void truncate(std::span<float> log_q, const SamplingParams& sampling, std::vector<size_t>& order) {
  order.resize(log_q.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return log_q[a] > log_q[b]; });
  const double least = log_q[order[0]] + std::log(static_cast<double>(sampling.min_p));
  double sum = 0;
  for (size_t rank = 0; rank < log_q.size(); ++rank) {
    float& own = log_q[order[rank]];
    const bool enough = sum >= sampling.top_p ||
                        (sampling.top_k > 0 && rank >= static_cast<size_t>(sampling.top_k));
    sum += std::exp(static_cast<double>(own));
    if (rank > 0 && (enough || own < least)) own = Lattice::kImpossible;
  }
}

// The best candidate gets its known acceptance; the others share the rest in proportion.
void trust(std::span<float> log_q, double acceptance) {
  const auto best = std::max_element(log_q.begin(), log_q.end());
  if (!std::isfinite(acceptance) || !std::isfinite(*best)) return;
  constexpr double kLeast = 1e-6;
  acceptance = std::clamp(acceptance, kLeast, 1 - kLeast);
  const double rest = std::max(1 - std::exp(double{*best}), kLeast);
  const auto change = static_cast<float>(std::log((1 - acceptance) / rest));
  for (float& x : log_q) x += change;
  *best = static_cast<float>(std::log(acceptance));
}

int32_t best_of(std::span<const float> log_q) {
  const auto best = std::max_element(log_q.begin(), log_q.end());
  return *best > Lattice::kImpossible ? static_cast<int32_t>(best - log_q.begin()) : -1;
}

}  // namespace

void LatticeReader::begin(const Sequence& sequence, LatticeKind kind, int32_t depths,
                          int32_t width) {
  sequence_ = &sequence;
  lattice_.reset(kind, depths, width);
}

void LatticeReader::set_row(int32_t d, int32_t parent, const Row& row) {
  const SamplingParams& sampling = sequence_->sampler.params();
  const bool drawn = sampling.temperature > 0;
  const double scale = drawn ? 1.0 / sampling.temperature : 1.0;
  const std::span<float> log_q = lattice_.log_q(d, parent);
  // At another temperature the mass outside the candidates is unknown.
  double whole = row.log_sum != nullptr ? *row.log_sum : 0;
  if (drawn || row.log_sum == nullptr) {
    const double most = *std::max_element(row.logits.begin(), row.logits.end());
    double sum = 0;
    for (const float x : row.logits) sum += std::exp((x - most) * scale);
    whole = most * scale + std::log(sum);
  }
  bool sound = true;
  for (size_t c = 0; c < log_q.size(); ++c) {
    lattice_.token(d, static_cast<int32_t>(c)) = row.tokens[c];
    log_q[c] = static_cast<float>(row.logits[c] * scale - whole);
    sound = sound && !std::isnan(log_q[c]);
  }
  // Rows with NaN give no drafts; the step will end their sequence.
  if (!sound) {
    std::fill(log_q.begin(), log_q.end(), Lattice::kImpossible);
    return;
  }
  if (drawn) {
    truncate(log_q, sampling, order_);
    lattice_.add_noise(sampling.seed, static_cast<int32_t>(sequence_->tokens.size()), d, parent);
  }
  if (row.acceptance != nullptr) trust(log_q, *row.acceptance);
  if (oracle_ != nullptr) oracle_->rate(*sequence_, d, log_q);
  const float least = std::log(options_.p_min);
  for (size_t c = 0; c < log_q.size(); ++c) {
    const bool is_token = row.tokens[c] >= 0 && row.tokens[c] < options_.vocabulary;
    if (!is_token || !std::isfinite(log_q[c]) || log_q[c] < least) log_q[c] = Lattice::kImpossible;
  }
}

int32_t LatticeReader::choose(int32_t d) {
  const int32_t best = best_of(lattice_.log_q(d, 0));
  lattice_.chosen(d) = std::max(best, 0);
  return best < 0 ? -1 : lattice_.token(d, best);
}

void LatticeReader::read(StepItem& item, int32_t most) {
  if (options_.trees) {
    builder_.build(lattice_, most, item.drafts, std::log(kLeastSpine));
  } else {
    read_chain(item, most);
  }
}

void LatticeReader::read_chain(StepItem& item, int32_t most) const {
  int32_t before = 0;
  for (int32_t d = 0; d < std::min(lattice_.depths(), most); ++d) {
    const int32_t parent = lattice_.kind() == LatticeKind::conditional && d > 0 ? before : 0;
    const std::span<const float> row = lattice_.log_q(d, parent);
    const int32_t best = best_of(row);
    if (best < 0) return;
    item.drafts.push_back({lattice_.token(d, best), d - 1, row[static_cast<size_t>(best)]});
    if (!lattice_.has_children(d, best)) return;
    before = best;
  }
}

}  // namespace braid
