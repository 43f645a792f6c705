// lattice_reader_test.cpp -- candidates become drafts that the request's sampler would choose.
#include "engine/draft/lattice_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/schedule/oracle.h"

namespace braid {
namespace {

Sequence sequence_at(float temperature, uint64_t seed, int32_t position) {
  Sequence s;
  SamplingParams sampling;
  sampling.temperature = temperature;
  sampling.seed = seed;
  sampling.top_k = 0;
  sampling.top_p = 1;
  s.tokens.resize(static_cast<size_t>(position));
  s.sampler = Sampler(sampling, s.tokens);
  return s;
}

struct Rows {
  static constexpr int32_t kVocabulary = 40, kWidth = 8;
  std::vector<std::vector<float>> logits;
  explicit Rows(int32_t depths, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 3);
    for (int32_t d = 0; d < depths; ++d) {
      auto& row = logits.emplace_back(kVocabulary);
      for (float& x : row) x = normal(random);
    }
  }
  void set(LatticeReader& reader, int32_t d) const {
    const std::vector<float>& row = logits[static_cast<size_t>(d)];
    std::vector<int32_t> ids(kVocabulary);
    for (int32_t i = 0; i < kVocabulary; ++i) ids[static_cast<size_t>(i)] = i;
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    std::vector<float> values;
    for (int32_t c = 0; c < kWidth; ++c)
      values.push_back(row[static_cast<size_t>(ids[static_cast<size_t>(c)])]);
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    const auto log_sum = static_cast<float>(std::log(sum));
    reader.set_row(d, 0, {.tokens = {ids.data(), kWidth}, .logits = values, .log_sum = &log_sum});
  }
};

LatticeReader reader_of(bool trees, float p_min = 0) {
  LatticeReader reader;
  reader.set_options({trees, p_min, Rows::kVocabulary});
  return reader;
}

TEST(LatticeReader, GreedyChainsAreTheBestOfEachRowWithTheirProbabilities) {
  std::mt19937 random(1);
  const Rows rows(3, random);
  const Sequence s = sequence_at(0, 0, 10);
  LatticeReader reader = reader_of(false);
  reader.begin(s, LatticeKind::independent, 3, Rows::kWidth);
  for (int32_t d = 0; d < 3; ++d) rows.set(reader, d);
  StepItem item;
  reader.read(item, 10);
  ASSERT_EQ(item.drafts.size(), 3u);
  for (int32_t d = 0; d < 3; ++d) {
    const auto& row = rows.logits[static_cast<size_t>(d)];
    const Draft& draft = item.drafts[static_cast<size_t>(d)];
    EXPECT_EQ(draft.token, std::max_element(row.begin(), row.end()) - row.begin());
    EXPECT_EQ(draft.parent, d - 1);
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    EXPECT_NEAR(draft.log_q, row[static_cast<size_t>(draft.token)] - std::log(sum), 1e-5);
  }
  item.drafts.clear();
  reader.read(item, 2);
  EXPECT_EQ(item.drafts.size(), 2u);
}

TEST(LatticeReader, DrawnDraftsAreWhatTheSamplerDraws) {
  std::mt19937 random(2);
  SamplerScratch scratch;
  int same = 0, all = 0, argmax = 0;
  for (const float temperature : {0.6f, 1.0f}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const Rows rows(1, random);
      const Sequence s = sequence_at(temperature, seed, 33);
      LatticeReader reader = reader_of(false);
      reader.begin(s, LatticeKind::chain, 1, Rows::kWidth);
      rows.set(reader, 0);
      const int32_t drafted = reader.choose(0);
      const int32_t drawn = *s.sampler.next(rows.logits[0], {}, scratch);
      const auto& row = rows.logits[0];
      same += drafted == drawn;
      argmax += std::max_element(row.begin(), row.end()) - row.begin() == drawn;
      ++all;
    }
  }
  EXPECT_GT(same, all * 95 / 100);  // the rest is not among the candidates
  EXPECT_LT(argmax, all * 80 / 100);
}

