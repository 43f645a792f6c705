// joint_drafter.h -- several drafters at once: what each of them proposes, as one tree.
//
// Where they say the same, they share the draft, at the higher of their probabilities. Of more drafts than a
// sequence may have, the most probable paths stay. A drafter that runs a model is asked only for sequences for which
// those before it promise fewer accepted drafts than it has brought so far: text that repeats itself is free.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

class JointDrafter : public Drafter {
 public:
  // How likely a draft at a depth is accepted whose parent is.
  using Survives = std::function<double(const Draft&, int32_t depth)>;

  // The cheapest one first.
  explicit JointDrafter(std::vector<std::unique_ptr<Drafter>> drafters);

  // Else drafters are taken at their own word.
  void set_survives(Survives survives) { survives_ = std::move(survives); }

  void set_oracle(Oracle* oracle) override {
    for (const auto& drafter : drafters_) drafter->set_oracle(oracle);
  }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override;

 private:
  // Of an item's drafts, how many are to be expected to be accepted.
  double promised(const Drafts& drafts, DraftSource source);
  void merge(const Drafts& drafts, DraftSource source);
  // Parents are still before children.
  void keep_best(size_t most);

  std::vector<std::unique_ptr<Drafter>> drafters_;
  Survives survives_;
  double accepted_of_models_ = 1;  // drafts a round, a moving mean; the first guess is low: who asks learns
  std::vector<double> promised_;   // [item]
  std::vector<std::pair<double, int32_t>> reached_;  // of drafts: the probability of their path, its length
  std::vector<std::vector<Drafts>> proposed_;        // [drafter][item]
  Drafts tree_;
  std::vector<int32_t> node_of_;  // in the tree, of a drafter's drafts
  std::vector<float> paths_;      // log of the probability of a node's whole path
  std::vector<int32_t> order_;
};

}  // namespace braid
