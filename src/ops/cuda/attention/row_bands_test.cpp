// row_bands_test.cpp -- bands and images of random batches, against KvTail for each row and cell.
#include "ops/cuda/attention/row_bands.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "ops/cuda/attention/host_block_test.h"

namespace braid::cuda {
namespace {

struct Rows {
  std::vector<int32_t> position, sequence, parent, first_row, rows, certain, context;
  int32_t most_rows = 0, most_certain = 0, most_uncertain = 0;

  void add(int32_t past, int32_t certain_rows, const std::vector<int32_t>& parents) {
    const auto s = static_cast<int32_t>(rows.size());
    first_row.push_back(static_cast<int32_t>(position.size()));
    certain.push_back(certain_rows);
    context.push_back(past + certain_rows);
    rows.push_back(certain_rows + static_cast<int32_t>(parents.size()));
    for (int32_t i = 0; i < certain_rows; ++i) push(s, past + i, -1);
    const auto root = static_cast<int32_t>(position.size());
    for (const int32_t p : parents)
      push(s, p < 0 ? context.back() : position[static_cast<size_t>(root + p)] + 1,
           p < 0 ? -1 : root + p);
    most_rows = std::max(most_rows, rows.back());
    most_certain = std::max(most_certain, certain_rows);
    most_uncertain = std::max(most_uncertain, static_cast<int32_t>(parents.size()));
  }
  void pad(int32_t sequences, int32_t tokens) {
    for (int32_t i = 0; i < sequences; ++i)
      for (std::vector<int32_t>* v : {&first_row, &rows, &certain, &context}) v->push_back(0);
    for (int32_t i = 0; i < tokens; ++i) push(-1, 0, -1);
  }
  BandRows view() const {
    return {position.data(),
            sequence.data(),
            first_row.data(),
            rows.data(),
            certain.data(),
            context.data(),
            static_cast<int32_t>(position.size()),
            static_cast<int32_t>(rows.size())};
  }

 private:
  void push(int32_t s, int32_t at, int32_t from) {
    position.push_back(at);
    sequence.push_back(s);
    parent.push_back(from);
  }
};

struct Plan {
  std::vector<int32_t> first_row, rows, certain, context, form_rows, exact_from, of_sequence,
      of_row;
  std::vector<SealedSequence> sealed;

