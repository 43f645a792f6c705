// sampler.cpp -- see sampler.h.
#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/noise.h"

namespace braid {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kNeverBias = -100.0f;

// kNever dominates any logit.
float biased(float logit, float bias) {
  return bias == kNever || logit == kNever ? kNever : logit + bias;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

// A top-k up to this is listed and processed in double.
constexpr int32_t kMostListed = 1024;
// Keeps 1 / temperature finite; the result is the same as for smaller temperatures.
constexpr float kLeastTemperature = 1e-30f;

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
      return Error{
          ErrorKind::invalid_argument,
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
  if (params_.temperature > 0)
    params_.temperature = std::max(params_.temperature, kLeastTemperature);
  merge_biases(params_.logit_bias);
  const auto& biases = params_.logit_bias;
  raises_logits_ =
      std::any_of(biases.begin(), biases.end(), [](const auto& b) { return b.second > 0; }) ||
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

double least_logit(const SamplingParams& p, double top) {
  return top + static_cast<double>(p.temperature) * std::log(static_cast<double>(p.min_p));
}

float repeated(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }
float generated_before(float logit, int32_t count, const SamplingParams& p) {
  return logit - (p.presence_penalty + p.frequency_penalty * static_cast<float>(count));
}

}  // namespace

const float* Sampler::bias_of(int32_t id) const {
  const auto& biases = params_.logit_bias;
  const auto found =
      std::lower_bound(biases.begin(), biases.end(), id,
                       [](const auto& bias, int32_t wanted) { return bias.first < wanted; });
  return found != biases.end() && found->first == id ? &found->second : nullptr;
}

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

void SamplerScratch::reserve(int64_t vocabulary) {
  row.reserve(static_cast<size_t>(vocabulary));
  best.reserve(kMostListed);
  candidates.reserve(kMostListed);
  scan.reserve(vocabulary);
}

// Returns `logits` itself if nothing changes them.
std::span<const float> Sampler::row_of(std::span<const float> logits,
                                       std::span<const uint64_t> allowed,
                                       std::vector<float>& changed) const {
  const bool changes = changes_logits();
  if (!changes && allowed.empty()) return logits;
  changed.assign(logits.begin(), logits.end());
  const size_t count = logits.size();
  for (size_t w = 0; w < allowed.size() && w * 64 < count; ++w) {
    if (allowed[w] == ~uint64_t{0}) continue;
    for (size_t i = w * 64; i < std::min(count, w * 64 + 64); ++i)
      if ((allowed[w] >> (i % 64) & 1) == 0) changed[i] = kNever;
  }
  if (changes) apply_bias_and_penalties(changed);
  return changed;
}

bool Sampler::lists_best() const { return params_.top_k > 0 && params_.top_k <= kMostListed; }

void Sampler::list(std::span<const float> row, SamplerScratch& scratch) const {
  scratch.scan.list_best(row, params_.top_k, scratch.best);
  scratch.candidates.clear();
  for (const Scored& x : scratch.best) scratch.candidates.push_back({x.id, x.logit});
}

Cut Sampler::cut_of(std::span<const float> row, float top, RowScan& scan) const {
  Cut cut;
  if (params_.top_k > 0) cut = scan.best(row, params_.top_k);
  if (params_.top_p < 1) cut = scan.heaviest(row, cut, top, params_.temperature, params_.top_p);
  if (params_.min_p > 0) {
    const double least = least_logit(params_, top);
    auto value = static_cast<float>(least);
    if (value < least) value = std::nextafter(value, std::numeric_limits<float>::infinity());
    cut = tighter(cut, {value, std::numeric_limits<int32_t>::max()});
  }
  return cut;
}

void Sampler::distribution(std::span<const float> logits, SamplerScratch& scratch) const {
  auto& c = scratch.candidates;
  c.clear();
  const std::span<const float> row = row_of(logits, {}, scratch.row);
  const int32_t largest = largest_of_row(row);
  if (largest < 0) return;
  const float top = row[static_cast<size_t>(largest)];
  if (params_.temperature == 0 || !std::isfinite(top)) {
    c.push_back({largest, 1.0});
    return;
  }
  if (lists_best()) {
    list(row, scratch);
    truncate(c);
  } else {
    const Cut cut = cut_of(row, top, scratch.scan);
    c.push_back({largest, top});
    for (int32_t id = 0; id < std::ssize(row); ++id)
      if (const float logit = row[static_cast<size_t>(id)]; id != largest && cut.keeps(logit, id))
        c.push_back({id, logit});
    soften(c);
  }
  double total = 0;
  for (const Candidate& x : c) total += x.probability;
  for (Candidate& x : c) x.probability /= total;
}

std::optional<int32_t> Sampler::next(const Scores& scores, std::span<const uint64_t> allowed,
                                     SamplerScratch& scratch) const {
  if (!scores.whole()) return next_of_best(scores, allowed, scratch.candidates);
  const std::span<const float> row = row_of(scores.values, allowed, scratch.row);
  const int32_t largest = largest_of_row(row);
  if (largest < 0 || params_.temperature == 0) return largest;
  const float top = row[static_cast<size_t>(largest)];
  if (!std::isfinite(top)) return largest;
  if (lists_best()) {
    list(row, scratch);
    truncate(scratch.candidates);
    return draw(scratch.candidates);
  }
  const Cut cut = cut_of(row, top, scratch.scan);
  return draw_of_row(row, cut, params_.temperature, largest, params_.seed, position_);
}

std::optional<int32_t> Sampler::next_of_best(const Scores& top, std::span<const uint64_t> allowed,
                                             std::vector<Candidate>& c) const {
  if (raises_logits_) return std::nullopt;
  if (!(top.values[0] > kNever)) return -1;
  const bool changes = changes_logits();
  const auto limit = static_cast<size_t>(params_.temperature == 0 ? 1 : std::max(params_.top_k, 0));
  c.clear();
  for (size_t i = 0; i < top.ids.size(); ++i) {
    const auto id = static_cast<size_t>(top.ids[i]);
    if (!allowed.empty() && (allowed[id / 64] >> (id % 64) & 1) == 0) continue;
    const float logit = changes ? penalized(top.values[i], top.ids[i]) : top.values[i];
    if (logit > kNever) c.push_back({top.ids[i], logit});
    if (!changes && c.size() == limit) break;
  }
  if (changes) std::sort(c.begin(), c.end(), better);
  const float worst = top.values.back();  // an upper bound for all others
  size_t sure = c.size();                 // leading part of c that no other token can enter
  if (worst > kNever && (changes || !allowed.empty()))
    while (sure > 0 && !(c[sure - 1].probability > worst)) --sure;
  if (c.empty() && !(worst > kNever)) return -1;
  if (sure == 0) return std::nullopt;
  if (params_.temperature == 0 || !std::isfinite(c[0].probability)) return c[0].id;
  if (limit > 0 && (sure >= limit || !(worst > kNever))) {
    c.resize(std::min(c.size(), limit));
    truncate(c);
  } else if (!cut_best(top, sure, !changes && allowed.empty() && limit == 0, c)) {
    return std::nullopt;
  }
  return draw(c);
}

namespace {

// How many weights reach `wanted`; c.size() + 1 if they do not.
size_t reaching(std::span<const Candidate> c, double wanted) {
  double sum = 0;
  for (size_t n = 0; n < c.size(); ++n) {
    sum += c[n].probability;
    if (sum >= wanted) return n + 1;
  }
  return c.size() + 1;
}

}  // namespace

// Truncates c, the best of a row, if the cut lies in the first `sure`. False: undecided.
bool Sampler::cut_best(const Scores& best, size_t sure, bool all_as_in_row,
                       std::vector<Candidate>& c) const {
  // Bounds the error of a device's sums, and of sums over whole rows.
  constexpr double kSlack = 2e-5;
  const double temperature = params_.temperature;
  const double top = c[0].probability;
  const double worst = best.values.back();
  const bool complete = !(worst > kNever);
  // Weight of the others at temperature 1, without penalties and masks.
  const double whole = std::exp(best.log_sum - top);
  double others = whole;
  for (const float x : best.values) others -= std::exp(x - top);
  others = complete ? 0 : std::max(others, 0.0);

  const size_t probable = probable_enough(c);
  soften(c);
  size_t shortest = c.size() + 1, longest = shortest;
  if (params_.top_p < 1) {
    double known = 0, sure_known = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      known += c[i].probability;
      if (i < sure) sure_known += c[i].probability;
    }
    const bool as_weighed = temperature == 1 && all_as_in_row && !complete;
    const double slack = kSlack * (complete ? known : whole);
    const double least = as_weighed ? known + others - slack
                                    : (params_.top_k > 0 ? sure_known : known) - kSlack * known;
    // All others are at most `worst`, so weight^power with power >= 1 is largest there.
    double most = known + slack;
    if (!complete)
      most = temperature > 1 ? std::numeric_limits<double>::infinity()
                             : most + others * std::exp((worst - top) * (1 / temperature - 1));
    const std::span<const Candidate> first = std::span(c).first(sure);
    shortest = reaching(first, params_.top_p * least);
    longest = most <= std::numeric_limits<double>::max() ? reaching(first, params_.top_p * most)
                                                         : c.size() + 1;
    if (shortest > sure) shortest = longest = c.size() + 1;
    if (longest > sure) longest = c.size() + 1;
  }
  if (probable < sure || complete) {
    shortest = std::min(shortest, probable);
    longest = std::min(longest, probable);
  }
  if (shortest != longest || shortest > c.size()) return false;
  c.resize(std::max<size_t>(shortest, 1));
  return true;
}

size_t Sampler::probable_enough(std::span<const Candidate> c) const {
  if (!(params_.min_p > 0)) return c.size();
  const double least = least_logit(params_, c[0].probability);
  size_t n = 1;
  while (n < c.size() && c[n].probability >= least) ++n;
  return n;
}

void Sampler::soften(std::vector<Candidate>& c) const {
  const double top = c[0].probability;
  for (Candidate& x : c)
    x.probability = std::exp((x.probability - top) / static_cast<double>(params_.temperature));
}

// Applies top-p and min-p to top-k's candidates, best first; turns logits into weights.
void Sampler::truncate(std::vector<Candidate>& c) const {
  size_t kept = probable_enough(c);
  soften(c);
  if (params_.top_p < 1) {
    double total = 0;
    for (const Candidate& x : c) total += x.probability;
    kept = std::min(kept, reaching(c, params_.top_p * total));
  }
  c.resize(std::max<size_t>(kept, 1));
}

int32_t Sampler::draw(std::span<const Candidate> c) const {
  Draw draw(params_.seed, position_);
  for (const Candidate& x : c) draw.add(x.id, x.probability);
  return draw.winner();
}

double log_sum(const Scores& scores) {
  return scores.whole() ? log_sum_of_row(scores.values, largest_of_row(scores.values))
                        : scores.log_sum;
}

float log_probability(const Scores& scores, double log_sum, int32_t id) {
  if (scores.whole()) return static_cast<float>(scores.values[static_cast<size_t>(id)] - log_sum);
  for (size_t i = 0; i < scores.ids.size(); ++i)
    if (scores.ids[i] == id) return static_cast<float>(scores.values[i] - log_sum);
  return std::numeric_limits<float>::quiet_NaN();
}

void top_log_probabilities(const Scores& scores, double log_sum, int32_t count,
                           SamplerScratch& scratch, std::vector<std::pair<int32_t, float>>& out) {
  out.clear();
  if (scores.whole()) {
    scratch.scan.list_best(scores.values, count, scratch.best);
    for (const Scored& x : scratch.best)
      out.emplace_back(x.id, static_cast<float>(x.logit - log_sum));
    return;
  }
  for (size_t i = 0; i < std::min(scores.ids.size(), static_cast<size_t>(std::max(count, 0))); ++i)
    out.emplace_back(scores.ids[i], static_cast<float>(scores.values[i] - log_sum));
}

}  // namespace braid
