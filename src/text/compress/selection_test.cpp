// selection_test.cpp -- the rules one by one, all of them against a plain model, hostile prompts.
#include "text/compress/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "text/compress/code_share.h"

namespace braid {
namespace {

using Ids = std::vector<int32_t>;
using Reasons = std::vector<KeptBecause>;
constexpr KeepRatios kTenth{0.1, 0.1};

struct Prompt {
  Ids ids;
  std::vector<float> scores, code;
  std::vector<ProtectedRange> protected_ranges;
  KeepRatios ratios = kTenth;

  SelectionInput input() const { return {ids, scores, code, protected_ranges, ratios}; }
  Selection select() const { return select_chunks(input()); }
};

// Ids that occur too often for every rule: a cycle of one chunk.
Prompt filler(size_t chunks, KeepRatios ratios = kTenth) {
  Prompt out;
  for (size_t i = 0; i < chunks * kChunkTokens; ++i)
    out.ids.push_back(static_cast<int32_t>(i % kChunkTokens));
  out.scores.assign(chunks, 0.001f);
  out.ratios = ratios;
  return out;
}

size_t count_of(const Selection& selection, KeptBecause because) {
  return static_cast<size_t>(std::count(selection.chunks.begin(), selection.chunks.end(), because));
}

size_t kept_chunks(const Selection& selection) {
  return selection.chunks.size() - count_of(selection, KeptBecause::dropped);
}

// The rules by scanning, without an index, sorting or limits of time.
class PlainModel {
 public:
  explicit PlainModel(const Prompt& prompt) : p_(prompt), chunks_(chunk_count(p_.ids.size())) {
    const size_t tokens = p_.ids.size();
    if (tokens > kQuestionTokens) {
      body_ = tokens - kQuestionTokens;
      for (const ProtectedRange& range : p_.protected_ranges)
        if (range.because == KeptBecause::last_user_turn && range.tokens.end == tokens)
          body_ = std::max(body_, range.tokens.begin);
    } else {
      body_ = 0;
    }
    for (size_t i = 0; i < body_; ++i) places_[p_.ids[i]].push_back(i);
  }

  Reasons choose() {
    protect();
    std::map<bool, double> free;
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (!chunks_[k]) ++free[code(k)];
    budget_[false] = static_cast<size_t>(std::floor(free[false] * p_.ratios.prose + 1e-9));
    budget_[true] = static_cast<size_t>(std::floor(free[true] * p_.ratios.code + 1e-9));
    if (free[false] + free[true] > 0) {
      if (all() == 0) budget_[free[true] > free[false]] = 1;
      ends();
      anchors();
      rare();
      linked();
      repeated();
      scores();
    }
    Reasons out;
    for (const auto& chunk : chunks_) out.push_back(chunk.value_or(KeptBecause::dropped));
    return out;
  }

 private:
  bool code(size_t k) const { return !p_.code.empty() && p_.code[k] >= kCodeRegion; }
  size_t all() { return budget_[false] + budget_[true]; }
  size_t used() { return kept_[false] + kept_[true]; }
  size_t limit(double share) {
    return used() + (all() > used() ? static_cast<size_t>(double(all() - used()) * share) : 0);
  }
  void take(size_t k, KeptBecause because) {
    if (k >= chunks_.size() || chunks_[k]) return;
    chunks_[k] = because;
    ++kept_[code(k)];
  }
  const std::vector<size_t>& places(int32_t id) const { return places_[id]; }
  bool in_question(int32_t id) const {
    const auto begin = p_.ids.begin() + static_cast<ptrdiff_t>(body_);
    return body_ > 0 && std::find(begin, p_.ids.end(), id) != p_.ids.end();
  }
  bool is_marker(size_t at) const {
    for (const auto& range : p_.protected_ranges)
      if (range.because == KeptBecause::role_marker && range.tokens.begin <= at &&
          at < range.tokens.end)
        return true;
    return false;
  }

