// sampler_test.cpp -- distributions with hand-computed probabilities; chi-square tests of draws.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/threads.h"
#include "engine/noise.h"

namespace braid {
namespace {

SamplingParams plain() {
  SamplingParams p;
  p.temperature = 1;
  p.top_k = 0;
  p.top_p = 1;
  p.min_p = 0;
  return p;
}

std::vector<float> logs(std::initializer_list<double> probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

std::map<int32_t, double> distribution(const SamplingParams& params,
                                       const std::vector<float>& logits,
                                       const std::vector<int32_t>& prompt = {},
                                       const std::vector<int32_t>& answer = {}) {
  Sampler sampler(params, prompt);
  for (const int32_t id : answer) sampler.accept(id);
  SamplerScratch scratch;
  sampler.distribution(logits, scratch);
  std::map<int32_t, double> out;
  for (const Candidate& c : scratch.candidates) out[c.id] = c.probability;
  return out;
}

void expect_distribution(const std::map<int32_t, double>& got,
                         const std::map<int32_t, double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [id, p] : wanted) {
    ASSERT_TRUE(got.contains(id)) << id;
    EXPECT_NEAR(got.at(id), p, 1e-6) << id;
  }
}

TEST(Sampler, GreedyTakesTheLargestAndTiesGoToTheLowestId) {
  SamplingParams p = plain();
  p.temperature = 0;
  Sampler sampler(p, {});
  SamplerScratch scratch;
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 3, 2}, {}, scratch), 1);
  EXPECT_EQ(sampler.next(std::vector<float>{5, 3, 3, 5}, {}, scratch), 0);
  EXPECT_EQ(sampler.next(std::vector<float>{-4, -3, -9}, {}, scratch), 1);
}

TEST(Sampler, TemperatureOneIsTheSoftmax) {
  expect_distribution(distribution(plain(), logs({0.5, 0.3, 0.2})), {{0, 0.5}, {1, 0.3}, {2, 0.2}});
}

TEST(Sampler, TemperatureRaisesProbabilitiesToItsInverse) {
  SamplingParams p = plain();
  p.temperature = 0.5;
  const double sum = 0.25 + 0.09 + 0.04;
  expect_distribution(distribution(p, logs({0.5, 0.3, 0.2})),
                      {{0, 0.25 / sum}, {1, 0.09 / sum}, {2, 0.04 / sum}});
}

TEST(Sampler, TopKKeepsTheMostProbableWithTiesToTheLowestId) {
  SamplingParams p = plain();
  p.top_k = 2;
  expect_distribution(distribution(p, logs({0.1, 0.2, 0.5, 0.2})), {{2, 5.0 / 7}, {1, 2.0 / 7}});
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplingParams p = plain();
  p.top_p = 0.79f;
  expect_distribution(distribution(p, logs({0.1, 0.3, 0.5, 0.1})), {{2, 0.625}, {1, 0.375}});
  p.top_p = 0.81f;
  expect_distribution(distribution(p, logs({0.1, 0.3, 0.5, 0.1})),
                      {{2, 5.0 / 9}, {1, 3.0 / 9}, {0, 1.0 / 9}});
  p.top_p = 0;
  expect_distribution(distribution(p, logs({0.1, 0.3, 0.5, 0.1})), {{2, 1}});
}

TEST(Sampler, TopPOverALongTailSortsInPieces) {
  SamplingParams p = plain();
  p.top_p = 0.5f;
  const std::vector<float> flat(5000, 0.25f);
  const auto got = distribution(p, flat);
  ASSERT_EQ(got.size(), 2500u);
  EXPECT_EQ(got.begin()->first, 0);
  EXPECT_EQ(got.rbegin()->first, 2499);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  SamplingParams p = plain();
  p.min_p = 0.35f;
  expect_distribution(distribution(p, logs({0.1, 0.2, 0.5, 0.2})),
                      {{1, 2.0 / 9}, {2, 5.0 / 9}, {3, 2.0 / 9}});
}

