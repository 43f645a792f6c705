// word_cuts.h -- where a text may be cut, so that nothing is torn at the borders of kept parts.
// A cut moves outward, to the first border of tokens of the best kind that is found among the next
// kMostExtendedTokens:
//   1. beside a blank, behind a clause's end of wide punctuation, or at an edge of a span that is
//      never cut
//   2. between characters of a script that writes no blanks between words (Han, kana, Thai, ...),
//      or beside one of them
//   3. else after all those tokens, at the next character
// It never lies inside well-formed UTF-8, a marker, or the line of a code fence; the last two have
// no limit of length but their own. Bytes that are no UTF-8 are characters of their own.
// Cost: linear in bytes once, then a few steps per cut.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/compress/ranges.h"

namespace braid {

inline constexpr size_t kMostExtendedTokens = 24;
// A longer line does not count as a fence.
inline constexpr size_t kMostFenceBytes = 256;

enum class CutKind : uint8_t {
  none,    // inside a word
  script,  // 2.
  word,    // 1.
};

// The cut before byte `at` of a text; both ends of a text are words'. none inside of UTF-8.
CutKind cut_kind(std::string_view text, size_t at);
// Not strictly inside of a well-formed sequence.
bool is_character_border(std::string_view text, size_t at);

// Lines that open or close fenced code, with their line breaks: ascending.
std::vector<ByteRange> fence_lines(std::string_view text);

class WordCuts {
 public:
  // Views of `text` and `token_ends` (code_share.h) are kept. markers: in any order; may overlap.
  WordCuts(std::string_view text, std::span<const uint32_t> token_ends,
           std::span<const ByteRange> markers);

  // Bytes that hold these tokens, extended at both sides.
  ByteRange extended(const TokenRange& tokens) const;

  size_t start_of(size_t token) const { return token == 0 ? 0 : token_ends_[token - 1]; }

 private:
  size_t cut_before(size_t token) const;
  size_t cut_after(size_t token) const;
  // The span that is cut at this byte, if any.
  std::optional<ByteRange> span_around(size_t at) const;
  bool is_span_edge(size_t at) const;
  CutKind kind_at(size_t at) const;
  // The first border outward that cuts neither a character nor a span.
  size_t whole_before(size_t at) const;
  size_t whole_after(size_t at) const;

  std::string_view text_;
  std::span<const uint32_t> token_ends_;
  std::vector<ByteRange> spans_;  // never cut; ascending, not overlapping
};

}  // namespace braid
