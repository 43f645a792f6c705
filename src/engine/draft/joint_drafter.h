// joint_drafter.h -- several drafters at once: what each of them proposes, as one tree.
//
// Where they say the same, they share the draft, at the higher of their probabilities. Of more drafts than a
// sequence may have, the most probable paths stay.
#pragma once

#include <memory>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

class JointDrafter : public Drafter {
 public:
  explicit JointDrafter(std::vector<std::unique_ptr<Drafter>> drafters);

  void set_oracle(Oracle* oracle) override {
    for (const auto& drafter : drafters_) drafter->set_oracle(oracle);
  }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override;

 private:
  void merge(const std::vector<Draft>& drafts, DraftSource source);
  // Parents are still before children.
  void keep_best(size_t most);

  std::vector<std::unique_ptr<Drafter>> drafters_;
  std::vector<std::vector<std::vector<Draft>>> proposed_;  // [drafter][item]
  std::vector<Draft> tree_;
  std::vector<int32_t> node_of_;  // in the tree, of a drafter's drafts
  std::vector<float> paths_;      // log of the probability of a node's whole path
  std::vector<int32_t> order_;
};

}  // namespace braid
