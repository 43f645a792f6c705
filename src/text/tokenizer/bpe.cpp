// bpe.cpp -- see bpe.h.
#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "text/unicode.h"

namespace braid {
namespace {

// Printable bytes of Latin-1, except the soft hyphen.
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct ByteAlphabet {
  std::array<char32_t, 256> code_point{};
  std::array<int16_t, 0x200> byte{};  // -1: not in the alphabet

  constexpr ByteAlphabet() {
    for (auto& value : byte) value = -1;
    char32_t next = 0x100;
    for (int value = 0; value < 256; ++value) {
      code_point[value] = stands_for_itself(value) ? static_cast<char32_t>(value) : next++;
      byte[code_point[value]] = static_cast<int16_t>(value);
    }
  }
};

constexpr ByteAlphabet kAlphabet;

// Up to this length a scan for the lowest rank beats the heap.
constexpr size_t kShortPieceBytes = 32;

// Larger working memory is freed after a piece.
constexpr size_t kKeptSymbols = 1 << 16;

}  // namespace

char32_t byte_to_alphabet(uint8_t byte) { return kAlphabet.code_point[byte]; }

std::optional<uint8_t> alphabet_to_byte(char32_t code_point) {
  if (code_point >= kAlphabet.byte.size() || kAlphabet.byte[code_point] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.byte[code_point]);
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, byte_to_alphabet(static_cast<uint8_t>(byte)));
  return out;
}

std::string from_byte_alphabet(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto byte =
        step.kind == Utf8Kind::complete ? alphabet_to_byte(step.code_point) : std::nullopt;
    if (byte) {
      out.push_back(static_cast<char>(*byte));
    } else {
      out.append(text.substr(0, step.length_bytes));
    }
    text.remove_prefix(step.length_bytes);
  }
  return out;
}

MergeTable::MergeTable(size_t expected_merges) {
  const size_t slots = std::bit_ceil(std::max<size_t>(expected_merges * 2, 16));
  entries_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  BRAID_CHECK(left >= 0 && right >= 0);
  const uint64_t key = pair_key(left, right);
  size_t index = slot_of(key);
  while (entries_[index].key != kEmpty) {
    if (entries_[index].key == key) return;
    index = (index + 1) & mask_;
  }
  entries_[index] = {key, merge};
}

void BpeMerger::merge(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
                      std::string_view piece, std::vector<int32_t>& out) {
  if (piece.empty()) return;
  BRAID_CHECK(piece.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  if (piece.size() <= kShortPieceBytes) {
    merge_short(table, byte_symbols, piece, out);
  } else {
    merge_long(table, byte_symbols, piece, out);
  }
}

// Short pieces: an array of symbols, and of the merge of each with its right neighbor.
void BpeMerger::merge_short(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
                            std::string_view piece, std::vector<int32_t>& out) {
  constexpr MergeTable::Merge kNone{std::numeric_limits<uint32_t>::max(), -1};
  std::array<int32_t, kShortPieceBytes> ids;
  std::array<MergeTable::Merge, kShortPieceBytes> merges;  // of ids[i] and ids[i + 1]
  int count = static_cast<int>(piece.size());
  for (int index = 0; index < count; ++index)
    ids[index] = byte_symbols[static_cast<uint8_t>(piece[index])];
  const auto look_up = [&](int index) {
    const MergeTable::Merge* merge = table.find(ids[index], ids[index + 1]);
    merges[index] = merge != nullptr ? *merge : kNone;
  };
  for (int index = 0; index + 1 < count; ++index) look_up(index);

  while (count > 1) {
    int best = 0;
    for (int index = 1; index + 1 < count; ++index) {
      if (merges[index].rank < merges[best].rank) best = index;
    }
    if (merges[best].merged < 0) break;
    ids[best] = merges[best].merged;
    for (int index = best + 1; index + 1 < count; ++index) {
      ids[index] = ids[index + 1];
      merges[index] = merges[index + 1];
    }
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + count);
}

void BpeMerger::merge_long(const MergeTable& table, const std::array<int32_t, 256>& byte_symbols,
                           std::string_view piece, std::vector<int32_t>& out) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const int32_t count = static_cast<int32_t>(piece.size());
  symbols_.resize(piece.size());
  candidates_.clear();
  for (int32_t index = 0; index < count; ++index) {
    symbols_[index] = {byte_symbols[static_cast<uint8_t>(piece[index])], index - 1,
                       index + 1 < count ? index + 1 : -1};
  }
  for (int32_t index = 0; index + 1 < count; ++index) {
    const int32_t left = symbols_[index].id;
    const int32_t right = symbols_[index + 1].id;
    if (const auto* merge = table.find(left, right))
      candidates_.push_back({merge->rank, index, left, right});
  }
  std::make_heap(candidates_.begin(), candidates_.end(), later);

  const auto consider = [&](int32_t left_index) {
    const Symbol& left = symbols_[left_index];
    if (left.next < 0) return;
    const int32_t right_id = symbols_[left.next].id;
    if (const auto* merge = table.find(left.id, right_id)) {
      candidates_.push_back({merge->rank, left_index, left.id, right_id});
      std::push_heap(candidates_.begin(), candidates_.end(), later);
    }
  };
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), later);
    const Candidate candidate = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[candidate.left];
    if (left.id != candidate.left_id || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    if (right.id != candidate.right_id) continue;

    left.id = table.find(candidate.left_id, candidate.right_id)->merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[left.next].previous = candidate.left;
    consider(candidate.left);
    if (left.previous >= 0) consider(left.previous);
  }
  for (int32_t index = 0; index >= 0; index = symbols_[index].next)
    out.push_back(symbols_[index].id);

  if (symbols_.capacity() > kKeptSymbols) symbols_ = {};
  if (candidates_.capacity() > kKeptSymbols) candidates_ = {};
}

}  // namespace braid
