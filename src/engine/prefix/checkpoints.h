// checkpoints.h -- copies of recurrent states in host memory that make prefixes resumable.
//
// A recurrent state exists only at its sequence's current position. A checkpoint holds what a
// sequence needs, beside its full blocks, to resume at `position`:
//   image = [state of all delta layers][the partial block of `position`, if any]
// Its key is the hash of the full blocks; the tokens after them are compared.
//
// Images are slots of one buffer. If all are used, the checkpoint of least worth is evicted:
//   worth = clock + uses * saved       (GreedyDual with equal sizes)
//   uses    by kind, times the requests that resumed from it (at most 16 count)
//   saved   tokens to recompute without it, from the next shorter one of the prefix
//   clock   the largest evicted worth at its last use, so unused ones age
// If blocks run out, a checkpoint at the end of a prefix is evicted with its own blocks. Only uses
// count then, since it frees about as many tokens as it saves.
//
// A pinned image stays for a preempted sequence, even if unfindable. check() verifies: an image is
// free; or holds one findable checkpoint; or is pinned and unfindable; or is being filled.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/prefix/prefix_hash.h"
#include "engine/request.h"

namespace braid {

class CheckpointStore {
 public:
  CheckpointStore(std::byte* memory, int32_t capacity, size_t image_bytes);

  int32_t capacity() const { return static_cast<int32_t>(entries_.size()); }
  int32_t used() const { return used_; }
  uint64_t evictions() const { return evictions_; }
  size_t image_bytes() const { return image_bytes_; }
  std::byte* image(int32_t id) { return memory_ + static_cast<size_t>(id) * image_bytes_; }

  // The longest one after `prefix` whose tail is a prefix of `next`; -1 if not found.
  int32_t find(const PrefixHash& prefix, std::span<const int32_t> next) const;
  int32_t find_exact(const PrefixHash& prefix, std::span<const int32_t> tail) const;

  // An image to fill; may evict. -1: all are pinned.
  int32_t take();
  // `below`: the next shorter one of the prefix, or -1. The caller keeps the blocks of `prefix`
  // (block_pool.h) until on_gone().
  void put(int32_t id, const PrefixHash& prefix, std::span<const int32_t> tail, ResumePoint point,
           int32_t below);
  // Keeps a filled image unfindable, pinned once.
  void put_unfindable(int32_t id);
  void put_back(int32_t id);
  // A request resumes from it.
  void used_by_request(int32_t id);
  // Another prompt would have taken the same checkpoint.
  void touch(int32_t id, ResumeKind kind);

  void pin(int32_t id) { ++entries_[id].pins; }
  void unpin(int32_t id);

  // Evicts the findable one with the lowest `rank` (>= 0), then the fewest uses. False: none.
  bool evict_for_blocks(const std::function<int(const PrefixHash&)>& rank);
  // Called for each checkpoint after blocks that is evicted or becomes unfindable.
  void on_gone(std::function<void(const PrefixHash&)> told) { told_gone_ = std::move(told); }

  bool findable(int32_t id) const { return entries_[id].use == Use::findable; }
  int32_t position(int32_t id) const { return entries_[id].position; }
  std::span<const int32_t> tail(int32_t id) const { return entries_[id].tail; }
  const PrefixHash& prefix(int32_t id) const { return entries_[id].prefix; }
  int32_t below(int32_t id) const { return entries_[id].below; }
  void set_below(int32_t id, int32_t below) { entries_[id].below = below; }

  // `filling`: the one image that a disk load may be filling between steps; -1: none.
  void check(int32_t filling = -1) const;

 private:
  enum class Use : uint8_t { free, filling, findable, unfindable };
  struct Entry {
    Use use = Use::free;
    ResumeKind kind = ResumeKind::turn;
    int32_t pins = 0;
    int32_t position = 0;
    int32_t below = -1;
    int32_t requests = 0;  // that resumed from it
    uint64_t clock = 0;    // for images and for blocks, at the last use
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
