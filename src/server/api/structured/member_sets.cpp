// member_sets.cpp -- see member_sets.h.
#include "server/api/structured/member_sets.h"

#include <algorithm>
#include <bit>

namespace braid::server {

namespace {

constexpr int32_t kLeaf = 64;
constexpr size_t kMaxSetsCompared = 64;

int32_t root_span(int32_t size) {
  int32_t span = kLeaf;
  while (span < size) span *= 2;
  return span;
}

}  // namespace

void MemberSets::rewind_to(const Mark& mark) {
  sets_.resize(mark.sets);
  nodes_.resize(mark.nodes);
}

int32_t MemberSets::with(int32_t set, int32_t rank, bool required, int32_t size,
                         const Mark& since) {
  Set next = sets_[static_cast<size_t>(set)];
  ++next.count;
  next.required += required ? 1 : 0;
  next.from = set;
  next.rank = rank;
  next.size = size;
  const size_t made = std::min(sets_.size() - since.sets, kMaxSetsCompared);
  for (size_t i = sets_.size() - made; i < sets_.size(); ++i) {
    const Set& old = sets_[i];
    if (old.from == set && old.rank == rank && old.size == size && old.required == next.required)
      return static_cast<int32_t>(i);
  }
  next.root = add(next.root, 0, root_span(size), rank, size);
  sets_.push_back(next);
  return static_cast<int32_t>(sets_.size() - 1);
}

int32_t MemberSets::add(int32_t node, int32_t begin, int32_t span, int32_t rank, int32_t size) {
  if (node == kAll) return kAll;
  Node made{};
  if (span == kLeaf) {
    if (node >= 0) made.bits = nodes_[static_cast<size_t>(node)].bits;
    made.bits |= uint64_t{1} << (rank - begin);
    if (std::popcount(made.bits) == std::min(kLeaf, size - begin)) return kAll;
  } else {
    const int32_t half = span / 2, middle = begin + half;
    int32_t low = kNone, high = middle >= size ? kAll : kNone;
    if (node >= 0) {
      low = nodes_[static_cast<size_t>(node)].halves[0];
      high = nodes_[static_cast<size_t>(node)].halves[1];
    }
    if (rank < middle)
      low = add(low, begin, half, rank, size);
    else
      high = add(high, middle, half, rank, size);
    if (low == kAll && high == kAll) return kAll;
    made.halves[0] = low;
    made.halves[1] = high;
  }
  nodes_.push_back(made);
  return static_cast<int32_t>(nodes_.size() - 1);
}

bool MemberSets::has_all(int32_t set, int32_t begin, int32_t end, int32_t size) const {
  return all(sets_[static_cast<size_t>(set)].root, 0, root_span(size), begin, end);
}

// [from, to) must not be empty and must lie inside [begin, begin + span).
bool MemberSets::all(int32_t node, int32_t begin, int32_t span, int32_t from, int32_t to) const {
  if (node < 0) return node == kAll;
  const Node& at = nodes_[static_cast<size_t>(node)];
  if (span == kLeaf) {
    const uint64_t wanted = (~uint64_t{0} >> (kLeaf - (to - from))) << (from - begin);
    return (at.bits & wanted) == wanted;
  }
  const int32_t half = span / 2, middle = begin + half;
  return (from >= middle || all(at.halves[0], begin, half, from, std::min(to, middle))) &&
         (to <= middle || all(at.halves[1], middle, half, std::max(from, middle), to));
}

}  // namespace braid::server
