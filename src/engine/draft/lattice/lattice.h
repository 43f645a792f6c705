// lattice.h -- what a drafter thinks of the next positions, and the tree of it that is worth verifying.
//
// A lattice has a row of candidates for each depth, with their log probabilities. Drafters differ in what
// these depend on:
//   independent   on nothing: rows were predicted together (DFlash)
//   conditional   on the candidate before (DFlash2, DSpark over the best of each row)
//   chain         on the one candidate of each row that the drafter went on from (MTP): only it has children
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

  // `width` candidates in each of `depths` rows, all impossible for now.
  void reset(LatticeKind kind, int32_t depths, int32_t width);

  LatticeKind kind() const { return kind_; }
  int32_t depths() const { return depths_; }
  int32_t width() const { return width_; }
  // Candidate c of row d. The tokens of a row are distinct.
  int32_t& token(int32_t d, int32_t c) { return tokens_[cell(d, c)]; }
  int32_t token(int32_t d, int32_t c) const { return tokens_[cell(d, c)]; }
  // log q of the candidates of row d behind candidate `parent` of the row before; parent is 0 in row 0, and
  // everywhere if rows are not conditional. Minus infinity: never.
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

  // For drawn answers: log q of a row becomes log of the probability that the noise of `seed` picks a
  // candidate, row 0 being the token at `position`. A drafter that gives its log q at that temperature and
  // then ranks by this proposes the tokens that the model will draw from a distribution like the drafter's.
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

// Keeps its memory from one tree to the next.
class TreeBuilder {
 public:
  // The `budget` most probable paths of the lattice, and with them all they begin with: nodes in descending
  // probability of their paths, parents first. Ties: the node that could be added earlier. Before all others
  // stands the spine: the best candidate of each row, for as long as their log q is least_spine at least.
  void build(const Lattice& lattice, int32_t budget, Drafts& tree, float least_spine = INFINITY);

 private:
  struct Entry {  // a node that could be added
    double score = 0;
    int32_t age = 0;
    int32_t parent = -1;  // in the tree
    int32_t depth = 0;
    int32_t row_of = 0;  // the parent's candidate, if rows are conditional
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
