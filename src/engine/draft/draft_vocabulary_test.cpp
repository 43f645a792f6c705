#include "engine/draft/draft_vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

namespace braid {
namespace {

TEST(DraftVocabulary, ANewTokenTakesTheRowOfTheOneUnseenForLongest) {
  DraftVocabulary v(4, 100);
  EXPECT_EQ(v.changes(), 0);
  v.see(std::vector<int32_t>{3, 2});  // 0 and 1 are newer than the rest
  v.see(std::vector<int32_t>{50});
  ASSERT_EQ(v.changes(), 1);
  EXPECT_EQ(v.take_changes(8)[0].row, 1);
  v.see(std::vector<int32_t>{51, 50, 3});
  const auto changes = v.take_changes(8);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].row, 0);
  EXPECT_EQ(changes[0].token, 51);
  v.see(std::vector<int32_t>{52, 53});  // in the rows of 2 and 51
  const auto more = v.take_changes(8);
  ASSERT_EQ(more.size(), 2u);
  EXPECT_EQ(more[0].row, 2);
  EXPECT_EQ(more[1].row, 0);
}

TEST(DraftVocabulary, WhatChangesTwiceIsToldOnceAndWhatIsNoTokenIsLeftOut) {
  DraftVocabulary v(2, 10);
  v.see(std::vector<int32_t>{5, 6, 7, -1, 10});
  const auto first = v.take_changes(1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].row, 1);
  EXPECT_EQ(first[0].token, 7);
  EXPECT_EQ(v.changes(), 1);
  EXPECT_EQ(v.take_changes(1)[0].token, 6);
  EXPECT_EQ(v.changes(), 0);
}

TEST(DraftVocabulary, RowsAreThoseOfTheTokensSeenLast) {
  constexpr int32_t kRows = 37, kTokens = 200;
  std::mt19937 random(7);
  DraftVocabulary v(kRows, kTokens);
  std::deque<int32_t> newest_first;
  for (int32_t i = 0; i < kRows; ++i) newest_first.push_back(i);
  std::vector<int32_t> told(kRows);
  for (int32_t i = 0; i < kRows; ++i) told[static_cast<size_t>(i)] = i;
  for (int step = 0; step < 5000; ++step) {
    const auto token = static_cast<int32_t>(random() % (random() % 2 == 0 ? kTokens : 50));
    v.see({&token, 1});
    const auto found = std::find(newest_first.begin(), newest_first.end(), token);
    if (found != newest_first.end()) {
      newest_first.erase(found);
    } else {
      newest_first.pop_back();
    }
    newest_first.push_front(token);
    if (step % 7 != 0) continue;
    for (const DraftRow& change : v.take_changes(1000))
      told[static_cast<size_t>(change.row)] = change.token;
    std::vector<int32_t> a(newest_first.begin(), newest_first.end()), b = told;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    ASSERT_EQ(a, b) << step;
  }
}

}  // namespace
}  // namespace braid
