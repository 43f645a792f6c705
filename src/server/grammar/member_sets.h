// member_sets.h -- which members of an object have come, as sets that are made from each other.
//
// A set is a tree of bits. A set with one member more shares all but one path with the set it was made from:
// adding and asking take time and memory in proportion to the logarithm of the members. Sets are immutable
// and are given back in the reverse order of making. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid::server {

class MemberSets {
 public:
  static constexpr int32_t kEmpty = 0;  // the set without members, of whatever object

  struct Mark {
    size_t sets, nodes;
  };
  Mark mark() const { return {sets_.size(), nodes_.size()}; }
  // Forgets all sets made since.
  void rewind_to(const Mark& mark);

  // `set` of an object of `size` members, and with it the member `rank`, which is not in it. If an equal one
  // was made of `set` already, among the last sets since `since`, it is that one.
  int32_t with(int32_t set, int32_t rank, bool required, int32_t size, const Mark& since);
  // All of [begin, end), which is not empty.
  bool has_all(int32_t set, int32_t begin, int32_t end, int32_t size) const;
  int32_t count(int32_t set) const { return sets_[static_cast<size_t>(set)].count; }
  int32_t required(int32_t set) const { return sets_[static_cast<size_t>(set)].required; }

 private:
  static constexpr int32_t kNone = -1, kAll = -2;  // of what a node covers
  struct Set {
    int32_t root, count, required;
    int32_t from, rank, size;  // what it was made of; alternatives of one place differ in their objects
  };
  // Covers a span of ranks: of 64 by bits, of more by two halves.
  union Node {
    uint64_t bits;
    int32_t halves[2];
  };
  int32_t add(int32_t node, int32_t begin, int32_t span, int32_t rank, int32_t size);
  bool all(int32_t node, int32_t begin, int32_t span, int32_t from, int32_t to) const;

  std::vector<Set> sets_{{kNone, 0, 0, -1, -1, 0}};
  std::vector<Node> nodes_;
};

}  // namespace braid::server
