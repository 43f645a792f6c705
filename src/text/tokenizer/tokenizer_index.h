// tokenizer_index.h -- maps token texts to ids: one flat table, for a million look-ups at start.
// Texts are views; the owner of the strings must not move them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace braid {

class TokenIndex {
 public:
  explicit TokenIndex(size_t expected_tokens)
      : slots_(std::bit_ceil(std::max<size_t>(expected_tokens * 2, 16))),
        free_(slots_.size() / 2) {}

  // Adds a text, or returns the id that has it already. REQUIRES: at most `expected_tokens` texts;
  // id is not negative.
  std::optional<int32_t> add(std::string_view text, int32_t id) {
    BRAID_CHECK(id >= 0);
    const uint32_t hash = hash_of(text);
    const size_t place = place_of(text);
    longest_search_ = std::max(longest_search_, (place - hash) & (slots_.size() - 1));
    Slot& slot = slots_[place];
    if (slot.id >= 0) return slot.id;
    BRAID_CHECK(free_ > 0);
    --free_;
    slot = {text, hash, id};
    return std::nullopt;
  }

  std::optional<int32_t> find(std::string_view text) const {
    const Slot& slot = slots_[place_of(text)];
    if (slot.id < 0) return std::nullopt;
    return slot.id;
  }

  bool contains(std::string_view text) const { return find(text).has_value(); }

  // Texts were chosen to collide, which makes searches slow: the hash is public. At most half of
  // the slots are taken, so chance alone does not cause such searches.
  bool is_crowded() const { return longest_search_ > kMostSearched; }

 private:
  static constexpr size_t kMostSearched = 512;

  struct Slot {
    std::string_view text;
    uint32_t hash = 0;  // avoids most comparisons
    int32_t id = -1;
  };

  static uint32_t hash_of(std::string_view text) {
    return static_cast<uint32_t>(std::hash<std::string_view>{}(text));
  }

  size_t place_of(std::string_view text) const {
    const uint32_t hash = hash_of(text);
    size_t place = hash & (slots_.size() - 1);
    while (slots_[place].id >= 0 && (slots_[place].hash != hash || slots_[place].text != text)) {
      place = (place + 1) & (slots_.size() - 1);
    }
    return place;
  }

  std::vector<Slot> slots_;
  size_t longest_search_ = 0;
  size_t free_;  // at least half of the slots stay empty, so every search ends
};

}  // namespace braid
