// joint_drafter.h -- merges the proposals of several drafters into one tree.
//
// Equal drafts get the higher probability; if there are too many, the most probable paths stay. A
// drafter with a model runs only for sequences where the others promise less than it usually
// brings.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

class JointDrafter : public Drafter {
 public:
  // The probability that a draft at a depth is accepted if its parent is.
  using Survives = std::function<double(const Draft&, int32_t depth)>;

  // The cheapest one first.
  explicit JointDrafter(std::vector<std::unique_ptr<Drafter>> drafters);

  // Without it the drafters' own probabilities count.
  void set_survives(Survives survives) { survives_ = std::move(survives); }

  void set_oracle(Oracle* oracle) override {
    for (const auto& drafter : drafters_) drafter->set_oracle(oracle);
  }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override;

 private:
  double promised(const Drafts& drafts, DraftSource source);
  void merge(const Drafts& drafts, DraftSource source);
  // Parents stay before children.
  void keep_best(size_t most);

  std::vector<std::unique_ptr<Drafter>> drafters_;
  Survives survives_;
  double accepted_of_models_ = 1;  // per round, moving average; runs correct the low start
  std::vector<double> promised_;   // [item]
  std::vector<std::pair<double, int32_t>> reached_;  // of drafts: path probability, path length
  std::vector<std::vector<Drafts>> proposed_;        // [drafter][item]
  Drafts tree_;
  std::vector<int32_t> node_of_;  // of a drafter's drafts, in the tree
  std::vector<float> paths_;      // log probability of a node's whole path
  std::vector<int32_t> order_;
};

}  // namespace braid
