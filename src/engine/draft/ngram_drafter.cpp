// ngram_drafter.cpp -- see ngram_drafter.h.
#include "engine/draft/ngram_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace braid {
namespace {

constexpr int32_t kMostBits = 15;  // of a table: 128 KiB each

int32_t bits_for(int32_t context_tokens) {
  int32_t bits = 8;
  while (bits < kMostBits && (1 << bits) < context_tokens) ++bits;
  return bits;
}

}  // namespace

NgramIndex::NgramIndex(int32_t context_tokens) : bits_(bits_for(context_tokens)) {
  for (auto& table : next_) table.assign(size_t{1} << bits_, 0);
}

uint64_t NgramIndex::bytes(int32_t context_tokens) {
  return std::size(kOrders) * (uint64_t{sizeof(int32_t)} << bits_for(context_tokens));
}

void NgramIndex::clear() {
  indexed_ = 0;
  for (auto& table : next_) std::fill(table.begin(), table.end(), 0);
}

size_t NgramIndex::place(std::span<const int32_t> ngram) const {
  uint64_t hash = 0;
  for (const int32_t id : ngram) {
    hash = (hash + static_cast<uint32_t>(id) + 1) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash * 0x9e3779b97f4a7c15u >> (64 - bits_));
}

void NgramIndex::extend(std::span<const int32_t> tokens) {
  const auto size = static_cast<int32_t>(tokens.size());
  // The final n-gram has no successor yet, and must not match itself.
  for (int32_t end = indexed_ + 1; end < size; ++end) {
    for (size_t i = 0; i < std::size(kOrders); ++i) {
      const int32_t order = kOrders[i];
      if (end < order) continue;
      const auto ngram =
          tokens.subspan(static_cast<size_t>(end - order), static_cast<size_t>(order));
      next_[i][place(ngram)] = end;
    }
    indexed_ = end;
  }
}

NgramIndex::Match NgramIndex::find(std::span<const int32_t> tokens) const {
  const auto size = static_cast<int32_t>(tokens.size());
  const auto at = [&](int32_t position) { return tokens[static_cast<size_t>(position)]; };
  for (size_t i = 0; i < std::size(kOrders); ++i) {
    if (size < kOrders[i]) continue;
    const int32_t next = next_[i][place(tokens.last(static_cast<size_t>(kOrders[i])))];
    int32_t length = 0;
    while (length < std::min(next, kLongestMatch) && at(next - 1 - length) == at(size - 1 - length))
      ++length;
    if (length >= kOrders[i]) return {next, length};  // else another n-gram took the place
  }
  return {};
}

float ngram_log_q(int32_t length) {
  return std::log(static_cast<float>(length) / static_cast<float>(length + 2));
}

NgramDrafter::NgramDrafter(int32_t sequences, int32_t context_tokens) {
  places_.reserve(static_cast<size_t>(sequences));
  for (int32_t i = 0; i < sequences; ++i)
    places_.push_back({0, false, 0, NgramIndex(context_tokens)});
  place_of_.reserve(static_cast<size_t>(sequences));
}

uint64_t NgramDrafter::bytes(int32_t sequences, int32_t context_tokens) {
  return static_cast<uint64_t>(sequences) * (sizeof(Place) + NgramIndex::bytes(context_tokens));
}

// The sequence's own index, or a free one, or the least recently used one.
NgramIndex& NgramDrafter::index_of(const Sequence& sequence) {
  const auto known = place_of_.find(sequence.id);
  if (known != place_of_.end()) {
    Place& place = places_[known->second];
    place.used = round_;
    return place.index;
  }
  const auto place =
      std::min_element(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
        return a.taken != b.taken ? b.taken : a.used < b.used;
      });
  if (place->taken) place_of_.erase(place->id);
  place->id = sequence.id;
  place->taken = true;
  place->used = round_;
  place->index.clear();
  place_of_[sequence.id] = static_cast<size_t>(place - places_.begin());
  return place->index;
}

void NgramDrafter::propose(StepPlan& plan, int32_t budget) {
  ++round_;
  for (StepItem& item : plan.items) {
    const Sequence& s = *item.sequence;
    const int32_t count = std::min({item.draft_depth, item.draft_count, budget});
    if (count <= 0) continue;
    NgramIndex& index = index_of(s);
    index.extend(s.tokens);
    const NgramIndex::Match match = index.find(s.tokens);
    if (match.length == 0) continue;
    for (int32_t n = 0; n < count; ++n) {
      const auto from = static_cast<size_t>(match.next + n);
      const int32_t token =
          from < s.tokens.size() ? s.tokens[from] : item.drafts[from - s.tokens.size()].token;
      item.drafts.push_back({token, n - 1, ngram_log_q(match.length + n)});
    }
    budget -= count;
  }
}

void NgramDrafter::observe(const StepPlan& plan, std::span<const Verdict> verdicts) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (!verdicts[i].finished) continue;
    const auto known = place_of_.find(plan.items[i].sequence->id);
    if (known == place_of_.end()) continue;
    places_[known->second].taken = false;
    place_of_.erase(known);
  }
}

}  // namespace braid
