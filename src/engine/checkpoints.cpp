// checkpoints.cpp -- see checkpoints.h. The least recently used one is searched for: there are hundreds at
// most, and a step that takes a checkpoint copies megabytes.
#include "engine/checkpoints.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

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

int32_t CheckpointStore::take() {
  if (free_.empty()) {
    int32_t oldest = -1;
    for (int32_t id = 0; id < capacity(); ++id) {
      const Entry& e = entries_[id];
      if (e.use != Use::findable || e.pins > 0) continue;
      if (oldest < 0 || e.last_use < entries_[oldest].last_use) oldest = id;
    }
    if (oldest < 0) return -1;
    ++evictions_;
    forget(oldest);
  }
  const int32_t id = free_.back();
  free_.pop_back();
  entries_[id].use = Use::filling;
  ++used_;
  return id;
}

void CheckpointStore::put(int32_t id, const PrefixHash& prefix, std::span<const int32_t> tail) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::filling && tail.size() < kBlockTokens);
  e.use = Use::findable;
  e.prefix = prefix;
  e.tail.assign(tail.begin(), tail.end());
  by_prefix_.emplace(prefix, id);
  touch(id);
}

void CheckpointStore::unpin(int32_t id) {
  BRAID_CHECK(entries_[id].pins > 0);
  --entries_[id].pins;
}

void CheckpointStore::forget(int32_t id) {
  Entry& e = entries_[id];
  BRAID_CHECK(e.use == Use::findable && e.pins == 0);
  const auto [begin, end] = by_prefix_.equal_range(e.prefix);
  by_prefix_.erase(std::find_if(begin, end, [&](const auto& item) { return item.second == id; }));
  e.use = Use::free;
  free_.push_back(id);
  --used_;
}

void CheckpointStore::drop(const PrefixHash& prefix) {
  std::vector<int32_t> gone;
  const auto [begin, end] = by_prefix_.equal_range(prefix);
  for (auto it = begin; it != end; ++it)
    if (entries_[it->second].pins == 0) gone.push_back(it->second);
  for (const int32_t id : gone) forget(id);
}

void CheckpointStore::check() const {
  int32_t findable = 0;
  int32_t free = 0;
  for (int32_t id = 0; id < capacity(); ++id) {
    const Entry& e = entries_[id];
    BRAID_CHECK(e.use != Use::filling);  // between steps nothing is half done
    BRAID_CHECK(e.use == Use::findable || e.pins == 0);
    if (e.use == Use::free) {
      ++free;
      continue;
    }
    ++findable;
    BRAID_CHECK(find_exact(e.prefix, e.tail) >= 0);
  }
  BRAID_CHECK(free == static_cast<int32_t>(free_.size()) && findable == used_);
  BRAID_CHECK(static_cast<int32_t>(by_prefix_.size()) == findable);
}

}  // namespace braid