  // Here all ranges have one reason unless they are markers, which are short, or the last turn,
  // which comes last.
  void protect() {
    for (size_t k = 0; k < chunks_.size(); ++k) {
      bool whole = true;
      for (size_t i = k * 32; i < std::min(k * 32 + 32, p_.ids.size()); ++i) {
        bool token = false;
        for (const auto& range : p_.protected_ranges)
          token = token || (range.tokens.begin <= i && i < range.tokens.end);
        whole = whole && token;
      }
      if (!whole) continue;
      chunks_[k] = KeptBecause::client_mark;
      for (const auto& range : p_.protected_ranges)
        if (range.because == KeptBecause::last_user_turn && k * 32 + 32 > range.tokens.begin)
          chunks_[k] = range.because;
    }
  }
  void ends() {
    size_t head = 8, tail = 24;
    if (32 > all() / 2) {
      const size_t budget = std::max<size_t>(1, all() / 2);
      head = 8 * budget / 32;
      tail = budget - head;
    }
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (k < head) take(k, KeptBecause::head);
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (k + tail >= chunks_.size()) take(k, KeptBecause::tail);
  }
  void anchors() {
    if (body_ == 0) return;
    const AnchorRule rule = anchor_rule(chunks_.size());
    const int32_t* ids = p_.ids.data();
    for (size_t q = body_; q + 4 <= p_.ids.size(); ++q) {
      if (is_marker(q) || is_marker(q + 1) || is_marker(q + 2) || is_marker(q + 3)) continue;
      std::vector<size_t> hits;
      for (size_t i = 0; i + 4 <= body_; ++i)
        if (ids[i] == ids[q] && std::equal(ids + i, ids + i + 4, ids + q)) hits.push_back(i);
      if (hits.size() > rule.most_hits) continue;
      for (const size_t hit : hits)
        for (size_t k = 0; k < chunks_.size(); ++k)
          if (k + rule.radius_chunks >= hit / 32 && k <= (hit + 3) / 32 + rule.radius_chunks)
            take(k, KeptBecause::anchor);
    }
  }
  void by_rarity(const Ids& wanted, double share, size_t least, bool neighbors,
                 KeptBecause because) {
    const size_t most = std::max(limit(share), used() + least);
    for (size_t hits = 1; hits <= kRareHits; ++hits) {
      std::set<int32_t> done;
      for (const int32_t id : wanted) {
        const auto& at = places(id);
        if (at.size() != hits || !done.insert(id).second) continue;
        for (const size_t place : at)
          if (used() < most) take(place / 32, because);
        for (const size_t place : at)
          for (const int step : {-1, 1})
            if (neighbors && used() < most && (step > 0 || place >= 32))
              take(place / 32 + static_cast<size_t>(step), because);
      }
    }
  }
  void rare() {
    Ids wanted;
    for (size_t i = body_; body_ > 0 && i < p_.ids.size(); ++i)
      if (!is_marker(i)) wanted.push_back(p_.ids[i]);
    by_rarity(wanted, 0.25, 0, true, KeptBecause::rare);
  }
  void linked() {
    Ids wanted;
    for (size_t i = 0; i < p_.ids.size(); ++i)
      if (chunks_[i / 32] == KeptBecause::anchor || chunks_[i / 32] == KeptBecause::rare)
        wanted.push_back(p_.ids[i]);
    by_rarity(wanted, 0.25, 4, false, KeptBecause::linked);
  }
  void repeated() {
    const size_t most = limit(0.125);
    const std::set<int32_t> ids(p_.ids.begin(), p_.ids.end());
    for (const bool asked : {true, false})
      for (size_t hits = 32; hits >= 4; --hits)
        for (const int32_t id : ids) {
          const auto& at = places(id);
          if (at.size() != hits || in_question(id) != asked) continue;
          for (const size_t place : at)
            if (used() < most) take(place / 32, KeptBecause::repeated);
        }
  }
  double value(size_t k) const {
    const double score = static_cast<double>(p_.scores[k]);
    if (!std::isfinite(score)) return -1e300;
    double rare = 0;
    for (size_t i = k * 32; i < std::min(k * 32 + 32, p_.ids.size()); ++i) {
      const size_t hits = places(p_.ids[i]).size();
      if (hits == 1 || hits == 2) ++rare;
    }
    return score <= 0 ? score : score * (1 + 0.25 * std::min(1.0, rare / 4));
  }
  void scores() {
    std::vector<double> values;
    for (size_t k = 0; k < chunks_.size(); ++k) values.push_back(value(k));
    for (const bool is_code : {false, true})
      while (kept_[is_code] < budget_[is_code]) {
        size_t best = chunks_.size();
        for (size_t k = chunks_.size(); k-- > 0;)
          if (!chunks_[k] && code(k) == is_code &&
              (best == chunks_.size() || values[k] >= values[best]))
            best = k;
        if (best == chunks_.size()) break;
        take(best, KeptBecause::score);
      }
  }

