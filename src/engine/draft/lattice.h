// lattice.h -- a drafter's candidates for the next positions, and the tree worth verifying.
//
// A lattice has a row of candidates with log probabilities for each depth. Their condition depends
// on the drafter:
//   independent   none: rows were predicted together (DFlash)
//   conditional   the candidate before (DFlash2, DSpark over the best of each row)
//   chain         the one candidate per row that the drafter continued from (MTP)
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

enum class LatticeKind : uint8_t { independent, conditional, chain };

// Memory is kept from one reset() to the next.
class Lattice {
 public:
  static constexpr float kImpossible = -std::numeric_limits<float>::infinity();

  // `width` candidates in each of `depths` rows, all impossible at first.
  void reset(LatticeKind kind, int32_t depths, int32_t width);

  LatticeKind kind() const { return kind_; }
  int32_t depths() const { return depths_; }
  int32_t width() const { return width_; }
  // Candidate c of row d. The tokens of a row are distinct.
  int32_t& token(int32_t d, int32_t c) { return tokens_[cell(d, c)]; }
  int32_t token(int32_t d, int32_t c) const { return tokens_[cell(d, c)]; }
  // log q of row d's candidates after `parent` of the row before; parent is 0 if not conditional.
  std::span<float> log_q(int32_t d, int32_t parent) {
    return {&log_q_[first(d, parent)], static_cast<size_t>(width_)};
  }
  std::span<const float> log_q(int32_t d, int32_t parent) const {
    return {&log_q_[first(d, parent)], static_cast<size_t>(width_)};
  }
  // Of a chain: the candidate of row d that row d + 1 follows.
  int32_t& chosen(int32_t d) { return chosen_[static_cast<size_t>(d)]; }
  bool has_children(int32_t d, int32_t c) const {
    return d + 1 < depths_ && (kind_ != LatticeKind::chain || chosen_[static_cast<size_t>(d)] == c);
  }

  // For sampled answers: turns log q into the log probability that the noise of `seed` picks the
  // candidate. Row 0 is the token at `position`. The best is the token that the same distribution
  // samples.
  void add_noise(uint64_t seed, int32_t position, int32_t d, int32_t parent);

 private:
  size_t cell(int32_t d, int32_t c) const {
    return static_cast<size_t>(d) * static_cast<size_t>(width_) + static_cast<size_t>(c);
  }
  size_t first(int32_t d, int32_t parent) const;

  LatticeKind kind_ = LatticeKind::independent;
  int32_t depths_ = 0;
  int32_t width_ = 0;
  std::vector<int32_t> tokens_;  // [depths][width]
  std::vector<float> log_q_;     // [depths][parents][width]
  std::vector<int32_t> chosen_;  // [depths]
};

class TreeBuilder {
 public:
  // The `budget` most probable paths, parents first; ties keep the earlier node. The spine comes
  // first: the best candidate of each row while log q >= least_spine.
  void build(const Lattice& lattice, int32_t budget, Drafts& tree, float least_spine = INFINITY);

 private:
  struct Entry {  // a candidate node
    double score = 0;
    int32_t age = 0;
    int32_t parent = -1;  // in the tree
    int32_t depth = 0;
    int32_t row_of = 0;  // the parent's candidate, if conditional
    int32_t rank = 0;
    double before = 0;  // score of the parent's path
    bool is_spine = false;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      if (a.is_spine != b.is_spine) return b.is_spine;
      return a.score != b.score ? a.score < b.score : a.age > b.age;
    }
  };
  void push(const Lattice& lattice, Entry entry);
  std::span<const int32_t> ranked(const Lattice& lattice, int32_t depth, int32_t row_of);

  std::vector<Entry> heap_;
  std::vector<int32_t> ranked_;  // [depths][parents][width]: candidates, most probable first
  std::vector<bool> is_ranked_;  // [depths][parents]
  int32_t age_ = 0;
  float least_spine_ = 0;
};

}  // namespace braid
