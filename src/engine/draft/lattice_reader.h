// lattice_reader.h -- turns the candidates of any drafter network into drafts of a sequence.
//
// For sampled answers candidates are weighted as the request's sampler would, and get the noise
// that the answer will be drawn with. The drafts are a chain of the best per row, or a tree of the
// most probable paths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/lattice.h"
#include "engine/schedule/step_plan.h"

namespace braid {

class LatticeReader {
 public:
  struct Options {
    bool trees = false;
    float p_min = 0;         // smallest probability of a draft, given its parent
    int64_t vocabulary = 0;  // larger ids are invalid
  };
  void set_options(const Options& options) { options_ = options; }
  void set_oracle(Oracle* oracle) { oracle_ = oracle; }

  void begin(const Sequence& sequence, LatticeKind kind, int32_t depths, int32_t width);
  // Row d after candidate `parent` of the row before; its tokens do not depend on `parent`.
  struct Row {
    std::span<const int32_t> tokens;
    std::span<const float> logits;
    const float* log_sum = nullptr;     // over all tokens; null: over these alone
    const float* acceptance = nullptr;  // probability that the best one is accepted; null: unknown
  };
  void set_row(int32_t d, int32_t parent, const Row& row);
  // Of a chain lattice: the best candidate of row d, which row d + 1 follows; -1: none is possible.
  int32_t choose(int32_t d);

  // Adds at most `most` drafts to the item, which must have none.
  void read(StepItem& item, int32_t most);

 private:
  void read_chain(StepItem& item, int32_t most) const;

  Options options_;
  Oracle* oracle_ = nullptr;
  const Sequence* sequence_ = nullptr;
  Lattice lattice_;
  TreeBuilder builder_;
  std::vector<size_t> order_;  // of a row's candidates
};

}  // namespace braid
