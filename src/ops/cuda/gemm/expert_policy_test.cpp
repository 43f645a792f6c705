// expert_policy_test.cpp -- the table of expert slots against a plain model, over random steps.
#include "ops/cuda/gemm/expert_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "ops/tests/op_test.h"

namespace braid::cuda {
namespace {

// The policy in words: scores halve every half_life steps; a wanted expert takes the lowest one's
// slot if it beats it by kMargin.
class Model {
 public:
  Model(int experts, int slots, float half_life)
      : half_life_(half_life), experts_(experts), slots_(slots), score_(experts), last_(experts) {
    for (int s = 0; s < slots; ++s) owner_.push_back(s);
  }
  bool resident(int e) const { return std::count(owner_.begin(), owner_.end(), e) > 0; }
  int slot(int e) const {
    return static_cast<int>(std::find(owner_.begin(), owner_.end(), e) - owner_.begin());
  }

  // rows: whether they admit, and their choice. Returns where each chosen expert lies.
  std::map<int, int> step(const std::vector<std::pair<bool, std::vector<int>>>& rows) {
    std::map<int, int> uses, admits;
    for (const auto& [admitting, ids] : rows)
      for (const int id : ids) {
        ++uses[id];
        if (admitting) ++admits[id];
      }
    std::vector<float> now(static_cast<size_t>(experts_));
    for (int e = 0; e < experts_; ++e)
      now[e] = score_[e] * std::exp2(-static_cast<float>(clock_ - last_[e]) / half_life_) +
               static_cast<float>(admits.count(e) > 0 ? admits[e] : 0);
    std::vector<int> victims;  // slots, the lowest score first
    for (int s = 0; s < slots_; ++s)
      if (uses.count(owner_[s]) == 0) victims.push_back(s);
    std::stable_sort(victims.begin(), victims.end(),
                     [&](int a, int b) { return now[owner_[a]] < now[owner_[b]]; });
    std::map<int, int> where;
    std::vector<std::pair<int, int>> admitted;
    int missing = 0;
    size_t wanting = 0;
    for (const auto& [e, count] : uses) {
      if (resident(e)) {
        where[e] = slot(e);
        continue;
      }
      where[e] = slots_ + missing++;
      if (admits.count(e) == 0) continue;
      const size_t rank = wanting++;
      if (rank >= victims.size() || !(now[e] > kMargin * now[owner_[victims[rank]]])) continue;
      where[e] = victims[rank];
      admitted.emplace_back(victims[rank], e);
    }
    for (const auto& [s, e] : admitted) owner_[s] = e;
    for (const auto& [e, count] : admits) {
      score_[e] = now[e];
      last_[e] = clock_;
    }
    if (!admits.empty()) ++clock_;
    return where;
  }

  float half_life_;
  int experts_, slots_;
  std::vector<float> score_;
  std::vector<uint32_t> last_;
  std::vector<int> owner_;
  uint32_t clock_ = 0;
};

struct TestTable {
  std::vector<int32_t> place, owner, slot_of;
  std::vector<float> score;
  std::vector<uint32_t> last;
  uint32_t clock = 0;
  int32_t staged = 0;
  unsigned long long counts[kCounts] = {};
  SlotTable view;

