// joint_drafter.cpp -- see joint_drafter.h.
#include "engine/draft/joint_drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace braid {

JointDrafter::JointDrafter(std::vector<std::unique_ptr<Drafter>> drafters)
    : drafters_(std::move(drafters)), proposed_(drafters_.size()) {}

double JointDrafter::promised(const Drafts& drafts, DraftSource source) {
  double sum = 0;
  reached_.clear();
  for (Draft draft : drafts) {
    if (draft.source == DraftSource::other) draft.source = source;
    const auto [parent, depth] =
        draft.parent < 0 ? std::pair(1.0, 0) : reached_[static_cast<size_t>(draft.parent)];
    const double own = survives_ ? survives_(draft, depth) : std::exp(double{draft.log_q});
    reached_.emplace_back(parent * own, depth + 1);
    sum += parent * own;
  }
  return sum;
}

void JointDrafter::propose(StepPlan& plan, int32_t budget) {
  promised_.assign(plan.items.size(), 0);
  for (size_t k = 0; k < drafters_.size(); ++k) {
    for (size_t i = 0; i < plan.items.size(); ++i)
      if (promised_[i] >= accepted_of_models_) plan.items[i].may_run_model = false;
    drafters_[k]->propose(plan, budget);
    proposed_[k].resize(std::max(proposed_[k].size(), plan.items.size()));
    for (size_t i = 0; i < plan.items.size(); ++i) {
      proposed_[k][i].clear();
      std::swap(proposed_[k][i], plan.items[i].drafts);
      promised_[i] = std::max(promised_[i], promised(proposed_[k][i], drafters_[k]->source()));
    }
  }
  for (size_t i = 0; i < plan.items.size(); ++i) {
    tree_.clear();
    for (size_t k = 0; k < drafters_.size(); ++k) merge(proposed_[k][i], drafters_[k]->source());
    keep_best(static_cast<size_t>(std::max(0, std::min(plan.items[i].draft_count, budget))));
    budget -= static_cast<int32_t>(tree_.size());
    plan.items[i].drafts.assign(tree_.begin(), tree_.end());
  }
}

void JointDrafter::observe(const StepPlan& plan, std::span<const Verdict> verdicts) {
  for (const auto& drafter : drafters_) drafter->observe(plan, verdicts);
  constexpr double kRate = 1.0 / 32;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (!plan.items[i].model_ran || verdicts[i].finished) continue;
    accepted_of_models_ +=
        kRate * (static_cast<double>(verdicts[i].accepted.size()) - accepted_of_models_);
  }
}

void JointDrafter::merge(const Drafts& drafts, DraftSource source) {
  node_of_.clear();
  for (Draft draft : drafts) {
    if (draft.parent >= 0) draft.parent = node_of_[static_cast<size_t>(draft.parent)];
    if (draft.source == DraftSource::other) draft.source = source;
    const auto same = std::find_if(tree_.begin(), tree_.end(), [&](const Draft& node) {
      return node.parent == draft.parent && node.token == draft.token;
    });
    node_of_.push_back(static_cast<int32_t>(same - tree_.begin()));
    if (same == tree_.end()) {
      tree_.push_back(draft);
    } else if (draft.log_q > same->log_q) {
      *same = draft;
    }
  }
}

void JointDrafter::keep_best(size_t most) {
  if (tree_.size() <= most) return;
  paths_.clear();
  for (const Draft& node : tree_)
    paths_.push_back(std::min(node.log_q, 0.0f) +
                     (node.parent < 0 ? 0 : paths_[static_cast<size_t>(node.parent)]));
  order_.resize(tree_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return paths_[static_cast<size_t>(a)] > paths_[static_cast<size_t>(b)];
  });
  order_.resize(most);
  std::sort(order_.begin(), order_.end());
  node_of_.assign(tree_.size(), -1);
  for (size_t n = 0; n < most; ++n) {
    const auto from = static_cast<size_t>(order_[n]);
    Draft node = tree_[from];
    if (node.parent >= 0) node.parent = node_of_[static_cast<size_t>(node.parent)];
    node_of_[from] = static_cast<int32_t>(n);
    tree_[n] = node;
  }
  tree_.resize(most);
}

}  // namespace braid
