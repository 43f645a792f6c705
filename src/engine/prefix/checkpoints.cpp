// checkpoints.cpp -- see checkpoints.h. Searches are linear, as there are hundreds at most.
#include "engine/prefix/checkpoints.h"

#include <algorithm>

#include "base/check.h"

namespace braid {
namespace {

constexpr int32_t kMostRequests = 16;  // more history predicts nothing more

// Expected reuse. Most conversations resume once after a turn, all users of a program after its
// system message. One-time texts may look like one, hence the small factors.
uint64_t promised_uses(ResumeKind kind) {
  switch (kind) {
    case ResumeKind::interval:
      return 1;
    case ResumeKind::turn:
      return 4;
    case ResumeKind::shared:
      return 16;
  }
  return 1;
}

}  // namespace

CheckpointStore::CheckpointStore(std::byte* memory, int32_t capacity, size_t image_bytes)
    : memory_(memory), image_bytes_(image_bytes), entries_(static_cast<size_t>(capacity)) {
  for (int32_t id = capacity - 1; id >= 0; --id) {
    entries_[id].tail.reserve(kBlockTokens);
    free_.push_back(id);
  }
}

int32_t CheckpointStore::find(const PrefixHash& prefix, std::span<const int32_t> next) const {
  int32_t best = -1;
  const auto [begin, end] = by_prefix_.equal_range(prefix);
  for (auto it = begin; it != end; ++it) {
    const std::vector<int32_t>& tail = entries_[it->second].tail;
    if (tail.size() > next.size() || !std::equal(tail.begin(), tail.end(), next.begin())) continue;
    if (best < 0 || tail.size() > entries_[best].tail.size()) best = it->second;
  }
  return best;
}

int32_t CheckpointStore::find_exact(const PrefixHash& prefix, std::span<const int32_t> tail) const {
  const auto [begin, end] = by_prefix_.equal_range(prefix);
  for (auto it = begin; it != end; ++it)
    if (std::equal(tail.begin(), tail.end(), entries_[it->second].tail.begin(),
                   entries_[it->second].tail.end()))
      return it->second;
  return -1;
}

uint64_t CheckpointStore::uses(const Entry& e) const {
  return promised_uses(e.kind) *
         (1 + 2 * static_cast<uint64_t>(std::min(e.requests, kMostRequests)));
}

uint64_t CheckpointStore::worth(const Entry& e) const {
  const int32_t from = e.below < 0 ? 0 : entries_[e.below].position;
  return e.clock + uses(e) * static_cast<uint64_t>(e.position - from);
}

void CheckpointStore::refresh(Entry& e) {
  e.clock = clock_;
  e.block_clock = block_clock_;
  e.last_use = ++last_use_;
}

int32_t CheckpointStore::take() {
  if (free_.empty()) {
    int32_t least = -1;
    for (int32_t id = 0; id < capacity(); ++id) {
      const Entry& e = entries_[id];
      if (e.use != Use::findable || e.pins > 0) continue;
      if (least >= 0) {
        const Entry& other = entries_[least];
        const uint64_t a = worth(e), b = worth(other);
        if (a > b || (a == b && e.last_use > other.last_use)) continue;
      }
      least = id;
    }
    if (least < 0) return -1;
    ++evictions_;
    clock_ = std::max(clock_, worth(entries_[least]));
    hide(least);
    release(least);
  }
  const int32_t id = free_.back();
  free_.pop_back();
  entries_[id].use = Use::filling;
  ++used_;
  return id;
}

void CheckpointStore::put(int32_t id, const PrefixHash& prefix, std::span<const int32_t> tail,
                          ResumePoint point, int32_t below) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::filling && tail.size() < kBlockTokens);
  BRAID_CHECK(below < 0 || entries_[below].position < point.position);
  e.use = Use::findable;
  e.kind = point.kind;
  e.position = point.position;
  e.below = below;
  e.requests = 0;
  e.prefix = prefix;
  e.tail.assign(tail.begin(), tail.end());
  by_prefix_.emplace(prefix, id);
  refresh(e);
}

void CheckpointStore::put_unfindable(int32_t id) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::filling);
  e.use = Use::unfindable;
  pin(id);
}

void CheckpointStore::put_back(int32_t id) {
  put_unfindable(id);
  unpin(id);
}

void CheckpointStore::used_by_request(int32_t id) {
  Entry& e = entries_[id];
  if (e.use != Use::findable) return;  // private to its sequence
  ++e.requests;
  refresh(e);
}

void CheckpointStore::touch(int32_t id, ResumeKind kind) {
  Entry& e = entries_[id];
  e.kind = std::max(e.kind, kind);
  refresh(e);
}

void CheckpointStore::unpin(int32_t id) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.pins > 0);
  if (--e.pins == 0 && e.use == Use::unfindable) release(id);
}

bool CheckpointStore::evict_for_blocks(const std::function<int(const PrefixHash&)>& rank) {
  int32_t least = -1;
  int least_rank = 0;
  for (int32_t id = 0; id < capacity(); ++id) {
    const Entry& e = entries_[id];
    if (e.use != Use::findable || e.position < kBlockTokens) continue;
    const int r = rank(e.prefix);
    if (r < 0) continue;
    if (least >= 0) {
      if (r > least_rank) continue;
      const Entry& other = entries_[least];
      const uint64_t a = block_worth(e), b = block_worth(other);
      if (r == least_rank && (a > b || (a == b && e.last_use > other.last_use))) continue;
    }
    least = id;
    least_rank = r;
  }
  if (least < 0) return false;
  ++evictions_;
  block_clock_ = std::max(block_clock_, block_worth(entries_[least]));
  hide(least);
  if (entries_[least].pins == 0) release(least);
  return true;
}

void CheckpointStore::hide(int32_t id) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::findable);
  const auto [begin, end] = by_prefix_.equal_range(e.prefix);
  by_prefix_.erase(std::find_if(begin, end, [&](const auto& item) { return item.second == id; }));
  e.use = Use::unfindable;
  for (Entry& other : entries_)
    if (other.use == Use::findable && other.below == id) other.below = e.below;
  if (e.position >= kBlockTokens && told_gone_) told_gone_(e.prefix);
}

void CheckpointStore::release(int32_t id) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::unfindable && e.pins == 0);
  e.use = Use::free;
  free_.push_back(id);
  --used_;
}

void CheckpointStore::check(int32_t filling) const {
  int32_t findable = 0;
  int32_t free = 0;
  for (int32_t id = 0; id < capacity(); ++id) {
    const Entry& e = entries_[id];
    BRAID_CHECK((e.use == Use::filling) == (id == filling));
    BRAID_CHECK(e.use != Use::free || e.pins == 0);
    BRAID_CHECK(e.use != Use::unfindable || e.pins > 0);
    if (e.use == Use::free) ++free;
    if (e.use != Use::findable) continue;
    ++findable;
    BRAID_CHECK(find_exact(e.prefix, e.tail) >= 0);
    BRAID_CHECK(e.position % kBlockTokens == static_cast<int32_t>(e.tail.size()));
    if (e.below < 0) continue;
    BRAID_CHECK(entries_[e.below].use == Use::findable && entries_[e.below].position < e.position);
  }
  BRAID_CHECK(free == static_cast<int32_t>(free_.size()) && used_ == capacity() - free);
  BRAID_CHECK(static_cast<int32_t>(by_prefix_.size()) == findable);
}

}  // namespace braid
