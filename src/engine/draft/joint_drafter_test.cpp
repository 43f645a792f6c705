// joint_drafter_test.cpp -- the proposals of several drafters become one tree.
#include "engine/draft/joint_drafter.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace braid {
namespace {

class Says : public Drafter {
 public:
  Says(DraftSource source, Drafts drafts) : source_(source), drafts_(std::move(drafts)) {}
  DraftSource source() const override { return source_; }
  void propose(StepPlan& plan, int32_t) override {
    for (StepItem& item : plan.items) {
      EXPECT_TRUE(item.drafts.empty());
      if (source_ == DraftSource::mtp) item.model_ran = item.may_run_model;
      if (source_ == DraftSource::mtp && !item.model_ran) continue;
      item.drafts = drafts_;
    }
  }
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  DraftSource source_;
  Drafts drafts_;
};

Drafts jointly(Drafts a, Drafts b, int32_t most, int32_t budget = 100) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<Says>(DraftSource::ngram, std::move(a)));
  drafters.push_back(std::make_unique<Says>(DraftSource::mtp, std::move(b)));
  JointDrafter joint(std::move(drafters));
  joint.set_survives([](const Draft&, int32_t) { return 0; });  // so all of them run
  StepPlan plan;
  plan.items.resize(1);
  plan.items[0].draft_count = most;
  joint.propose(plan, budget);
  return plan.items[0].drafts;
}

TEST(JointDrafter, SharesWhatBothSayAndKeepsTheRestBesideIt) {
  const Drafts tree = jointly({{7, -1, -0.5f}, {8, 0, -0.2f}, {9, 1, -0.2f}},
                              {{7, -1, -0.1f}, {8, 0, -0.3f}, {5, 1, -0.4f}}, 10);
  ASSERT_EQ(tree.size(), 4u);
  const int32_t tokens[] = {7, 8, 9, 5}, parents[] = {-1, 0, 1, 1};
  const float log_q[] = {-0.1f, -0.2f, -0.2f, -0.4f};
  const DraftSource sources[] = {DraftSource::mtp, DraftSource::ngram, DraftSource::ngram,
                                 DraftSource::mtp};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tree[i].token, tokens[i]) << i;
    EXPECT_EQ(tree[i].parent, parents[i]) << i;
    EXPECT_EQ(tree[i].log_q, log_q[i]) << i;
    EXPECT_EQ(tree[i].source, sources[i]) << i;
  }
}

TEST(JointDrafter, TheMostProbablePathsStay) {
  const Drafts tree =
      jointly({{1, -1, -1.0f}, {2, 0, -0.1f}}, {{3, -1, -0.2f}, {4, 0, -0.3f}, {5, 1, -3.0f}}, 3);
  ASSERT_EQ(tree.size(), 3u);
  const int32_t tokens[] = {1, 3, 4}, parents[] = {-1, -1, 1};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tree[i].token, tokens[i]) << i;
    EXPECT_EQ(tree[i].parent, parents[i]) << i;
  }
  EXPECT_EQ(jointly({{1, -1, -1.0f}}, {{3, -1, -0.2f}}, 5, 1).size(), 1u);
  EXPECT_TRUE(jointly({{1, -1, -1.0f}}, {{3, -1, -0.2f}}, 5, 0).empty());
}

TEST(JointDrafter, ModelsAreRunWhereFreeDraftsPromiseLess) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(
      std::make_unique<Says>(DraftSource::ngram, Drafts{{7, -1, -0.1f}, {8, 0, -0.1f}}));
  drafters.push_back(
      std::make_unique<Says>(DraftSource::mtp, Drafts{{1, -1, -0.1f}, {2, 0, -0.1f}}));
  JointDrafter joint(std::move(drafters));
  double survives = 0.9;
  joint.set_survives([&](const Draft& draft, int32_t depth) {
    EXPECT_EQ(draft.token, (draft.source == DraftSource::ngram ? 7 : 1) + depth);
    return survives;
  });
  const auto runs = [&](size_t accepted) {
    StepPlan plan;
    plan.items.resize(1);
    plan.items[0].draft_count = 10;
    joint.propose(plan, 10);
    std::vector<Verdict> verdicts(1);
    verdicts[0].accepted.resize(accepted);
    joint.observe(plan, verdicts);
    return plan.items[0].model_ran;
  };
  EXPECT_FALSE(runs(2)) << "1.7 are promised, and the model is taken for one that brings one";
  survives = 0.5;
  EXPECT_TRUE(runs(3)) << "0.75 are promised";
  for (int i = 0; i < 100; ++i) runs(3);
  survives = 0.9;
  EXPECT_TRUE(runs(0)) << "it has brought three";
  survives = 0.1;
  for (int i = 0; i < 200; ++i) runs(0);
  survives = 0.4;
  EXPECT_FALSE(runs(0)) << "it has brought nothing";
}

// Paths come from a drafter, siblings differ, and a smaller tree is closed under parents.
TEST(JointDrafter, RandomTreesHoldWhatTheirDraftersSaid) {
  std::mt19937 random(3);
  const auto any = [&] {
    Drafts tree;
    std::map<std::pair<int32_t, int32_t>, bool> taken;
    for (int32_t i = 0; i < 8; ++i) {
      const auto parent =
          static_cast<int32_t>(random() % static_cast<uint32_t>(tree.size() + 1)) - 1;
      const auto token = static_cast<int32_t>(random() % 4);
      if (std::exchange(taken[{parent, token}], true)) continue;
      tree.push_back({token, parent, -static_cast<float>(random() % 100) / 50});
    }
    return tree;
  };
  const auto paths = [](const Drafts& tree) {
    std::map<std::vector<int32_t>, int> found;
    std::vector<std::vector<int32_t>> of;
    for (const Draft& node : tree) {
      EXPECT_LT(node.parent, static_cast<int32_t>(of.size()));
      of.push_back(node.parent < 0 ? std::vector<int32_t>() : of[static_cast<size_t>(node.parent)]);
      of.back().push_back(node.token);
      ++found[of.back()];
    }
    return found;
  };
  for (int round = 0; round < 200; ++round) {
    const Drafts a = any(), b = any();
    auto wanted = paths(a);
    for (const auto& [path, count] : paths(b)) wanted[path] += count;
    const auto all = paths(jointly(a, b, 100));
    EXPECT_EQ(all.size(), wanted.size());
    for (const auto& [path, count] : all) {
      EXPECT_EQ(count, 1);
      EXPECT_TRUE(wanted.contains(path));
    }
    const auto most = static_cast<int32_t>(random() % 8);
    const auto few = paths(jointly(a, b, most));
    EXPECT_EQ(few.size(), std::min<size_t>(all.size(), static_cast<size_t>(most)));
    for (const auto& [path, count] : few) EXPECT_TRUE(all.contains(path));
  }
}

TEST(JointDrafter, EverySequenceGetsItsOwn) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<Says>(DraftSource::ngram, Drafts{{1, -1, -0.5f}}));
  drafters.push_back(std::make_unique<Says>(DraftSource::mtp, Drafts{{2, -1, -0.5f}}));
  JointDrafter joint(std::move(drafters));
  joint.set_survives([](const Draft&, int32_t) { return 0; });  // so all of them run
  StepPlan plan;
  plan.items.resize(3);
  for (StepItem& item : plan.items) item.draft_count = 4;
  joint.propose(plan, 5);
  EXPECT_EQ(plan.items[0].drafts.size(), 2u);
  EXPECT_EQ(plan.items[1].drafts.size(), 2u);
  EXPECT_EQ(plan.items[2].drafts.size(), 1u);
}

}  // namespace
}  // namespace braid
