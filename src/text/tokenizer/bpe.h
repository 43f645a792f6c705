// bpe.h -- byte-level byte-pair encoding of one piece of text.
// Repeatedly joins the adjacent pair of lowest rank, the leftmost of equals. With a heap of
// candidates, n bytes cost O(n log n); stale candidates stay in the heap. Symbols are token ids, or
// numbers above all ids for texts that only merges mention.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// The printable stand-in of each byte in vocabulary texts, and back.
char32_t byte_to_alphabet(uint8_t byte);
std::optional<uint8_t> alphabet_to_byte(char32_t code_point);

std::string to_byte_alphabet(std::string_view bytes);

// The inverse. A character outside the alphabet stands for its own UTF-8 bytes.
std::string from_byte_alphabet(std::string_view text);

// (left symbol, right symbol) -> rank and merged symbol, open addressing.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };

  explicit MergeTable(size_t expected_merges);

  // Keeps the first of equal pairs. REQUIRES: at most `expected_merges` calls; symbols >= 0.
  void add(int32_t left, int32_t right, Merge merge);

  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = pair_key(left, right);
    for (size_t index = slot_of(key);; index = (index + 1) & mask_) {
      const Entry& entry = entries_[index];
      if (entry.key == key) return &entry.merge;
      if (entry.key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge{};
  };

  static uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }

  std::vector<Entry> entries_;
  size_t mask_;
  int shift_;
};

// Keeps its working memory between calls. One thread at a time.
class BpeMerger {
 public:
  // Appends the symbols of `piece` to `out`. byte_symbols: the symbol of each byte.
  void merge(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
             std::string_view piece, std::vector<int32_t>& out);

 private:
  struct Symbol {
    int32_t id;        // negative once merged into its left neighbor
    int32_t previous;  // index or -1
    int32_t next;      // index or -1
  };
  struct Candidate {
    uint32_t rank;
    int32_t left;     // index of the left symbol: equal ranks go from left to right
    int32_t left_id;  // id at `left` when the candidate was made
    int32_t right_id;
  };

  void merge_short(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
                   std::string_view piece, std::vector<int32_t>& out);
  void merge_long(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
                  std::string_view piece, std::vector<int32_t>& out);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a binary heap, smallest (rank, left) first
};

}  // namespace braid
