// code_share.cpp -- see code_share.h.
#include "text/compress/code_share.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/blanks.h"

namespace braid {
namespace {

constexpr size_t kSegmentBytes = 512;
constexpr float kFullSymbols = 0.12f;
constexpr float kFullIdentifiers = 0.4f;

enum CodeByte : uint8_t { kOther = 0, kSymbol = 1, kWord = 2, kLower = 4, kUpper = 8 };

constexpr std::array<uint8_t, 256> kCodeBytes = [] {
  std::array<uint8_t, 256> kinds{};
  for (const char c : std::string_view("{}[]()<>;=&|+*/\\#$@^~%_"))
    kinds[static_cast<uint8_t>(c)] = kSymbol;
  for (size_t c = '0'; c <= '9'; ++c) kinds[c] = kWord;
  for (size_t c = 'a'; c <= 'z'; ++c) kinds[c] = kWord | kLower;
  for (size_t c = 'A'; c <= 'Z'; ++c) kinds[c] = kWord | kUpper;
  for (size_t c = 0x80; c <= 0xFF; ++c) kinds[c] = kWord;
  kinds['_'] = kWord | kSymbol;
  return kinds;
}();

uint8_t code_byte(char c) { return kCodeBytes[static_cast<uint8_t>(c)]; }

struct LineCounts {
  size_t ink = 0;  // bytes that are not blank
  size_t symbols = 0;
  size_t words = 0;
  size_t identifiers = 0;
};

LineCounts count_line(std::string_view line) {
  LineCounts n;
  uint8_t last = kOther;
  bool named = false;  // the word at hand is counted as an identifier
  const auto name = [&] {
    if (!named && n.words > 0) ++n.identifiers;
    named = true;
  };
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    const uint8_t kind = code_byte(c);
    const char next = i + 1 < line.size() ? line[i + 1] : ' ';
    if (!is_blank(c)) ++n.ink;
    // Rules and emphasis are runs of one symbol: they count once.
    if (((kind & kSymbol) != 0 && c != next) || (c == '"' && next == ':')) ++n.symbols;
    const bool in_word = (kind & kWord) != 0, after_word = (last & kWord) != 0;
    if (in_word && !after_word) {
      ++n.words;
      named = false;
    }
    if (in_word && after_word && (c == '_' || ((last & kLower) != 0 && (kind & kUpper) != 0)))
      name();
    const bool before_word = (code_byte(next) & kWord) != 0;
    if (after_word && (c == '(' || (c == '.' && before_word) || (c == ':' && next == ':') ||
                       (c == '-' && next == '>')))
      name();
    last = kind;
  }
  return n;
}

bool ends_as_code(std::string_view line) {
  constexpr std::string_view kEnds = "{};([])\\>";
  const std::string_view ink = trimmed(line);
  if (ink.empty()) return false;
  // Prose in brackets ends with one, too, but after a word.
  const bool word_before = ink.size() > 1 && (code_byte(ink[ink.size() - 2]) & kWord) != 0;
  if (ink.back() == ')' || ink.back() == ']') return !word_before;
  return kEnds.find(ink.back()) != std::string_view::npos;
}

bool is_indented(std::string_view line) { return line.starts_with('\t') || line.starts_with("  "); }

float part_of(size_t count, size_t of, float full) {
  if (of == 0) return 0;
  return std::min(1.0f, static_cast<float>(count) / (full * static_cast<float>(of)));
}

// Adds a segment's share to the chunks of its bytes.
class ShareSums {
 public:
  explicit ShareSums(std::span<const uint32_t> token_ends)
      : ends_(token_ends),
        shares_(chunk_count(token_ends.size())),
        bytes_(chunk_count(token_ends.size())) {}

  // Segments come in ascending order.
  void add(ByteRange segment, float share) {
    while (segment.begin < segment.end) {
      while (end_of_chunk() <= segment.begin) ++chunk_;
      const size_t end = std::min(segment.end, end_of_chunk());
      const auto bytes = static_cast<double>(end - segment.begin);
      shares_[chunk_] += bytes * static_cast<double>(share);
      bytes_[chunk_] += bytes;
      segment.begin = end;
    }
  }

  std::vector<float> regions() const {
    std::vector<float> out(shares_.size());
    for (size_t k = 0; k < out.size(); ++k) {
      const size_t end = std::min(k + kRegionChunks + 1, out.size());
      double share = 0, bytes = 0;
      for (size_t i = k - std::min(k, kRegionChunks); i < end; ++i) {
        share += shares_[i];
        bytes += bytes_[i];
      }
      out[k] = bytes > 0 ? static_cast<float>(share / bytes) : 0;
    }
    return out;
  }

 private:
  size_t end_of_chunk() const {
    return ends_[std::min((chunk_ + 1) * kChunkTokens, ends_.size()) - 1];
  }

  std::span<const uint32_t> ends_;
  std::vector<double> shares_, bytes_;  // [chunks]
  size_t chunk_ = 0;
};

}  // namespace

float code_share_of_line(std::string_view line) {
  const LineCounts n = count_line(line);
  if (n.ink == 0) return 0;
  const float share = 0.6f * part_of(n.symbols, n.ink, kFullSymbols) +
                      0.5f * part_of(n.identifiers, n.words, kFullIdentifiers) +
                      (ends_as_code(line) ? 0.3f : 0.0f) + (is_indented(line) ? 0.2f : 0.0f);
  return std::min(1.0f, share);
}

std::vector<float> code_shares(std::string_view text, std::span<const uint32_t> token_ends) {
  BRAID_CHECK(std::is_sorted(token_ends.begin(), token_ends.end()));
  BRAID_CHECK((token_ends.empty() ? 0 : token_ends.back()) == text.size());
  ShareSums sums(token_ends);
  for (size_t line = 0; line < text.size();) {
    const size_t line_end = std::min(text.find('\n', line), text.size());
    for (size_t at = line; at < line_end; at += kSegmentBytes) {
      const size_t end = std::min(line_end, at + kSegmentBytes);
      const std::string_view segment = text.substr(at, end - at);
      if (!all_blank(segment)) sums.add({at, end}, code_share_of_line(segment));
    }
    line = line_end + 1;
  }
  return sums.regions();
}

}  // namespace braid
