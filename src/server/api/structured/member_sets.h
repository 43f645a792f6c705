// member_sets.h -- sets of the object members read so far. Immutable bit trees that share all but
// one path with the set they extend; freed in reverse order. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid::server {

class MemberSets {
 public:
  static constexpr int32_t kEmpty = 0;  // the empty set of any object

  struct Mark {
    size_t sets, nodes;
  };
  Mark mark() const { return {sets_.size(), nodes_.size()}; }
  void rewind_to(const Mark& mark);

  // Adds `rank` (not in `set`) of `size` members. May return an equal set made since `since`.
  int32_t with(int32_t set, int32_t rank, bool required, int32_t size, const Mark& since);
  // [begin, end) must not be empty.
  bool has_all(int32_t set, int32_t begin, int32_t end, int32_t size) const;
  int32_t count(int32_t set) const { return sets_[static_cast<size_t>(set)].count; }
  int32_t required(int32_t set) const { return sets_[static_cast<size_t>(set)].required; }

 private:
  static constexpr int32_t kNone = -1, kAll = -2;  // of a node's span
  struct Set {
    int32_t root, count, required;
    int32_t from, rank, size;  // arguments of with(); objects may differ at one place
  };
  // Covers 64 ranks by bits, or more by two halves.
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