  const Prompt& p_;
  std::vector<std::optional<KeptBecause>> chunks_;
  size_t body_ = 0;
  mutable std::map<int32_t, std::vector<size_t>> places_;  // in the body
  std::map<bool, size_t> budget_, kept_;
};

void expect_kept_tokens(const Prompt& prompt, const Selection& selection) {
  std::vector<bool> wanted(prompt.ids.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = selection.chunks[i / kChunkTokens] != KeptBecause::dropped;
  for (const ProtectedRange& range : prompt.protected_ranges)
    for (size_t i = range.tokens.begin; i < range.tokens.end; ++i) wanted[i] = true;
  std::vector<bool> kept(prompt.ids.size());
  size_t last = 0, count = 0;
  for (const TokenRange& range : selection.kept) {
    ASSERT_LT(range.begin, range.end);
    ASSERT_TRUE(range.begin > last || (range.begin == 0 && last == 0)) << "ranges do not touch";
    last = range.end;
    for (size_t i = range.begin; i < range.end; ++i) kept.at(i) = true;
    count += range.end - range.begin;
  }
  EXPECT_EQ(kept, wanted);
  EXPECT_EQ(selection.kept_tokens, count);
}

Prompt random_prompt(std::mt19937& random) {
  Prompt out;
  const size_t tokens = random() % (random() % 3 == 0 ? 300 : 6000);
  // Some ids are frequent, many are rare.
  const uint32_t vocabulary = 1 + random() % (random() % 2 == 0 ? 20 : 3000);
  for (size_t i = 0; i < tokens; ++i)
    out.ids.push_back(static_cast<int32_t>(random() % (1 + random() % vocabulary)));
  if (random() % 2 == 0)  // a question of frequent ids, besides a few
    for (size_t i = tokens - std::min<size_t>(tokens, 96); i < tokens; ++i)
      if (i % 40 != 0) out.ids[i] = static_cast<int32_t>(random() % 3);
  for (int copies = 0; copies < 3 && tokens > 300; ++copies) {  // parts of the question
    const size_t from = tokens - 1 - random() % 90, length = std::min<size_t>(tokens - from, 6);
    const size_t to = random() % (tokens - 200);
    for (size_t i = 0; i < length; ++i) out.ids[to + i] = out.ids[from + i];
  }
  static const std::vector<float> kScores = {0, 0.25f, 0.5f, -1, NAN, INFINITY, 0.3125f};
  for (size_t k = 0; k < chunk_count(tokens); ++k) {
    out.scores.push_back(random() % 2 == 0 ? kScores[random() % kScores.size()]
                                           : static_cast<float>(random() % 1000) / 1000);
    if (tokens % 2 == 0) out.code.push_back(k / 10 % 2 == 0 ? 0.9f : 0.1f);
  }
  // The last turn, if there is one, and ranges before it.
  const size_t turn = random() % 3 == 0 ? std::min<size_t>(tokens, 1 + random() % 120) : 0;
  const size_t before = tokens - turn;
  if (turn > 0) out.protected_ranges.push_back({{before, tokens}, KeptBecause::last_user_turn});
  for (size_t i = random() % 6; i > 0 && before > 0; --i) {
    const size_t begin = random() % before;
    const bool marker = random() % 2 == 0;
    const size_t end = std::min(before, begin + random() % (marker ? 4 : 200));
    out.protected_ranges.push_back(
        {{begin, end}, marker ? KeptBecause::role_marker : KeptBecause::client_mark});
  }
  static const std::vector<double> kRatios = {1e-9, 0.03, 0.1, 0.3, 0.5, 0.7, 1};
  out.ratios = {kRatios[random() % kRatios.size()], kRatios[random() % kRatios.size()]};
  return out;
}

TEST(Selection, FollowsTheRulesOnRandomPrompts) {
  std::mt19937 random(1);
  std::map<KeptBecause, size_t> seen;
  for (int round = 0; round < 200; ++round) {
    const Prompt prompt = random_prompt(random);
    const Selection selection = prompt.select();
    Reasons expected = PlainModel(prompt).choose();
    Reasons found = selection.chunks;
    for (KeptBecause& because : found)
      if (because == KeptBecause::role_marker) because = KeptBecause::client_mark;
    ASSERT_EQ(found, expected) << round;
    expect_kept_tokens(prompt, selection);
    for (const KeptBecause because : found) ++seen[because];
  }
  for (const KeptBecause because :
       {KeptBecause::dropped, KeptBecause::client_mark, KeptBecause::head, KeptBecause::tail,
        KeptBecause::anchor, KeptBecause::rare, KeptBecause::linked, KeptBecause::repeated,
        KeptBecause::score})
    EXPECT_GT(seen[because], 20u) << static_cast<int>(because);
}

TEST(Selection, OfShortPrompts) {
  EXPECT_TRUE(Prompt{}.select().kept.empty());
  for (const size_t tokens : {1, 5, 31, 32, 33, 96, 97, 100, 101, 128}) {
    Prompt prompt;
    for (size_t i = 0; i < tokens; ++i) prompt.ids.push_back(static_cast<int32_t>(i));
    prompt.scores.assign(chunk_count(tokens), 0.5f);
    EXPECT_GE(kept_chunks(prompt.select()), 1u);
    prompt.ratios = {1, 1};
    EXPECT_EQ(prompt.select().kept, (std::vector<TokenRange>{{0, tokens}}));
  }
}

TEST(Selection, HeadAndTailShrinkWithTheBudget) {
  struct Case {
    size_t chunks, head, tail, scores;
  };
  for (const Case& c :
       {Case{700, 8, 24, 38}, Case{640, 8, 24, 32}, Case{400, 5, 15, 20}, Case{90, 1, 3, 5},
        Case{20, 0, 1, 1}, Case{10, 0, 1, 0}, Case{1, 0, 1, 0}}) {
    const Selection selection = filler(c.chunks).select();
    EXPECT_EQ(count_of(selection, KeptBecause::head), c.head) << c.chunks;
    EXPECT_EQ(count_of(selection, KeptBecause::tail), c.tail) << c.chunks;
    EXPECT_EQ(count_of(selection, KeptBecause::score), c.scores) << c.chunks;
    EXPECT_EQ(selection.budget_chunks, std::max<size_t>(1, c.chunks / 10));
  }
}

TEST(Selection, EqualScoresAreKeptByLowerIndex) {
  const Selection selection = filler(400).select();
  for (size_t k = 8; k < 16; ++k) EXPECT_EQ(selection.chunks[k], KeptBecause::score);
  Prompt broken = filler(400);
  broken.scores[8] = NAN;
  broken.scores[9] = INFINITY;
  broken.scores[200] = 0.002f;
  const Selection other = broken.select();
  EXPECT_EQ(other.chunks[8], KeptBecause::dropped);
  EXPECT_EQ(other.chunks[9], KeptBecause::dropped);
  EXPECT_EQ(other.chunks[200], KeptBecause::score);
}

TEST(Selection, AnchorsComeWithNeighborsUnlessTheyAreFiller) {
  for (const auto& [chunks, radius, hits] :
       {std::tuple{400, 2, 8}, std::tuple{1024, 4, 16}, std::tuple{2048, 8, 32}}) {
    for (const int extra : {0, 1}) {
      Prompt prompt = filler(static_cast<size_t>(chunks), {0.2, 0.2});
      const Ids run = {70, 71, 72, 73};
      // The first one lies across the border of two chunks.
      size_t at = 100 * kChunkTokens - 2;
      std::copy(run.begin(), run.end(), prompt.ids.end() - 50);
      for (int i = 0; i < hits + extra; ++i, at = 200 * kChunkTokens + 4 * static_cast<size_t>(i))
        std::copy(run.begin(), run.end(), prompt.ids.begin() + static_cast<ptrdiff_t>(at));
      const Selection selection = prompt.select();
      const auto wide = static_cast<size_t>(radius);
      if (extra == 1) {
        EXPECT_EQ(count_of(selection, KeptBecause::anchor), 0u);
        continue;
      }
      for (size_t k = 99 - wide; k <= 100 + wide; ++k)
        EXPECT_EQ(selection.chunks[k], KeptBecause::anchor);
      EXPECT_NE(selection.chunks[98 - wide], KeptBecause::anchor);
      EXPECT_NE(selection.chunks[101 + wide], KeptBecause::anchor);
    }
  }
}

TEST(Selection, ARareTokenOfTheQuestionIsFoundAndWhatItLinksTo) {
  Prompt prompt = filler(600);
  prompt.ids[100 * 32 + 5] = 900;  // asked for, beside 901
  prompt.ids[100 * 32 + 9] = 901;
  prompt.ids[300 * 32 + 9] = 901;
  prompt.ids[prompt.ids.size() - 20] = 900;
  const Selection selection = prompt.select();
  EXPECT_EQ(selection.chunks[100], KeptBecause::rare);
  EXPECT_EQ(selection.chunks[99], KeptBecause::rare);
  EXPECT_EQ(selection.chunks[101], KeptBecause::rare);
  EXPECT_EQ(selection.chunks[300], KeptBecause::linked);
  EXPECT_EQ(selection.chunks[301], KeptBecause::dropped);
  const size_t marker = prompt.ids.size() - 20;
  prompt.protected_ranges = {{{marker, marker + 1}, KeptBecause::role_marker}};
  EXPECT_NE(prompt.select().chunks[100], KeptBecause::rare) << "a marker asks for nothing";
}

TEST(Selection, TokensThatAQuestionMayCountAreKept) {
  Prompt prompt = filler(800);
  for (size_t i = 0; i < 4; ++i) prompt.ids[(100 + 50 * i) * 32] = 901;  // asked for, fewer
  for (size_t i = 0; i < 5; ++i) prompt.ids[(110 + 50 * i) * 32] = 902;
  for (size_t i = 0; i < 3; ++i) prompt.ids[(120 + 50 * i) * 32] = 903;
  prompt.ids[prompt.ids.size() - 9] = 904;
  const Selection selection = prompt.select();
  EXPECT_EQ(count_of(selection, KeptBecause::repeated), 6u) << "an eighth of 80 - 32";
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(selection.chunks[110 + 50 * i], KeptBecause::repeated);
}

TEST(Selection, RareTokensRaiseAScoreALittle) {
  Prompt prompt = filler(400);
  for (int32_t i = 0; i < 4; ++i) prompt.ids[300 * 32 + static_cast<size_t>(i)] = 900 + i;
  EXPECT_EQ(prompt.select().chunks[300], KeptBecause::score) << "told once";
  for (size_t k = 100; k < 120; ++k) prompt.scores[k] = 0.00126f;
  EXPECT_EQ(prompt.select().chunks[300], KeptBecause::dropped) << "a quarter more at most";
}

TEST(Selection, CodeKeepsItsOwnShare) {
  Prompt prompt = filler(1000, kAutoRatios);
  prompt.code.assign(1000, 0.1f);
  std::fill(prompt.code.begin() + 500, prompt.code.begin() + 700, 0.8f);
  for (size_t k = 0; k < 500; ++k) prompt.scores[k] = 0.9f;  // prose scores higher
  const Selection selection = prompt.select();
  const auto kept = [&](size_t begin, size_t end) {
    size_t count = 0;
    for (size_t k = begin; k < end; ++k) count += selection.chunks[k] != KeptBecause::dropped;
    return count;
  };
  EXPECT_EQ(kept(500, 700), 60u);
  EXPECT_EQ(kept(0, 500) + kept(700, 1000), 80u);
  EXPECT_EQ(selection.budget_chunks, 140u);
}

TEST(Selection, ProtectedTokensAreOutsideTheBudget) {
  Prompt prompt = filler(400);
  prompt.protected_ranges = {{{6400, 9600}, KeptBecause::last_user_turn},
                             {{0, 64}, KeptBecause::instructions},
                             {{32, 70}, KeptBecause::client_mark},
                             {{3205, 3207}, KeptBecause::role_marker}};
  const Selection selection = prompt.select();
  expect_kept_tokens(prompt, selection);
  EXPECT_EQ(selection.chunks[0], KeptBecause::instructions);
  EXPECT_EQ(selection.chunks[1], KeptBecause::instructions);
  EXPECT_EQ(selection.chunks[200], KeptBecause::last_user_turn);
  EXPECT_EQ(selection.chunks[299], KeptBecause::last_user_turn);
  EXPECT_EQ(selection.chunks[100], KeptBecause::dropped) << "a marker keeps no chunk";
  EXPECT_EQ(selection.free_chunks, 298u);
  EXPECT_EQ(selection.budget_chunks, 29u);
  EXPECT_EQ(kept_chunks(selection), 102u + 29u);
  prompt.protected_ranges = {{{0, prompt.ids.size()}, KeptBecause::client_mark}};
  EXPECT_EQ(prompt.select().kept_tokens, prompt.ids.size());
  EXPECT_EQ(prompt.select().budget_chunks, 0u);
}

// Each of these would take hours in quadratic time.
TEST(Selection, HostileMillionTokenPromptsAreLinear) {
  constexpr size_t kTokens = 1'000'000;
  std::mt19937 random(7);
  Prompt prompt;
  prompt.scores.assign(chunk_count(kTokens), 0.5f);
  prompt.ids.assign(kTokens, 7);
  EXPECT_EQ(kept_chunks(prompt.select()), kTokens / 320);
  for (size_t i = 0; i < kTokens; ++i) prompt.ids[i] = static_cast<int32_t>(i);
  EXPECT_EQ(kept_chunks(prompt.select()), kTokens / 320);
  // Each run of the question as often as it counts, and eight hits of each other id.
  for (size_t i = 0; i < kTokens; ++i) prompt.ids[i] = 100 + static_cast<int32_t>(i / 8);
  for (size_t i = 0; i < 33 * 9600; i += 9600)
    for (size_t j = 0; j < 96; ++j)
      prompt.ids[i == 32 * 9600 ? kTokens - 96 + j : i + j] = static_cast<int32_t>(j);
  EXPECT_GE(kept_chunks(prompt.select()), kTokens / 320);
  // Overlapping protected ranges.
  for (size_t i = 0; i < 100'000; ++i)
    prompt.protected_ranges.push_back({{random() % 1000, kTokens - random() % 1000}});
  EXPECT_GT(prompt.select().kept_tokens, kTokens - 2000);
}

}  // namespace
}  // namespace braid