  TestTable(int experts, int slots)
      : place(experts, kNoSlot), owner(slots), slot_of(experts), score(experts), last(experts) {
    for (int s = 0; s < slots; ++s) place[s] = owner[s] = slot_of[s] = s;
    view.experts = experts;
    view.slots = slots;
    view.place = place.data();
    view.owner = owner.data();
    view.score = score.data();
    view.last = last.data();
    view.clock = &clock;
    view.slot_of = slot_of.data();
    view.counts = counts;
    view.staged = &staged;
  }
};

void expect_whole(const TestTable& b) {
  std::set<int> owners;
  for (int s = 0; s < b.view.slots; ++s) {
    ASSERT_GE(b.owner[s], 0);
    EXPECT_TRUE(owners.insert(b.owner[s]).second) << "expert " << b.owner[s] << " has two slots";
    EXPECT_EQ(b.place[b.owner[s]], s);
  }
  for (int e = 0; e < b.view.experts; ++e)
    if (b.place[e] != kNoSlot) {
      EXPECT_EQ(b.owner[b.place[e]], e);
    }
}

using Rows = std::vector<std::pair<bool, std::vector<int>>>;

int take_step(TestTable& table, ExpertChoice& choice, const Rows& rows) {
  const Team team;
  clear_choice(team, choice);
  for (const auto& [admits, ids] : rows)
    for (const int id : ids) count_use(team, choice, table.view, id, admits);
  const int missing = find_missing(team, choice, table.view);
  score_all(team, choice, table.view);
  if (missing > 0) choose_slots(team, choice, table.view);
  publish(team, choice, table.view);
  return missing;
}

TEST(ExpertPolicy, DoesWhatTheModelDoesOverRandomSteps) {
  test::Random random(1);
  const auto choice = std::make_unique<ExpertChoice>();
  struct Size {
    int experts, slots, used;
  };
  for (const Size size : {Size{8, 1, 2}, Size{16, 15, 4}, Size{64, 8, 8}, Size{256, 32, 8},
                          Size{512, 300, 10}, Size{1024, 40, 32}}) {
    TestTable table(size.experts, size.slots);
    table.view.half_life = half_life_of(size.slots, size.used);
    Model model(size.experts, size.slots, table.view.half_life);
    unsigned long long chosen = 0, missed = 0;
    for (int step = 0; step < 2000; ++step) {
      std::vector<std::pair<bool, std::vector<int>>> rows;
      const auto count = random.between(1, step % 50 == 0 ? 40 : 5);
      const auto near = random.between(0, size.experts - 1);
      for (int64_t row = 0; row < count; ++row) {
        std::set<int> ids;
        while (std::ssize(ids) < size.used) {
          const auto far = random.between(0, 3) == 0 ? random.between(0, size.experts - 1)
                                                     : random.between(0, 2 * size.used);
          ids.insert(static_cast<int>((near / 8 * 8 + far) % size.experts));
        }
        rows.emplace_back(random.between(0, 2) > 0, std::vector<int>(ids.begin(), ids.end()));
      }
      const int missing = take_step(table, *choice, rows);
      const auto where = model.step(rows);
      for (const auto& [e, at] : where)
        ASSERT_EQ(table.slot_of[e], at) << "expert " << e << " in step " << step;
      for (int e = 0; e < size.experts; ++e) {
        ASSERT_GE(table.slot_of[e], 0);
        ASSERT_LT(table.slot_of[e], size.experts);
      }
      chosen += where.size();
      missed += static_cast<unsigned long long>(missing);
      if (step % 100 == 0) expect_whole(table);
    }
    EXPECT_EQ(table.owner, model.owner_);
    EXPECT_EQ(table.counts[0], 2000u);
    EXPECT_EQ(table.counts[1], chosen);
    EXPECT_EQ(table.counts[2] + table.counts[3], missed);
    EXPECT_GT(table.counts[2], 0u);
  }
}

// A step with few hits alone, and none after all, has its own way.
TEST(ExpertPolicy, HitsAloneAreCountedAlike) {
  test::Random random(2);
  const auto choice = std::make_unique<ExpertChoice>();
  const Team team;
  TestTable table(12, 9), plain(12, 9);
  int hits_alone = 0;
  for (int step = 0; step < 3000; ++step) {
    Rows rows;
    for (auto row = random.between(1, 3); row > 0; --row) {
      const auto first = static_cast<int>(random.between(0, 60) == 0 ? random.between(0, 11)
                                                                     : random.between(0, 6));
      rows.emplace_back(random.between(0, 2) > 0,
                        std::vector<int>{first, (first + 1) % 12, (first + 2) % 12});
    }
    std::vector<int32_t> ids;
    uint32_t admits = 0;
    bool all_here = plain.staged == 0;
    for (const auto& [admitting, chosen] : rows)
      for (const int id : chosen) {
        if (admitting) admits |= 1u << ids.size();
        ids.push_back(id);
        all_here = all_here && table.place[id] != kNoSlot;
      }
    take_step(plain, *choice, rows);
    if (all_here) {
      uint32_t distinct = 0;
      count_hits(team, table.view, ids.data(), admits, static_cast<int>(ids.size()), &distinct);
      ++hits_alone;
    } else {
      take_step(table, *choice, rows);
    }
    ASSERT_EQ(table.place, plain.place) << step;
    ASSERT_EQ(table.score, plain.score) << step;
    ASSERT_EQ(table.last, plain.last) << step;
    ASSERT_EQ(table.clock, plain.clock) << step;
    for (const int32_t id : ids) ASSERT_EQ(table.slot_of[id], plain.slot_of[id]) << step;
    for (int i = 0; i < kCounts; ++i) ASSERT_EQ(table.counts[i], plain.counts[i]) << i;
  }
  EXPECT_GT(hits_alone, 1000);
  EXPECT_LT(hits_alone, 2990);
}

// Drafts and prompts choose experts that decoding may never need.
TEST(ExpertPolicy, RowsThatDoNotAdmitChangeNothing) {
  TestTable table(16, 4);
  const auto choice = std::make_unique<ExpertChoice>();
  const Team team;
  for (int step = 0; step < 20; ++step) {
    clear_choice(team, *choice);
    for (int id = 8; id < 12; ++id) count_use(team, *choice, table.view, id, false);
    EXPECT_EQ(find_missing(team, *choice, table.view), 4);
    score_all(team, *choice, table.view);
    choose_slots(team, *choice, table.view);
    publish(team, *choice, table.view);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(table.slot_of[8 + i], 4 + i);
  }
  EXPECT_EQ(table.owner, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(table.clock, 0u);
  EXPECT_EQ(table.counts[3], 80u);
}

// An expert that comes once does not displace one that is used all the time.
TEST(ExpertPolicy, KeepsWhatIsUsed) {
  TestTable table(8, 2);
  const auto choice = std::make_unique<ExpertChoice>();
  const Team team;
  for (int step = 0; step < 40; ++step) {
    clear_choice(team, *choice);
    count_use(team, *choice, table.view, 5, true);
    if (step > 10) count_use(team, *choice, table.view, step % 2 == 0 ? 6 : 7, true);
    const int missing = find_missing(team, *choice, table.view);
    score_all(team, *choice, table.view);
    if (missing > 0) choose_slots(team, *choice, table.view);
    publish(team, *choice, table.view);
    EXPECT_NE(table.place[5], kNoSlot) << step;
  }
}

TEST(ExpertPolicy, ReadsAsManyAsEndTogetherWithThoseOfTheHost) {
  test::Random random(3);
  for (int i = 0; i < 10000; ++i) {
    const ShareTimes t{static_cast<float>(random.between(1, 200)),
                       static_cast<float>(random.between(1, 200)),
                       static_cast<float>(random.between(-100, 100))};
    const auto missing = static_cast<int>(random.between(1, 60));
    const auto end = [&](int read) {
      const int computed = missing - read;
      return std::max(read * t.read, computed == 0 ? 0 : t.ahead + computed * t.compute);
    };
    float best = end(0);
    for (int read = 1; read <= missing; ++read) best = std::min(best, end(read));
    EXPECT_LE(end(experts_to_read(missing, t)), best * 1.0001f + 1e-3f)
        << missing << " " << t.read << " " << t.compute << " " << t.ahead;
  }
  EXPECT_EQ(experts_to_read(1, {35, 25, 8}), 0);
  EXPECT_EQ(experts_to_read(1, {35, 2500, 8}), 1);
  EXPECT_EQ(experts_to_read(8, {100, 100, 0}), 4);
}

// Experts of the host are those with the lowest scores; they keep their scores and get no slot.
TEST(ExpertPolicy, TheHostsExpertsStayMissing) {
  test::Random random(4);
  const auto choice = std::make_unique<ExpertChoice>();
  const Team team;
  TestTable table(64, 12);
  unsigned long long computed = 0, chosen = 0, missed = 0;
  for (int step = 0; step < 2000; ++step) {
    std::set<int> ids;
    while (ids.size() < 8)
      ids.insert(static_cast<int>(random.between(0, 3) == 0 ? random.between(0, 63)
                                                            : random.between(0, 20)));
    clear_choice(team, *choice);
    for (const int id : ids) count_use(team, *choice, table.view, id, true);
    const int missing = find_missing(team, *choice, table.view);
    score_all(team, *choice, table.view);
    std::vector<int> gone;
    for (const int id : ids)
      if (table.place[id] == kNoSlot) gone.push_back(id);
    std::stable_sort(gone.begin(), gone.end(),
                     [&](int a, int b) { return choice->score[a] > choice->score[b]; });
    ASSERT_EQ(std::ssize(gone), missing);
    int read = missing;
    if (missing > 0) {
      const ShareTimes times{static_cast<float>(random.between(1, 50)), 10, 5};
      if (host_helps(table.view, missing, times)) {
        read = choose_read(team, *choice, table.view, missing, times);
        ASSERT_LE(read, missing);
        give_to_host(team, *choice, table.view, missing, read);
      }
      choose_slots(team, *choice, table.view);
    }
    publish(team, *choice, table.view);
    for (int i = 0; i < missing; ++i) {
      const int e = gone[static_cast<size_t>(i)];
      EXPECT_EQ(has_bit(choice->by_host, e), i >= read);
      if (i < read) continue;
      EXPECT_EQ(table.place[e], kNoSlot);
      EXPECT_EQ(table.slot_of[e], 0);
      EXPECT_EQ(table.last[e], static_cast<uint32_t>(step));
    }
    std::set<int> listed;
    for (int i = 0; i < read; ++i) listed.insert(choice->missing_id[i]);
    EXPECT_EQ(listed, std::set<int>(gone.begin(), gone.begin() + read));
    chosen += ids.size();
    missed += static_cast<unsigned long long>(missing);
    computed += static_cast<unsigned long long>(missing - read);
    if (step % 100 == 0) expect_whole(table);
  }
  EXPECT_EQ(table.counts[1], chosen);
  EXPECT_EQ(table.counts[2] + table.counts[3] + table.counts[4], missed);
  EXPECT_EQ(table.counts[4], computed);
  EXPECT_GT(computed, 0u);
  EXPECT_GT(table.counts[2], 0u);
}

// A few layers are tried in a few steps, and rarely if the host was far slower.
TEST(ExpertPolicy, TriesTheOtherWayNowAndThen) {
  for (const float compute : {20.0f, 2000.0f}) {
    const ShareTimes times{10, compute, 0};
    uint64_t tries = 0;
    constexpr int kLayers = 40;
    constexpr unsigned long long kSteps = 1ull << 18;
    for (int layer = 0; layer < kLayers; ++layer) {
      TestTable table(16, 4);
      table.view.layer = layer;
      table.view.layers = kLayers;
      uint64_t own = 0;
      for (table.counts[0] = 0; table.counts[0] < kSteps; ++table.counts[0])
        own += host_helps(table.view, 1, times) ? 1 : 0;
      EXPECT_GT(own, 0u) << layer;
      tries += own;
    }
    const double a_step = static_cast<double>(tries) / kSteps;
    EXPECT_LT(a_step, compute < 100 ? 0.1 : 0.013);
  }
}

// If the host is far faster than the link, experts that are used again and again are read all the
// same, one a step, and are then resident.
TEST(ExpertPolicy, WhatIsUsedOftenIsReadAndKept) {
  const auto choice = std::make_unique<ExpertChoice>();
  const Team team;
  TestTable table(16, 4);
  for (int step = 0; step < 40; ++step) {
    clear_choice(team, *choice);
    for (const int id : {8, 9, 10}) count_use(team, *choice, table.view, id, true);
    const int missing = find_missing(team, *choice, table.view);
    score_all(team, *choice, table.view);
    if (missing > 0) {
      ASSERT_TRUE(host_helps(table.view, missing, {500, 10, 0}));
      const int read = choose_read(team, *choice, table.view, missing, {500, 10, 0});
      EXPECT_LE(read, 1);
      give_to_host(team, *choice, table.view, missing, read);
      choose_slots(team, *choice, table.view);
    }
    publish(team, *choice, table.view);
  }
  for (const int id : {8, 9, 10}) EXPECT_NE(table.place[id], kNoSlot);
}

}  // namespace
}  // namespace braid::cuda