TEST(Sampler, TruncationsApplyInOrder) {
  SamplingParams p = plain();
  p.top_k = 3;     // 0.4 0.3 0.2 -> renormalized 4/9 3/9 2/9
  p.top_p = 0.7f;  // 4/9 + 3/9 reaches 0.7
  expect_distribution(distribution(p, logs({0.4, 0.3, 0.2, 0.1})), {{0, 4.0 / 7}, {1, 3.0 / 7}});
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplingParams p = plain();
  p.repetition_penalty = 2;
  const std::vector<float> logits = {2, -1, 1};
  const auto got = distribution(p, logits, {0, 0}, {1});
  const double sum = std::exp(1) + std::exp(-2) + std::exp(1);
  expect_distribution(got,
                      {{0, std::exp(1) / sum}, {1, std::exp(-2) / sum}, {2, std::exp(1) / sum}});
}

TEST(Sampler, RepetitionPenaltySeesOnlyItsWindow) {
  SamplingParams p = plain();
  p.repetition_penalty = 2;
  p.penalty_last_n = 2;
  const std::vector<float> logits = {2, 2, 2, 2};
  const auto penalised = [&](const std::vector<int32_t>& prompt,
                             const std::vector<int32_t>& answer) {
    std::vector<int32_t> out;
    const auto got = distribution(p, logits, prompt, answer);
    for (const auto& [id, q] : got)
      if (q < 0.25) out.push_back(id);
    return out;
  };
  EXPECT_EQ(penalised({0, 1, 2}, {}), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(penalised({0, 1, 2}, {3}), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(penalised({0, 1, 2}, {3, 3, 0}), (std::vector<int32_t>{0, 3}));
}

TEST(Sampler, PresenceAndFrequencyCountTheAnswerOnly) {
  SamplingParams p = plain();
  p.presence_penalty = 0.5f;
  p.frequency_penalty = 0.25f;
  const std::vector<float> logits = {1, 1, 1};
  const auto got = distribution(p, logits, {0, 0, 0}, {1, 1, 2});
  const double a = std::exp(1.0), b = std::exp(1 - 0.5 - 0.5), c = std::exp(1 - 0.5 - 0.25);
  expect_distribution(got, {{0, a / (a + b + c)}, {1, b / (a + b + c)}, {2, c / (a + b + c)}});
}

TEST(Sampler, BiasIsAddedAndMinusHundredForbids) {
  SamplingParams p = plain();
  p.logit_bias = {{0, -100.0f}, {2, std::log(2.0f)}};
  expect_distribution(distribution(p, logs({0.5, 0.25, 0.25})), {{1, 1.0 / 3}, {2, 2.0 / 3}});
  p.temperature = 0;
  Sampler sampler(p, {});
  SamplerScratch scratch;
  EXPECT_EQ(sampler.next(logs({0.5, 0.3, 0.2}), {}, scratch), 2);
}

double chi_square(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  const auto wanted = distribution(params, logits);
  Sampler sampler(params, {});
  SamplerScratch scratch;
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    const int32_t id = *sampler.next(logits, {}, scratch);
    ++counts[id];
    sampler.accept(id);
  }
  double sum = 0;
  for (const auto& [id, p] : wanted) {
    const double expected = p * draws;
    sum += (counts[id] - expected) * (counts[id] - expected) / expected;
    counts.erase(id);
  }
  EXPECT_TRUE(counts.empty()) << "a token that is cut off was drawn";
  return sum;
}

TEST(Sampler, DrawsFollowTheDistribution) {
  SamplingParams p = plain();
  p.seed = 7;
  EXPECT_LT(chi_square(p, logs({0.5, 0.25, 0.15, 0.07, 0.03}), 200000), 18.5);  // 4 degrees, 0.1 %
  std::vector<float> row;
  for (int i = 0; i < 300; ++i) row.push_back(-0.02f * static_cast<float>((i * 7) % 300));
  EXPECT_LT(chi_square(p, row, 200000), 380);  // 299 degrees, 0.1 %
  p.top_k = 40;
  p.top_p = 0.9f;
  p.min_p = 0.5f;
  p.temperature = 0.7f;
  const size_t kept = distribution(p, row).size();
  ASSERT_EQ(kept, 25u);
  EXPECT_LT(chi_square(p, row, 200000), 51.2);  // 24 degrees, 0.1 %
}

TEST(Sampler, DrawsOfOnePositionFollowTheDistributionOverSeeds) {
  const auto logits = logs({0.5, 0.25, 0.15, 0.07, 0.03});
  const std::vector<double> wanted = {0.5, 0.25, 0.15, 0.07, 0.03};
  constexpr int kSeeds = 200000;
  std::vector<int> counts(5, 0);
  SamplingParams p = plain();
  SamplerScratch scratch;
  for (p.seed = 0; p.seed < kSeeds; ++p.seed)
    ++counts[static_cast<size_t>(*Sampler(p, {}).next(logits, {}, scratch))];
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) {
    const double expected = wanted[i] * kSeeds;
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(sum, 18.5);
}

TEST(Sampler, DrawsTheLargestLogitWithNoiseOfAllThatAreKept) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  SamplerScratch scratch;
  for (int round = 0; round < 300; ++round) {
    SamplingParams p = plain();
    p.seed = random();
    p.temperature = round % 2 == 0 ? 1.0f : 0.6f;
    p.top_k = round % 3 == 0 ? 30 : 0;
    p.top_p = round % 5 == 0 ? 0.8f : 1.0f;
    p.min_p = round % 7 == 0 ? 0.05f : 0.0f;
    std::vector<float> row(2000);
    for (float& x : row) x = 2 * normal(random);
    const std::vector<int32_t> before(static_cast<size_t>(round), 0);
    Sampler sampler(p, before);
    sampler.distribution(row, scratch);
    TokenNoise noise(p.seed, round);
    int32_t wanted = -1;
    double largest = -INFINITY;
    for (const Candidate& c : scratch.candidates) {
      const double score =
          row[static_cast<size_t>(c.id)] / static_cast<double>(p.temperature) + noise.gumbel(c.id);
      if (score > largest) {
        largest = score;
        wanted = c.id;
      }
    }
    EXPECT_EQ(sampler.next(row, {}, scratch), wanted) << round;
  }
}

