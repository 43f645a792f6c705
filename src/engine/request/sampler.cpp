// sampler.cpp -- see sampler.h.
#include "engine/request/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/request/noise.h"

namespace braid {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kNeverBias = -100.0f;

// Of a merged bias. Never stays never, whatever the logit is.
float biased(float logit, float bias) { return bias == kNever || logit == kNever ? kNever : logit + bias; }

bool better(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

// Index of the largest number; ties to the lowest; -1 when there is none above minus infinity.
int32_t largest(std::span<const float> logits) {
  int32_t best = -1;
  float value = kNever;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > value) {
      value = logits[i];
      best = static_cast<int32_t>(i);
    }
  return best;
}

Error out_of_range(const char* name, double value, const char* range) {
  return {ErrorKind::invalid_argument, fmt::format("{} {:g} is not {}", name, value, range)};
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocabulary) {
  // Written so that NaN fails.
  if (!(p.temperature >= 0 && p.temperature <= 100))
    return out_of_range("temperature", p.temperature, "between 0 and 100");
  if (!(p.top_p >= 0 && p.top_p <= 1)) return out_of_range("top-p", p.top_p, "between 0 and 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return out_of_range("min-p", p.min_p, "between 0 and 1");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10))
    return out_of_range("repetition penalty", p.repetition_penalty, "above 0 and at most 10");
  if (!(std::abs(p.presence_penalty) <= 100))
    return out_of_range("presence penalty", p.presence_penalty, "between -100 and 100");
  if (!(std::abs(p.frequency_penalty) <= 100))
    return out_of_range("frequency penalty", p.frequency_penalty, "between -100 and 100");
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocabulary)
      return Error{ErrorKind::invalid_argument,
                   fmt::format("logit bias for token {}: the vocabulary has {} tokens", id, vocabulary)};
    if (std::isnan(bias)) return out_of_range("logit bias", bias, "a number");
  }
  return {};
}

void merge_biases(std::vector<std::pair<int32_t, float>>& biases) {
  const auto ascending = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(biases.begin(), biases.end(), ascending);
  size_t kept = 0;
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto [id, bias] = biases[i];
    const float amount = bias <= kNeverBias ? kNever : bias;
    if (kept == 0 || biases[kept - 1].first != id) {
      biases[kept++] = {id, amount};
    } else {
      biases[kept - 1].second = biased(biases[kept - 1].second, amount);
    }
  }
  biases.resize(kept);
}

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt)
    : params_(params), position_(static_cast<int32_t>(prompt.size())) {
  merge_biases(params_.logit_bias);
  const auto& biases = params_.logit_bias;
  raises_logits_ = std::any_of(biases.begin(), biases.end(), [](const auto& b) { return b.second > 0; }) ||
                   params_.repetition_penalty < 1 || params_.presence_penalty < 0 ||
                   params_.frequency_penalty < 0;
  if (params_.repetition_penalty == 1.0f || params_.penalty_last_n == 0) return;
  if (params_.penalty_last_n > 0) {
    const size_t kept = std::min(prompt.size(), static_cast<size_t>(params_.penalty_last_n));
    prompt = prompt.last(kept);
    history_.assign(prompt.begin(), prompt.end());
  }
  for (const int32_t id : prompt) ++in_window_[id];
}

void Sampler::accept(int32_t id) {
  ++position_;
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) ++generated_[id];
  if (params_.repetition_penalty == 1.0f || params_.penalty_last_n == 0) return;
  ++in_window_[id];
  if (params_.penalty_last_n < 0) return;
  history_.push_back(id);
  if (history_.size() > static_cast<size_t>(params_.penalty_last_n)) {
    const auto leaving = in_window_.find(history_[history_.size() - 1 - params_.penalty_last_n]);
    if (--leaving->second == 0) in_window_.erase(leaving);
  }
}

bool Sampler::changes_logits() const {
  return !params_.logit_bias.empty() || !in_window_.empty() || !generated_.empty();
}

namespace {

float repeated(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }
float generated_before(float logit, int32_t count, const SamplingParams& p) {
  return logit - (p.presence_penalty + p.frequency_penalty * static_cast<float>(count));
}

}  // namespace

const float* Sampler::bias_of(int32_t id) const {
  const auto& biases = params_.logit_bias;
  const auto found = std::lower_bound(biases.begin(), biases.end(), id,
                                      [](const auto& bias, int32_t wanted) { return bias.first < wanted; });
  return found != biases.end() && found->first == id ? &found->second : nullptr;
}