  Plan(const Rows& from, const KvTail& tail, int32_t stride, int32_t bands, bool pairs, int order) {
    const BandRows b = from.view();
    for (auto* v : {&first_row, &rows, &certain, &context, &form_rows, &exact_from, &of_sequence})
      v->assign(static_cast<size_t>(bands), -7);
    of_row.assign(static_cast<size_t>(b.tokens), -7);
    sealed.resize(static_cast<size_t>(b.sequences) + 1);
    std::vector<SequenceBorders> borders(static_cast<size_t>(b.sequences));
    std::vector<int32_t> counts(static_cast<size_t>(3 * b.sequences));
    HostBlock<kBandThreads> block(order);
    plan_bands(block, b, tail, stride, borders.data(), counts.data(),
               {first_row.data(), rows.data(), certain.data(), context.data(), form_rows.data(),
                exact_from.data(), of_sequence.data(), of_row.data(), sealed.data(), bands, pairs});
  }
};

constexpr int32_t kStride = 20;

// The blocks that a row at `position` finds in its band's table, without holes.
std::vector<int32_t> table_blocks(const KvTail& tail, int32_t exact_from, int32_t position,
                                  int32_t end) {
  const int32_t hole = is_pair(exact_from) ? tail.exact_from(position) : -kBlockTokens;
  if (is_pair(exact_from) && position >= hole) end += kBlockTokens;
  std::vector<int32_t> blocks;
  for (int32_t b = 0; b * kBlockTokens < end; ++b)
    if (b * kBlockTokens != hole) blocks.push_back(b);
  return blocks;
}

void check(const Rows& from, const KvTail& tail, bool pairs, int order) {
  const BandRows b = from.view();
  const int32_t bands =
      most_bands(b.tokens, b.sequences, from.most_rows, from.most_certain, from.most_uncertain);
  const Plan plan(from, tail, kStride, bands, pairs, order);
  std::map<int32_t, std::tuple<int32_t, int32_t, bool>> image;
  const int32_t room = b.sequences * kStride + most_extra_blocks(b.tokens, b.sequences);
  int32_t entries = 0;
  for (int32_t s = 0; s < b.sequences; ++s) {
    const SealedSequence& q = plan.sealed[static_cast<size_t>(s)];
    ASSERT_EQ(q.entry, entries);
    const int32_t own = b.rows[s] == 0 ? 0 : entries_of(q);
    entries += own;
    for (int32_t i = 0; i < own; ++i) {
      const ImageEntry e = image_entry(q, s, kStride, i);
      ASSERT_GE(e.to, 0);
      ASSERT_LT(e.to, room);
      ASSERT_TRUE(!e.sealed || (e.block + 1) * kBlockTokens <= b.context[s]);
      ASSERT_LT(e.block * kBlockTokens, b.context[s] + b.rows[s] - b.certain[s]);
      ASSERT_TRUE(image.emplace(e.to, std::tuple{s, e.block, e.sealed}).second) << "made twice";
    }
  }
  ASSERT_EQ(plan.sealed.back().entry, entries);
  std::set<int32_t> stored;
  for (int32_t t = 0; t < b.tokens; ++t) {
    const int32_t s = b.sequence[t], band = plan.of_row[static_cast<size_t>(t)];
    if (s < 0) {
      ASSERT_EQ(band, -1);
      continue;
    }
    ASSERT_GE(band, 0);
    ASSERT_LT(band, bands);
    const auto i = static_cast<size_t>(band);
    ASSERT_EQ(plan.of_sequence[i], s);
    ASSERT_EQ(plan.form_rows[i], b.rows[s]);
    const int32_t own_border = tail.exact_from(b.position[t]),
                  first_border = first_exact(plan.exact_from[i]);
    const bool pair = is_pair(plan.exact_from[i]);
    ASSERT_TRUE(own_border == first_border || (pair && own_border == first_border + kBlockTokens));
    ASSERT_TRUE(!pair || (pairs && b.rows[s] >= kFewestPairedRows));
    ASSERT_GE(t, plan.first_row[i]);
    ASSERT_LT(t, plan.first_row[i] + plan.rows[i]);
    // The row is unchanged: certain, or with all its ancestors and at the same cell.
    const bool certain = t - b.first_row[s] < b.certain[s];
    ASSERT_EQ(t - plan.first_row[i] < plan.certain[i], certain);
    ASSERT_TRUE(certain || !pair);
    if (!certain) {
      ASSERT_EQ(plan.context[i], b.context[s]);
      ASSERT_EQ(plan.first_row[i] + plan.certain[i], b.first_row[s] + b.certain[s]);
      ASSERT_EQ(plan.rows[i] - plan.certain[i], b.rows[s] - b.certain[s]);
    }
    const int32_t end = certain ? b.position[t] + 1 : b.context[s] + b.rows[s] - b.certain[s];
    ASSERT_GE(plan.context[i] + plan.rows[i] - plan.certain[i], end + (pair ? kBlockTokens : 0));
    const SealedSequence& q = plan.sealed[static_cast<size_t>(s)];
    int32_t block = 0;
    for (const int32_t place : table_blocks(tail, plan.exact_from[i], b.position[t], end)) {
      const auto at = image.find(image_block(q, s, kStride, plan.exact_from[i], place));
      ASSERT_NE(at, image.end());
      const bool sealed = !tail.reads_exact(b.position[t], block * kBlockTokens);
      ASSERT_EQ(at->second, std::tuple(s, block, sealed)) << "row " << t << " block " << block;
      ++block;
    }
    ASSERT_EQ(block, (end + kBlockTokens - 1) / kBlockTokens);
  }
  // A band owns all its rows at its border; certain rows have only one band.
  for (int32_t band = 0; band < bands; ++band) {
    const auto i = static_cast<size_t>(band);
    if (plan.of_sequence[i] < 0) {
      ASSERT_EQ(
          plan.rows[i] + plan.certain[i] + plan.context[i] + plan.first_row[i] + plan.form_rows[i],
          0);
      continue;
    }
    ASSERT_GT(plan.rows[i], 0);
    for (int32_t t = plan.first_row[i]; t < plan.first_row[i] + plan.rows[i]; ++t) {
      const bool stores =
          is_pair(plan.exact_from[i]) || tail.exact_from(b.position[t]) == plan.exact_from[i];
      ASSERT_EQ(stores, plan.of_row[static_cast<size_t>(t)] == band);
      ASSERT_TRUE(!stores || stored.insert(t).second);
    }
  }
}

TEST(RowBands, ReadWhatTheTailSays) {
  std::mt19937 random(5);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  int several = 0;
  for (int round = 0; round < 3000; ++round) {
    const KvTail tail{between(1, 3), between(0, 2)};
    Rows rows;
    const int32_t sequences = between(1, 12);
    const bool decoding = round % 3 == 0;
    for (int32_t s = 0; s < sequences; ++s) {
      std::vector<int32_t> parents(
          static_cast<size_t>(between(0, 2) == 0 ? between(1, 31 * tail.tail_blocks) % 63 : 0));
      for (size_t i = 0; i < parents.size(); ++i) {
        const auto last = static_cast<int32_t>(i) - 1;
        parents[i] = round % 2 == 0 ? last : between(-1, last);
      }
      if (between(0, 9) == 0) {
        rows.pad(1, 0);  // no rows in this step
      } else {
        rows.add(between(0, 350), decoding ? 1 : between(parents.empty() ? 1 : 0, 150), parents);
      }
    }
    if (between(0, 1) == 0) rows.pad(between(0, 3), between(0, 5));
    for (const bool pairs : {false, true}) {
      check(rows, tail, pairs, round % 3);
      if (HasFatalFailure()) FAIL() << "round " << round << " pairs " << pairs;
    }
    several += rows.most_uncertain > 0;
  }
  EXPECT_GT(several, 300);
}

// Rows of a draft block all have the position of its last row.
TEST(RowBands, RowsAtOnePositionAreOneBand) {
  Rows rows;
  rows.add(90, 16, {});
  for (int32_t& p : rows.position) p = 105;
  const Plan plan(rows, {1, 0}, kStride, 3, true, 0);
  EXPECT_EQ(plan.rows, (std::vector<int32_t>{16, 0, 0}));
  EXPECT_EQ(plan.context[0], 106);
  EXPECT_EQ(plan.exact_from[0], 64);
}

// 150 rows from position 40 on, tail of one block: borders 0, 32, ... 128.
TEST(RowBands, PairsHaveTwoBorders) {
  Rows rows;
  rows.add(40, 150, {});
  const Plan plan(rows, {1, 0}, kStride, 5, true, 0);
  EXPECT_EQ(plan.rows, (std::vector<int32_t>{56, 64, 30, 0, 0}));
  EXPECT_EQ(plan.exact_from, (std::vector<int32_t>{~0, ~64, 128, 0, 0}));
  EXPECT_EQ(plan.context, (std::vector<int32_t>{96 + 32, 160 + 32, 190, 0, 0}));
}

}  // namespace
}  // namespace braid::cuda