TEST(Sampler, TheTokenOfAPositionDependsOnNothingThatWasTriedBefore) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  SamplingParams p = plain();
  p.seed = 99;
  SamplerScratch scratch;
  std::vector<int32_t> tokens;
  Sampler sampler(p, {});
  for (int position = 0; position < 200; ++position) {
    std::vector<float> row(300);
    for (float& x : row) x = normal(random);
    const int32_t id = *sampler.next(row, {}, scratch);
    EXPECT_EQ(sampler.next(row, {}, scratch), id) << "asked twice";
    EXPECT_EQ(Sampler(p, tokens).next(row, {}, scratch), id);
    std::vector<uint64_t> allowed(5);
    for (uint64_t& word : allowed)
      word = (uint64_t{random()} << 32 | random()) & 0xf0f0f0f0f0f0f0f0u;
    allowed[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    EXPECT_EQ(sampler.next(row, allowed, scratch), id);
    sampler.accept(id);
    tokens.push_back(id);
  }
}

// Equal noise draws equal tokens at least as often as (1 - d) / (1 + d), d the total variation.
TEST(Sampler, TheSameNoiseDrawsTheSameTokenFromADistributionNearby) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  SamplerScratch scratch;
  constexpr int kDraws = 20000;
  for (const float distance : {0.2f, 0.7f, 1.5f}) {
    std::vector<float> target(60), draft;
    for (float& x : target) x = 2 * normal(random);
    for (const float x : target) draft.push_back(x + distance * normal(random));
    SamplingParams p = plain();
    p.seed = 12;
    auto of_target = distribution(p, target);
    auto of_draft = distribution(p, draft);
    double d = 0, independent = 0;
    for (const auto& [id, q] : of_target) {
      d += std::abs(q - of_draft[id]) / 2;
      independent += q * of_draft[id];
    }
    Sampler sampler(p, {});
    int equal = 0;
    for (int i = 0; i < kDraws; ++i) {
      equal += sampler.next(target, {}, scratch) == sampler.next(draft, {}, scratch) ? 1 : 0;
      sampler.accept(0);
    }
    const double rate = static_cast<double>(equal) / kDraws;
    EXPECT_GT(rate, (1 - d) / (1 + d) - 0.01) << "total variation " << d;
    EXPECT_LT(rate, 1 - d + 0.01);
    EXPECT_GT(rate, 1.5 * independent);
  }
}

