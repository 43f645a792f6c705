// ngram_drafter_test.cpp -- n-grams are found, and their continuations are drafted.
#include "engine/draft/ngram_drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "base/heap_test.h"

namespace braid {
namespace {

std::vector<int32_t> ids(const char* text) { return {text, text + std::string(text).size()}; }

TEST(NgramDrafter, ItsBytesAreForeseen) {
  for (const int32_t context : {100, 3000, 1 << 20}) {
    const uint64_t before = heap_bytes();
    if (before == 0) GTEST_SKIP() << "a heap that is not counted";
    const NgramDrafter drafter(40, context);
    const auto taken = static_cast<double>(heap_bytes() - before);
    EXPECT_NEAR(taken, static_cast<double>(NgramDrafter::bytes(40, context)), 0.03 * taken)
        << context;
  }
}

TEST(NgramIndex, FindsTheLastPlaceOfTheLongestNgram) {
  NgramIndex index(1000);
  const auto find = [&](const char* text) {
    index.clear();
    const auto tokens = ids(text);
    index.extend(tokens);
    return index.find(tokens);
  };
  EXPECT_EQ(find("abcdef").length, 0);
  EXPECT_EQ(find("").length, 0);
  EXPECT_EQ(find("a").length, 0);
  // The end does not match itself, but overlaps match.
  EXPECT_EQ(find("ab").length, 0);
  EXPECT_EQ(find("aaa").length, 2);
  EXPECT_EQ(find("aaa").next, 2);
  EXPECT_EQ(find("ab1ab2ab").next, 5);
  EXPECT_EQ(find("ab1ab2ab").length, 2);
  EXPECT_EQ(find("wxab1ab2wxab").next, 4);
  EXPECT_EQ(find("wxab1ab2wxab").length, 4);
  EXPECT_EQ(find("uvwxab1ab2uvwxab").length, 6);
}

TEST(NgramIndex, LengthsAreCountedUpToALimit) {
  std::vector<int32_t> tokens(100, 7);
  NgramIndex index(1000);
  index.extend(tokens);
  EXPECT_EQ(index.find(tokens).length, NgramIndex::kLongestMatch);
  EXPECT_EQ(index.find(tokens).next, 99);
}

// Small alphabets, so that everything repeats.
TEST(NgramIndex, AgreesWithALookAtAllPlaces) {
  std::mt19937 random(1);
  int found = 0, agreed = 0;
  for (int round = 0; round < 60; ++round) {
    const uint32_t alphabet = 2 + random() % 12;
    NgramIndex index(100000);
    std::vector<int32_t> tokens;
    for (int n = 0; n < 150; ++n) {
      tokens.push_back(static_cast<int32_t>(random() % alphabet));
      if (n % 3 == 0) index.extend(tokens);
    }
    index.extend(tokens);
    const auto size = static_cast<int32_t>(tokens.size());
    NgramIndex::Match wanted;
    for (const int32_t order : {4, 2}) {
      for (int32_t end = size - 1; end >= order && wanted.length == 0; --end) {
        int32_t length = 0;
        while (length < std::min(end, NgramIndex::kLongestMatch) &&
               tokens[static_cast<size_t>(end - 1 - length)] ==
                   tokens[static_cast<size_t>(size - 1 - length)])
          ++length;
        if (length >= order) wanted = {end, length};
      }
    }
    const NgramIndex::Match got = index.find(tokens);
    agreed += got.length == wanted.length && got.next == wanted.next ? 1 : 0;
    found += wanted.length > 0 ? 1 : 0;
  }
  EXPECT_GE(agreed, 58);  // of 60: two n-grams may share a place
  EXPECT_GT(found, 30);
}

TEST(NgramIndex, IsBoundedAndNeverFindsWhatIsNotThere) {
  std::mt19937 random(2);
  NgramIndex index(256);
  std::vector<int32_t> tokens;
  int found = 0, quoted = 0;
  for (int n = 0; n < 20000; ++n) {
    const bool quotes = n % 40 == 39;
    if (quotes) {
      const size_t from = tokens.size() - 20 - random() % 19;
      for (size_t i = 0; i < 20; ++i) tokens.push_back(tokens[from + i]);
      ++quoted;
    } else {
      tokens.push_back(static_cast<int32_t>(random() % 5000));
    }
    index.extend(tokens);
    const NgramIndex::Match match = index.find(tokens);
    if (match.length == 0) continue;
    ++found;
    ASSERT_LT(match.next, std::ssize(tokens));
    for (int32_t i = 1; i <= match.length; ++i)
      ASSERT_EQ(tokens[static_cast<size_t>(match.next - i)],
                tokens[tokens.size() - static_cast<size_t>(i)]);
  }
  EXPECT_GT(found, quoted * 3 / 4);
}

TEST(NgramDrafter, LongerMatchesAreSurer) {
  float last = -INFINITY;
  for (int32_t length = 2; length < 40; ++length) {
    EXPECT_GT(ngram_log_q(length), last);
    last = ngram_log_q(length);
  }
  EXPECT_NEAR(std::exp(ngram_log_q(2)), 0.5, 1e-6);
  EXPECT_LT(last, 0);
}

struct Desk {
  Sequence& add(const std::vector<int32_t>& tokens, int32_t depth = 6) {
    Sequence& s = *sequences.emplace_back(std::make_unique<Sequence>());
    s.id = sequences.size();
    s.tokens = tokens;
    s.request.prompt.assign(tokens.begin(), tokens.end() - 1);
    depths.push_back(depth);
    s.computed_tokens = static_cast<int32_t>(tokens.size()) - 1;
    return s;
  }
  StepPlan propose(NgramDrafter& drafter, int32_t budget = 100) {
    StepPlan plan;
    for (size_t i = 0; i < sequences.size(); ++i) {
      StepItem& item = plan.items.emplace_back();
      item.sequence = sequences[i].get();
      item.certain = 1;
      item.wants_next = true;
      item.draft_depth = depths[i];
      item.draft_count = 100;
    }
    drafter.propose(plan, budget);
    return plan;
  }
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<int32_t> depths;
};
std::string text(const StepItem& item) {
  std::string out;
  for (size_t i = 0; i < item.drafts.size(); ++i) {
    EXPECT_EQ(item.drafts[i].parent, static_cast<int32_t>(i) - 1);
    EXPECT_LT(item.drafts[i].log_q, 0);
    out += static_cast<char>(item.drafts[i].token);
  }
  return out;
}

TEST(NgramDrafter, DraftsAChainOfWhatFollowedAndRepeatsWhatRunsOverTheEnd) {
  NgramDrafter drafter(4, 1000);
  Desk desk;
  desk.add(ids("hello world; hel"));
  desk.add(ids("nothing twce"));
  desk.add(ids("xyxyxy"));
  desk.add(ids("abcabc"));
  const StepPlan plan = desk.propose(drafter);
  EXPECT_EQ(text(plan.items[0]), "lo wor");
  EXPECT_EQ(text(plan.items[1]), "");
  EXPECT_EQ(text(plan.items[2]), "xyxyxy");
  EXPECT_EQ(text(plan.items[3]), "abcabc");
}

TEST(NgramDrafter, GoesAsDeepAsItMayAndKeepsToTheBudget) {
  NgramDrafter drafter(4, 1000);
  Desk desk;
  desk.add(ids("abcabc"), 0);
  desk.add(ids("abcabc"), 2);
  desk.add(ids("abcabc"), 6);
  desk.add(ids("abcabc"), 6);
  const StepPlan plan = desk.propose(drafter, 5);
  EXPECT_EQ(text(plan.items[0]), "");
  EXPECT_EQ(text(plan.items[1]), "ab");
  EXPECT_EQ(text(plan.items[2]), "abc");
  EXPECT_EQ(text(plan.items[3]), "");
}

TEST(NgramDrafter, MoreSequencesThanPlacesTakeTurnsAndEndsGiveThemBack) {
  NgramDrafter drafter(2, 1000);
  Desk desk;
  for (int i = 0; i < 5; ++i) desk.add(ids("abcabc"), 3);
  for (int round = 0; round < 3; ++round) {
    const StepPlan plan = desk.propose(drafter);
    for (const StepItem& item : plan.items) EXPECT_EQ(text(item), "abc");
    std::vector<Verdict> verdicts(plan.items.size());
    verdicts[static_cast<size_t>(round)].finished = true;
    drafter.observe(plan, verdicts);
  }
  Desk other;
  other.add(ids("abxyab"), 3).id = 100;
  const StepPlan plan = other.propose(drafter);
  EXPECT_EQ(text(plan.items[0]), "xya");
}

}  // namespace
}  // namespace braid