// One logit as apply_bias_and_penalties leaves it.
float Sampler::penalized(float logit, int32_t id) const {
  if (const float* bias = bias_of(id)) logit = biased(logit, *bias);
  if (in_window_.contains(id)) logit = repeated(logit, params_.repetition_penalty);
  const auto found = generated_.find(id);
  return found == generated_.end() ? logit : generated_before(logit, found->second, params_);
}

void Sampler::apply_bias_and_penalties(std::span<float> logits) const {
  const auto at = [&](int32_t id) -> float& { return logits[static_cast<size_t>(id)]; };
  for (const auto& [id, bias] : params_.logit_bias) at(id) = biased(at(id), bias);
  for (const auto& [id, count] : in_window_) at(id) = repeated(at(id), params_.repetition_penalty);
  for (const auto& [id, count] : generated_) at(id) = generated_before(at(id), count, params_);
}

void Sampler::distribution(std::span<const float> logits, SamplerScratch& scratch) const {
  weigh_row(logits, scratch);
  double total = 0;
  for (const Candidate& x : scratch.candidates) total += x.probability;
  for (Candidate& x : scratch.candidates) x.probability /= total;
}

// What may be drawn, with weights whose sum is not 1 yet.
void Sampler::weigh_row(std::span<const float> logits, SamplerScratch& scratch) const {
  scratch.candidates.clear();
  if (changes_logits()) {
    scratch.logits.assign(logits.begin(), logits.end());
    apply_bias_and_penalties(scratch.logits);
    logits = scratch.logits;
  }
  const int32_t best = largest(logits);
  if (best < 0) return;
  const double top = logits[static_cast<size_t>(best)];
  if (params_.temperature == 0 || !std::isfinite(top)) {
    scratch.candidates.push_back({best, 1.0});
    return;
  }
  collect(logits, scratch.candidates);
  soften(scratch.candidates, top);
}

// From logits to the weights that are drawn from; the largest is 1.
void Sampler::soften(std::vector<Candidate>& c, double top) const {
  for (Candidate& x : c)
    x.probability = std::exp((x.probability - top) / static_cast<double>(params_.temperature));
  truncate(c);
}

std::optional<int32_t> Sampler::next(const Scores& scores, std::span<const uint64_t> allowed,
                                     SamplerScratch& scratch) const {
  if (!scores.whole()) return next_of_best(scores, allowed, scratch.candidates);
  if (allowed.empty()) return next_of_row(scores.values, scratch);
  scratch.masked.resize(scores.values.size());
  for (size_t id = 0; id < scores.values.size(); ++id)
    scratch.masked[id] = (allowed[id / 64] >> (id % 64) & 1) != 0 ? scores.values[id] : kNever;
  return next_of_row(scratch.masked, scratch);
}

std::optional<int32_t> Sampler::next_of_best(const Scores& top, std::span<const uint64_t> allowed,
                                             std::vector<Candidate>& c) const {
  const auto best = static_cast<int32_t>(top.ids.size());
  const int32_t wanted = params_.temperature == 0 ? 1 : params_.top_k;
  if (wanted <= 0 || wanted > best || raises_logits_) return std::nullopt;
  if (!(top.values[0] > kNever)) return -1;
  const bool changes = changes_logits();
  c.clear();
  for (int32_t i = 0; i < best; ++i) {
    const auto id = static_cast<size_t>(top.ids[i]);
    if (!allowed.empty() && (allowed[id / 64] >> (id % 64) & 1) == 0) continue;
    const float logit = changes ? penalized(top.values[i], top.ids[i]) : top.values[i];
    if (logit > kNever) c.push_back({top.ids[i], logit});
    if (!changes && std::ssize(c) == wanted) break;
  }
  if (changes) std::sort(c.begin(), c.end(), better);
  if (changes || !allowed.empty()) {
    const float worst = top.values.back();  // of the others none is above
    if (worst > kNever && (std::ssize(c) < wanted || !(c[wanted - 1].probability > worst)))
      return std::nullopt;
    if (c.empty()) return -1;
  }
  if (std::ssize(c) > wanted) c.resize(static_cast<size_t>(wanted));
  const Candidate first = c[0];
  if (params_.temperature == 0 || !std::isfinite(first.probability)) return first.id;
  soften(c, first.probability);
  return draw(c);
}