struct Best {
  std::vector<float> values;
  std::vector<int32_t> ids;
  float log_sum = 0;
  Scores top() const {
    Scores scores(values);
    scores.ids = ids;
    scores.log_sum = log_sum;
    return scores;
  }
};
Best best_of(const std::vector<float>& row, size_t count) {
  Best best;
  best.log_sum = static_cast<float>(log_sum(row));
  best.ids.resize(row.size());
  std::iota(best.ids.begin(), best.ids.end(), 0);
  std::stable_sort(best.ids.begin(), best.ids.end(),
                   [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  best.ids.resize(count);
  for (const int32_t id : best.ids) best.values.push_back(row[static_cast<size_t>(id)]);
  return best;
}

TEST(Sampler, TheBestLogitsDecideAsTheWholeRowOrNotAtAll) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  constexpr size_t kVocabulary = 1000;
  int decided = 0;
  int undecided = 0;
  for (int round = 0; round < 400; ++round) {
    SamplingParams p;
    p.temperature = round % 4 == 0 ? 0.0f : 0.8f;
    p.top_k = round % 3 == 0 ? 60 : 20;
    p.presence_penalty = round % 5 == 1 ? 1.5f : 0.0f;
    p.frequency_penalty = round % 5 == 2 ? 0.4f : 0.0f;
    p.repetition_penalty = round % 5 == 3 ? 1.3f : 1.0f;
    p.seed = static_cast<uint64_t>(round);
    if (round % 7 == 0) p.logit_bias = {{5, -2.0f}, {6, -100.0f}, {900, -1.0f}};
    Sampler from_row(p, std::vector<int32_t>{1, 2, 3, 4});
    Sampler from_best = from_row;
    SamplerScratch scratch;
    for (int step = 0; step < 12; ++step) {
      std::vector<float> row(kVocabulary);
      for (float& x : row) x = std::round(8 * normal(random)) / 4;  // many ties
      if (round % 11 == 0) row.assign(kVocabulary, -std::numeric_limits<float>::infinity());
      if (round % 11 == 0) row[7] = row[8] = row[9] = 1.0f;
      std::vector<uint64_t> allowed;
      if (round % 2 == 1) {
        allowed.resize((kVocabulary + 63) / 64);
        for (uint64_t& word : allowed)
          word = random() % 3 == 0 ? 0x0f0f0f0f0f0f0f0fu : ~uint64_t{0};
      }
      std::vector<float> masked = row;
      for (size_t id = 0; id < row.size() && !allowed.empty(); ++id)
        if ((allowed[id / 64] >> (id % 64) & 1) == 0)
          masked[id] = -std::numeric_limits<float>::infinity();
      const Best best = best_of(row, 64);
      const std::optional<int32_t> early = from_best.next(best.top(), allowed, scratch);
      const int32_t wanted = *from_row.next(masked, {}, scratch);
      ++(early ? decided : undecided);
      const int32_t got = early ? *early : *from_best.next(masked, {}, scratch);
      ASSERT_EQ(got, wanted) << "round " << round << " step " << step;
      if (wanted < 0) break;
      from_row.accept(wanted);
      from_best.accept(got);
    }
  }
  EXPECT_GT(decided, 2000);
  EXPECT_GT(undecided, 20);
}

TEST(Sampler, WhatMayRiseNeedsTheWholeRow) {
  const Best best = best_of(std::vector<float>{1, 5, 4, 3, 2}, 3);
  SamplerScratch scratch;
  for (int what = 0; what < 5; ++what) {
    SamplingParams p = plain();
    p.top_k = 2;
    if (what == 0) p.logit_bias = {{0, 1.0f}};
    if (what == 1) p.repetition_penalty = 0.5f;
    if (what == 2) p.presence_penalty = -1;
    if (what == 3) p.frequency_penalty = -1;
    if (what == 4) p.top_k = 0;
    EXPECT_FALSE(Sampler(p, {}).next(best.top(), {}, scratch).has_value()) << what;
  }
}

TEST(Sampler, BiasesOfATokenAddUpAndAreLookedUp) {
  std::vector<std::pair<int32_t, float>> biases = {{7, 1.0f},   {3, -60.0f}, {7, 0.5f},
                                                   {3, -60.0f}, {5, 9.0f},   {5, -100.0f}};
  merge_biases(biases);
  const float never = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(biases, (std::vector<std::pair<int32_t, float>>{{3, -120.0f}, {5, never}, {7, 1.5f}}));
  SamplingParams p = plain();
  p.logit_bias = {{1, 1.0f}, {0, -100.0f}, {1, 1.0f}, {0, 50.0f}};
  p.temperature = 0;
  EXPECT_EQ(Sampler(p, {}).params().logit_bias.size(), 2u);
  SamplerScratch scratch;
  EXPECT_EQ(Sampler(p, {}).next(std::vector<float>{9, 1, 2.5}, {}, scratch), 1);

  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  SamplingParams many;
  many.top_k = 20;
  for (int i = 0; i < 4096; ++i)
    many.logit_bias.emplace_back(random() % 8000, -static_cast<float>(random() % 3));
  Sampler from_row(many, {}), from_best = from_row;
  int decided = 0;
  for (int step = 0; step < 200; ++step) {
    std::vector<float> row(8000);
    for (float& x : row) x = 2 * normal(random);
    const int32_t wanted = *from_row.next(row, {}, scratch);
    const auto early = from_best.next(best_of(row, 64).top(), {}, scratch);
    decided += early ? 1 : 0;
    EXPECT_EQ(early ? *early : *from_best.next(row, {}, scratch), wanted);
    from_row.accept(wanted);
    from_best.accept(wanted);
  }
  EXPECT_GT(decided, 0);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const auto draw = [](uint64_t seed) {
    SamplingParams p = plain();
    p.seed = seed;
    Sampler sampler(p, {});
    SamplerScratch scratch;
    std::vector<int32_t> out;
    for (int i = 0; i < 50; ++i) {
      out.push_back(*sampler.next(std::vector<float>(100, 0.0f), {}, scratch));
      sampler.accept(out.back());
    }
    return out;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, RowsWithoutNumbersGiveNoToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SamplerScratch scratch;
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams p = plain();
    p.temperature = temperature;
    EXPECT_EQ(Sampler(p, {}).next(std::vector<float>{nan, nan}, {}, scratch), -1);
    EXPECT_EQ(Sampler(p, {}).next(std::vector<float>{nan, 0.5f}, {}, scratch), 1);
  }
}

TEST(Sampler, ImpossibleSettingsAreRefusedByName) {
  const auto message = [](auto change) {
    SamplingParams p = plain();
    change(p);
    const Status status = validate(p, 10);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(message([](SamplingParams&) {}), "");
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = -1; }).find("temperature"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_p = NAN; }).find("top-p"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.min_p = 2; }).find("min-p"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.repetition_penalty = 0; }).find("repetition"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) {
              p.logit_bias = {{10, 1.0f}};
            }).find("token 10"),
            std::string::npos);
}