TEST(LatticeReader, InATreeOnlyTheChosenCandidateIsGoneOnFrom) {
  std::mt19937 random(3);
  const Rows rows(4, random);
  for (const float temperature : {0.0f, 1.0f}) {
    const Sequence s = sequence_at(temperature, 5, 12);
    LatticeReader reader = reader_of(true);
    reader.begin(s, LatticeKind::chain, 4, Rows::kWidth);
    std::vector<int32_t> chosen;
    for (int32_t d = 0; d < 4; ++d) {
      rows.set(reader, d);
      chosen.push_back(reader.choose(d));
    }
    StepItem item;
    reader.read(item, 20);
    ASSERT_EQ(item.drafts.size(), 20u);
    std::vector<size_t> depth;
    std::vector<double> path;
    for (const Draft& draft : item.drafts) {
      const auto parent = static_cast<size_t>(draft.parent);
      depth.push_back(draft.parent < 0 ? 0 : depth[parent] + 1);
      path.push_back(draft.log_q + (draft.parent < 0 ? 0 : path[parent]));
      if (draft.parent >= 0) {
        EXPECT_EQ(item.drafts[parent].token, chosen[depth[parent]]);
      }
      if (path.size() > 5) {  // after the spine
        EXPECT_LE(path.back(), path[path.size() - 2] + 1e-6);
      }
    }
    EXPECT_EQ(*std::max_element(depth.begin(), depth.end()), 3u);
  }
}

TEST(LatticeReader, WhatIsImprobableOrNoNumberIsNoDraft) {
  const Sequence s = sequence_at(0, 0, 4);
  const int32_t ids[] = {3, 5}, none[] = {-1, 70};
  const float logits[] = {2, 1}, bad[] = {NAN, NAN};
  StepItem item;
  for (const bool trees : {false, true}) {
    LatticeReader reader = reader_of(trees, 0.5f);
    reader.begin(s, LatticeKind::chain, 2, 2);
    const auto set = [&](int32_t d, std::span<const int32_t> tokens, std::span<const float> values,
                         float log_sum) {
      reader.set_row(d, 0, {.tokens = tokens, .logits = values, .log_sum = &log_sum});
    };
    set(0, ids, logits, 2.4f);  // 0.67 and 0.25
    EXPECT_EQ(reader.choose(0), 3);
    set(1, ids, logits, 3.0f);  // 0.37 and 0.14
    EXPECT_EQ(reader.choose(1), -1);
    item.drafts.clear();
    reader.read(item, 8);
    ASSERT_EQ(item.drafts.size(), 1u);
    EXPECT_EQ(item.drafts[0].token, 3);
    reader.begin(s, LatticeKind::chain, 1, 2);
    set(0, none, logits, 2.0f);
    EXPECT_EQ(reader.choose(0), -1);
    set(0, ids, bad, NAN);
    EXPECT_EQ(reader.choose(0), -1);
    item.drafts.clear();
    reader.read(item, 8);
    EXPECT_TRUE(item.drafts.empty());
  }
}

struct Fixed : Oracle {
  void rate(const Sequence&, int32_t depth, std::span<float> log_q) override {
    for (size_t c = 0; c < log_q.size(); ++c)
      log_q[c] = std::log(0.5f / static_cast<float>(1 + c + static_cast<size_t>(depth)));
  }
  int32_t next(const StepItem&, int32_t, int32_t drawn) override { return drawn; }
};

TEST(LatticeReader, AnOracleSaysHowSureDraftsAre) {
  std::mt19937 random(5);
  const Rows rows(3, random);
  const Sequence s = sequence_at(0, 0, 10);
  Fixed oracle;
  for (const float p_min : {0.0f, 0.2f}) {
    LatticeReader reader = reader_of(false, p_min);
    reader.set_oracle(&oracle);
    reader.begin(s, LatticeKind::independent, 3, Rows::kWidth);
    for (int32_t d = 0; d < 3; ++d) rows.set(reader, d);
    StepItem item;
    reader.read(item, 10);
    ASSERT_EQ(item.drafts.size(), p_min > 0 ? 2u : 3u) << "0.5, 0.25, 0.167";
    for (size_t d = 0; d < item.drafts.size(); ++d)
      EXPECT_FLOAT_EQ(item.drafts[d].log_q, std::log(0.5f / static_cast<float>(1 + d)));
  }
}

}  // namespace
}  // namespace braid