// The top_k candidates (all without top-k), with their logits as `probability` for now.
void Sampler::collect(std::span<const float> logits, std::vector<Candidate>& c) const {
  const size_t limit = params_.top_k > 0 ? static_cast<size_t>(params_.top_k) : logits.size();
  size_t i = 0;
  for (; i < logits.size() && c.size() < limit; ++i)
    if (logits[i] > kNever) c.push_back({static_cast<int32_t>(i), logits[i]});
  if (i == logits.size()) return;
  // Later ids must beat the worst kept one: a heap with the worst on top. One comparison for nearly all of
  // them.
  std::make_heap(c.begin(), c.end(), better);
  for (; i < logits.size(); ++i) {
    if (!(logits[i] > c.front().probability)) continue;
    std::pop_heap(c.begin(), c.end(), better);
    c.back() = {static_cast<int32_t>(i), logits[i]};
    std::push_heap(c.begin(), c.end(), better);
  }
  std::sort(c.begin(), c.end(), better);
}

void Sampler::truncate(std::vector<Candidate>& c) const {
  if (params_.top_p < 1) {
    // The smallest set of most probable tokens that reaches top_p: sorted only as far as it is needed.
    double total = 0;
    for (const Candidate& x : c) total += x.probability;
    const double wanted = params_.top_p * total;
    double sum = 0;
    size_t kept = 0;
    size_t sorted = 0;
    while (kept < c.size() && (kept == 0 || sum < wanted)) {
      if (kept == sorted) {
        sorted = std::min(c.size(), std::max<size_t>(64, sorted * 8));
        std::partial_sort(c.begin() + static_cast<std::ptrdiff_t>(kept),
                          c.begin() + static_cast<std::ptrdiff_t>(sorted), c.end(), better);
      }
      sum += c[kept++].probability;
    }
    c.resize(kept);
  }
  if (params_.min_p > 0) {
    double top = 0;
    for (const Candidate& x : c) top = std::max(top, x.probability);
    std::erase_if(c, [&](const Candidate& x) { return x.probability < params_.min_p * top; });
  }
}

int32_t Sampler::next_of_row(std::span<const float> logits, SamplerScratch& scratch) const {
  if (params_.temperature == 0 && !changes_logits()) return largest(logits);
  weigh_row(logits, scratch);
  const auto& c = scratch.candidates;
  if (c.empty()) return -1;
  if (params_.temperature == 0) return c[0].id;
  return draw(c);
}

// The largest log p + Gumbel noise, as the largest p / e: e = -log u is exponential and at least 1 - u, which
// spares nearly all of a long list the logarithm. Ties to the lowest id, so the order of `c` does not matter.
int32_t Sampler::draw(std::span<const Candidate> c) const {
  TokenNoise noise(params_.seed, position_);
  int32_t winner = c[0].id;
  double largest = 0;
  for (const Candidate& x : c) {
    const double u = noise.uniform(x.id);
    if (x.probability < largest * (1 - u)) continue;
    const double score = x.probability / -std::log(u);
    if (score < largest || (score == largest && x.id > winner)) continue;
    largest = score;
    winner = x.id;
  }
  return winner;
}

namespace {

float log_probability_of_row(std::span<const float> logits, int32_t id) {
  const int32_t best = largest(logits);
  if (best < 0) return std::numeric_limits<float>::quiet_NaN();
  const double top = logits[static_cast<size_t>(best)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return static_cast<float>(logits[static_cast<size_t>(id)] - top - std::log(sum));
}

std::vector<std::pair<int32_t, float>> top_of_row(std::span<const float> logits, int32_t count) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto kept = std::min(ids.size(), static_cast<size_t>(std::max(count, 0)));
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<std::pair<int32_t, float>> out;
  if (kept == 0) return out;
  const double top = logits[static_cast<size_t>(ids[0])];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  for (size_t i = 0; i < kept; ++i)
    out.emplace_back(ids[i], static_cast<float>(logits[static_cast<size_t>(ids[i])] - top - std::log(sum)));
  return out;
}

}  // namespace

float log_probability(const Scores& scores, int32_t id) {
  if (scores.whole()) return log_probability_of_row(scores.values, id);
  for (size_t i = 0; i < scores.ids.size(); ++i)
    if (scores.ids[i] == id) return scores.values[i] - scores.log_sum;
  return std::numeric_limits<float>::quiet_NaN();
}

std::vector<std::pair<int32_t, float>> top_log_probabilities(const Scores& scores, int32_t count) {
  if (scores.whole()) return top_of_row(scores.values, count);
  std::vector<std::pair<int32_t, float>> out;
  for (size_t i = 0; i < std::min(scores.ids.size(), static_cast<size_t>(std::max(count, 0))); ++i)
    out.emplace_back(scores.ids[i], scores.values[i] - scores.log_sum);
  return out;
}

}  // namespace braid
