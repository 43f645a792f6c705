// checkpoints.h -- copies of recurrent states in host memory, so that a prefix can be resumed.
//
// Keys and values of a position never change, but a recurrent state exists only where its sequence stands
// now. A checkpoint is what a sequence needs, beside its full blocks, to go on from `position`:
//   image = [state of all delta layers][bytes of the block that `position` lies in, if it lies inside one]
// so it may stand anywhere, not only between blocks. It hangs on the hash of its full blocks and keeps the
// tokens after them, which are compared.
//
// All images are slots of one stretch of host memory taken at start. When they run out, the one unused for
// the longest time goes. A pinned checkpoint stays: a sequence that had to make room will resume from it.
//
// Always true, and verified by check(): an image is free or holds exactly one findable checkpoint, or is
// being filled (take() to put()).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/hash.h"

namespace braid {

class CheckpointStore {
 public:
  // `memory`: capacity * image_bytes, owned by the caller.
  CheckpointStore(std::byte* memory, int32_t capacity, size_t image_bytes);

  int32_t capacity() const { return static_cast<int32_t>(entries_.size()); }
  int32_t used() const { return used_; }
  uint64_t evictions() const { return evictions_; }
  std::byte* image(int32_t id) { return memory_ + static_cast<size_t>(id) * image_bytes_; }

  // The one with most tokens that hangs on `prefix` and whose further tokens begin `next`; -1 if none.
  int32_t find(const PrefixHash& prefix, std::span<const int32_t> next) const;
  // The one that hangs on `prefix` with exactly these further tokens; -1 if none.
  int32_t find_exact(const PrefixHash& prefix, std::span<const int32_t> tail) const;

  // An image to fill, at the cost of the least recently used one; -1 if all are pinned.
  int32_t take();
  // The image of take() is filled: it can be found now.
  void put(int32_t id, const PrefixHash& prefix, std::span<const int32_t> tail);
  void touch(int32_t id) { entries_[id].last_use = ++clock_; }

  void pin(int32_t id) { ++entries_[id].pins; }
  void unpin(int32_t id);

  // The blocks of `prefix` are gone: what hangs on it can be reached no more. Pinned ones stay.
  void drop(const PrefixHash& prefix);

  // Tokens beyond the full blocks.
  std::span<const int32_t> tail(int32_t id) const { return entries_[id].tail; }
  const PrefixHash& prefix(int32_t id) const { return entries_[id].prefix; }

  void check() const;

 private:
  enum class Use : uint8_t { free, filling, findable };
  struct Entry {
    Use use = Use::free;
    int32_t pins = 0;
    uint64_t last_use = 0;
    PrefixHash prefix;
    std::vector<int32_t> tail;
  };
  void forget(int32_t id);

  std::byte* memory_;
  size_t image_bytes_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::unordered_multimap<PrefixHash, int32_t, PrefixHashKey> by_prefix_;
  uint64_t clock_ = 0;
  uint64_t evictions_ = 0;
  int32_t used_ = 0;
};

}  // namespace braid