// Reference: sorts everything; sums weights in units of 2^-40.
int32_t plain_next(const SamplingParams& p, const std::vector<float>& row) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < std::ssize(row); ++id)
    if (row[id] > -std::numeric_limits<float>::infinity()) ids.push_back(id);
  if (ids.empty()) return -1;
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  if (p.temperature == 0 || !std::isfinite(row[ids[0]])) return ids[0];
  if (p.top_k > 0 && p.top_k < std::ssize(ids)) ids.resize(static_cast<size_t>(p.top_k));
  const double top = row[ids[0]];
  const auto weight = [&](int32_t id) {
    return std::exp((row[id] - top) / static_cast<double>(p.temperature));
  };
  size_t kept = ids.size();
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (const int32_t id : ids) total += weight(id);
    for (kept = 0; kept < ids.size() && (kept == 0 || sum < p.top_p * total);)
      sum += weight(ids[kept++]);
  }
  while (kept > 1 && weight(ids[kept - 1]) < p.min_p) --kept;
  Draw draw(p.seed, 0);
  for (size_t i = 0; i < kept; ++i) draw.add(ids[i], weight(ids[i]));
  return draw.winner();
}

std::vector<float> any_row(std::mt19937& random, int kind) {
  std::vector<float> row(random() % 6000 + 1);
  std::normal_distribution<float> normal(0, kind == 0 ? 0.1f : 3);
  for (float& x : row) x = normal(random);
  if (kind == 1)
    for (int i = 0; i < 5; ++i) row[random() % row.size()] = static_cast<float>(20 - i);
  if (kind == 2)
    for (float& x : row) x = std::round(x);  // ties
  if (kind == 3) row.assign(row.size(), 0.5f);
  if (kind == 4)
    for (int i = 0; i < 50; ++i)
      row[random() % row.size()] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                              : -std::numeric_limits<float>::infinity();
  return row;
}

