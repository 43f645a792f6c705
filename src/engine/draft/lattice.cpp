// lattice.cpp -- see lattice.h.
#include "engine/draft/lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/noise.h"

namespace braid {
namespace {

double log_sum(std::span<const float> values) {
  const double top = *std::max_element(values.begin(), values.end());
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (const float x : values) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

void Lattice::reset(LatticeKind kind, int32_t depths, int32_t width) {
  kind_ = kind;
  depths_ = depths;
  width_ = width;
  const auto cells = static_cast<size_t>(depths) * static_cast<size_t>(width);
  tokens_.assign(cells, 0);
  log_q_.assign(kind == LatticeKind::conditional ? cells * static_cast<size_t>(width) : cells,
                Lattice::kImpossible);
  chosen_.assign(static_cast<size_t>(depths), 0);
}

size_t Lattice::first(int32_t d, int32_t parent) const {
  return kind_ == LatticeKind::conditional
             ? cell(d, 0) * static_cast<size_t>(width_) + cell(parent, 0)
             : cell(d, 0);
}

void Lattice::add_noise(uint64_t seed, int32_t position, int32_t d, int32_t parent) {
  const std::span<float> row = log_q(d, parent);
  const double before = log_sum(row);
  if (!std::isfinite(before)) return;
  TokenNoise noise(seed, position + d);
  for (int32_t c = 0; c < width_; ++c)
    row[static_cast<size_t>(c)] += static_cast<float>(noise.gumbel(token(d, c)));
  // Keep the total probability of the candidates.
  const auto change = static_cast<float>(before - log_sum(row));
  for (float& x : row) x += change;
}

std::span<const int32_t> TreeBuilder::ranked(const Lattice& lattice, int32_t depth,
                                             int32_t row_of) {
  const auto width = static_cast<size_t>(lattice.width());
  const size_t parents = lattice.kind() == LatticeKind::conditional ? width : 1;
  const size_t row = static_cast<size_t>(depth) * parents + static_cast<size_t>(row_of);
  const std::span<int32_t> order{&ranked_[row * width], width};
  if (!is_ranked_[row]) {
    is_ranked_[row] = true;
    std::iota(order.begin(), order.end(), 0);
    const auto log_q = lattice.log_q(depth, row_of);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return log_q[static_cast<size_t>(a)] > log_q[static_cast<size_t>(b)];
    });
  }
  return order;
}

void TreeBuilder::push(const Lattice& lattice, Entry entry) {
  if (entry.rank >= lattice.width()) return;
  const int32_t c = ranked(lattice, entry.depth, entry.row_of)[static_cast<size_t>(entry.rank)];
  entry.score = entry.before + lattice.log_q(entry.depth, entry.row_of)[static_cast<size_t>(c)];
  if (!(entry.score > Lattice::kImpossible)) return;
  entry.is_spine = entry.is_spine && entry.score - entry.before >= least_spine_;
  entry.age = age_++;
  heap_.push_back(entry);
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

// Path scores fall with depth, so popping the best first yields the most probable nodes of all.
void TreeBuilder::build(const Lattice& lattice, int32_t budget, Drafts& tree, float least_spine) {
  const auto width = static_cast<size_t>(lattice.width());
  const auto rows = static_cast<size_t>(lattice.depths()) *
                    (lattice.kind() == LatticeKind::conditional ? width : size_t{1});
  ranked_.resize(rows * width);
  is_ranked_.assign(rows, false);
  heap_.clear();
  tree.clear();
  age_ = 0;
  if (rows * width == 0) return;
  least_spine_ = least_spine;
  Entry first;
  first.is_spine = true;
  push(lattice, first);
  while (!heap_.empty() && std::ssize(tree) < budget) {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const Entry entry = heap_.back();
    heap_.pop_back();
    const int32_t c = ranked(lattice, entry.depth, entry.row_of)[static_cast<size_t>(entry.rank)];
    const float own = lattice.log_q(entry.depth, entry.row_of)[static_cast<size_t>(c)];
    const auto node = static_cast<int32_t>(tree.size());
    tree.push_back({lattice.token(entry.depth, c), entry.parent, own});
    if (lattice.has_children(entry.depth, c)) {
      Entry child;
      child.parent = node;
      child.depth = entry.depth + 1;
      child.row_of = lattice.kind() == LatticeKind::conditional ? c : 0;
      child.before = entry.score;
      child.is_spine = entry.is_spine;
      push(lattice, child);
    }
    Entry sibling = entry;
    ++sibling.rank;
    sibling.is_spine = false;
    push(lattice, sibling);
  }
}

}  // namespace braid
