// checkpoints.h -- copies of recurrent states in host memory, so that a prefix can be resumed; and which of
// them are worth their memory.
//
// Keys and values of a position never change, but a recurrent state exists only where its sequence stands
// now. A checkpoint is what a sequence needs, beside its full blocks, to go on from `position`:
//   image = [state of all delta layers][bytes of the block that `position` lies in, if it lies inside one]
// so it may stand anywhere, not only between blocks. It hangs on the hash of its full blocks and keeps the
// tokens after them, which are compared.
//
// All images are slots of one stretch of host memory taken at start. When they run out, the one of least
// worth goes:
//   worth = clock + uses * saved       (GreedyDual with sizes all equal)
//   uses    what its kind promises, times what the requests that have gone on from it add (16 count at most)
//   saved   tokens that would be computed if it were gone: from the next shorter one of the same prefix
//   clock   when it was last used, counted in the worth of what has gone since: nothing stays for ever
// When blocks run out instead, one at the end of a prefix goes, with the blocks that only it needs; as it
// frees about as many tokens as it saves, only its uses count there.
//
// A pinned image stays: a sequence that had to make room will go on from it. It may have become unfindable,
// or have been so from the start (a request that leaves nothing to others).
//
// Always true, and verified by check(): an image is free, holds exactly one findable checkpoint, is pinned
// and unfindable, or is being filled (take() to put() or put_unfindable()).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/prefix/prefix_hash.h"
#include "engine/request/request.h"

namespace braid {

class CheckpointStore {
 public:
  // `memory`: capacity * image_bytes, owned by the caller.
  CheckpointStore(std::byte* memory, int32_t capacity, size_t image_bytes);

  int32_t capacity() const { return static_cast<int32_t>(entries_.size()); }
  int32_t used() const { return used_; }
  uint64_t evictions() const { return evictions_; }
  size_t image_bytes() const { return image_bytes_; }
  std::byte* image(int32_t id) { return memory_ + static_cast<size_t>(id) * image_bytes_; }

  // The one with most tokens that hangs on `prefix` and whose further tokens begin `next`; -1 if none.
  int32_t find(const PrefixHash& prefix, std::span<const int32_t> next) const;
  // The one that hangs on `prefix` with exactly these further tokens; -1 if none.
  int32_t find_exact(const PrefixHash& prefix, std::span<const int32_t> tail) const;

  // An image to fill, at the cost of the one of least worth; -1 if all are pinned.
  int32_t take();
  // The image of take() is filled: it can be found now. `below`: the next shorter one of the same prefix, or
  // -1. The caller keeps the blocks of `prefix` (block_pool.h) until it is told that the checkpoint has gone.
  void put(int32_t id, const PrefixHash& prefix, std::span<const int32_t> tail, ResumePoint point,
           int32_t below);
  // The same for nobody to find: pinned once.
  void put_unfindable(int32_t id);
  // It is not filled after all.
  void put_back(int32_t id);
  // A request goes on from it.
  void used_by_request(int32_t id);
  // Another prompt has come by here and would have made it.
  void touch(int32_t id, ResumeKind kind);

  void pin(int32_t id) { ++entries_[id].pins; }
  void unpin(int32_t id);

  // Of all findable ones that `rank` gives a rank at all (>= 0), one of the lowest rank and, among those, of
  // the fewest uses goes. False: there is none.
  bool evict_for_blocks(const std::function<int(const PrefixHash&)>& rank);
  // Told of each findable checkpoint that hangs on blocks and goes, or cannot be found any more.
  void on_gone(std::function<void(const PrefixHash&)> told) { told_gone_ = std::move(told); }

  bool findable(int32_t id) const { return entries_[id].use == Use::findable; }
  int32_t position(int32_t id) const { return entries_[id].position; }
  // Tokens beyond the full blocks.
  std::span<const int32_t> tail(int32_t id) const { return entries_[id].tail; }
  const PrefixHash& prefix(int32_t id) const { return entries_[id].prefix; }
  int32_t below(int32_t id) const { return entries_[id].below; }
  // `id` is a longer one of the same prefix as `below`, with none between them.
  void set_below(int32_t id, int32_t below) { entries_[id].below = below; }

  // Between steps nothing is half done but what is read from the disk into `filling`; -1: nothing is.
  void check(int32_t filling = -1) const;

 private:
  enum class Use : uint8_t { free, filling, findable, unfindable };
  struct Entry {
    Use use = Use::free;
    ResumeKind kind = ResumeKind::turn;
    int32_t pins = 0;
    int32_t position = 0;
    int32_t below = -1;
    int32_t requests = 0;  // that have gone on from it
    uint64_t clock = 0;    // of images, and of blocks, at the last use
    uint64_t block_clock = 0;
    uint64_t last_use = 0;
    PrefixHash prefix;
    std::vector<int32_t> tail;
  };
  uint64_t uses(const Entry& e) const;
  uint64_t worth(const Entry& e) const;
  uint64_t block_worth(const Entry& e) const { return e.block_clock + uses(e); }
  void refresh(Entry& e);
  void hide(int32_t id);
  void release(int32_t id);

  std::byte* memory_;
  size_t image_bytes_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::unordered_multimap<PrefixHash, int32_t, PrefixHashKey> by_prefix_;
  std::function<void(const PrefixHash&)> told_gone_;
  uint64_t clock_ = 0;
  uint64_t block_clock_ = 0;
  uint64_t last_use_ = 0;
  uint64_t evictions_ = 0;
  int32_t used_ = 0;
};

}  // namespace braid
