// lattice_reader.h -- from the candidates of a network that drafts to the drafts of a sequence: the one way
// for all such drafters.
//
// Where answers are drawn, candidates are weighed as the request's sampler would weigh them, and get the
// noise that the answer will be drawn with: the best of a row is the token that the model will draw, if it
// thinks alike. Then the drafts are the best of each row, a chain, or a tree of the most probable paths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/lattice/lattice.h"
#include "engine/schedule/step_plan.h"

namespace braid {

class LatticeReader {
 public:
  struct Options {
    bool trees = false;
    float p_min = 0;         // what is less probable to the drafter, behind its parent, is no draft
    int64_t vocabulary = 0;  // ids beyond are none
  };
  void set_options(const Options& options) { options_ = options; }
  void set_oracle(Oracle* oracle) { oracle_ = oracle; }

  // The lattice of a sequence's next `depths` tokens, all impossible for now.
  void begin(const Sequence& sequence, LatticeKind kind, int32_t depths, int32_t width);
  // The candidates of row d behind candidate `parent` of the row before (lattice.h). The tokens of a row are
  // the same behind every parent.
  struct Row {
    std::span<const int32_t> tokens;
    std::span<const float> logits;
    const float* log_sum = nullptr;     // of exp, over all that might come there; null: over these alone
    const float* acceptance = nullptr;  // probability that the best one is accepted; null: it is not known
  };
  void set_row(int32_t d, int32_t parent, const Row& row);
  // Of a chain lattice: its best candidate of row d, the one that row d + 1 follows; -1: none is possible.
  int32_t choose(int32_t d);

  // Adds at most `most` drafts to the item, which is the sequence's and has none.
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