// f32 and double sums differ by less than 1e-6: top-p may end elsewhere once in thousands of rows.
TEST(Sampler, WholeRowsGiveWhatSortingThemGives) {
  std::mt19937 random(21);
  SamplerScratch scratch;
  int decided = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<float> row = any_row(random, round % 6);
    SamplingParams p = plain();
    p.seed = random();
    p.temperature = std::array<float, 4>{1, 0.7f, 1.4f, 0.2f}[random() % 4];
    p.top_k = std::array<int32_t, 4>{0, 0, 40, 1500}[random() % 4];
    p.top_p = std::array<float, 4>{1, 0.95f, 0.5f, 0}[random() % 4];
    p.min_p = std::array<float, 4>{0, 0, 0.05f, 1}[random() % 4];
    const Sampler sampler(p, {});
    const int32_t wanted = plain_next(p, row);
    ASSERT_EQ(sampler.next(row, {}, scratch), wanted) << "round " << round;
    if (round % 6 == 4 || row.size() < 64) continue;
    const Best best = best_of(row, 64);
    if (const auto early = sampler.next(best.top(), {}, scratch)) {
      ASSERT_EQ(*early, wanted) << "round " << round;
      ++decided;
    }
  }
  EXPECT_GT(decided, 700);
}

TEST(Sampler, AnyNumberOfThreadsDrawsTheSame) {
  std::mt19937 random(4);
  std::vector<std::vector<float>> rows;
  std::vector<Sampler> samplers;
  for (int i = 0; i < 24; ++i) {
    rows.push_back(any_row(random, i % 6));
    SamplingParams p = plain();
    p.seed = random();
    p.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    p.presence_penalty = -0.5f;
    samplers.emplace_back(p, std::vector<int32_t>());
    samplers.back().accept(0);
  }
  std::vector<int32_t> alone;
  SamplerScratch scratch;
  for (size_t i = 0; i < rows.size(); ++i) alone.push_back(*samplers[i].next(rows[i], {}, scratch));
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads, ThreadPool::Waiting::sleep);
    std::vector<SamplerScratch> scratches(static_cast<size_t>(threads));
    Counter next;
    for (int round = 0; round < 20; ++round) {
      std::vector<int32_t> drawn(rows.size());
      next.reset();
      pool.run([&](int worker) {
        for (size_t i; (i = static_cast<size_t>(next.claim())) < rows.size();)
          drawn[i] = *samplers[i].next(rows[i], {}, scratches[static_cast<size_t>(worker)]);
      });
      ASSERT_EQ(drawn, alone) << threads << " threads";
    }
  }
}

TEST(LogProbability, IsTheLogSoftmaxOfTheRawRow) {
  const auto row = logs({0.5, 0.3, 0.2});
  EXPECT_NEAR(log_probability(row, 1), std::log(0.3), 1e-6);
  SamplerScratch scratch;
  std::vector<std::pair<int32_t, float>> top;
  top_log_probabilities(row, log_sum(row), 2, scratch, top);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].first, 0);
  EXPECT_EQ(top[1].first, 1);
  EXPECT_NEAR(top[1].second, std::log(0.3), 1e-6);
}

}  // namespace
}  // namespace braid
