// word_cuts.cpp -- see word_cuts.h.
#include "text/compress/word_cuts.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/unicode.h"

namespace braid {
namespace {

constexpr size_t kMostUtf8Bytes = 4;
// Marks that a cut in an unbroken run of them passes at most.
constexpr size_t kMostPassedCharacters = 16;

struct ScriptRange {
  char32_t first, last;
};
// Of scripts without blanks between words, and pictographs.
constexpr std::array kUnspaced = {
    ScriptRange{0x0E00, 0x0EFF},    // Thai, Lao
    ScriptRange{0x0F00, 0x109F},    // Tibetan, Myanmar
    ScriptRange{0x1780, 0x17FF},    // Khmer
    ScriptRange{0x1950, 0x19FF},    // Tai scripts
    ScriptRange{0x2600, 0x27BF},    // symbols
    ScriptRange{0x2E80, 0x312F},    // radicals, wide punctuation, kana, Bopomofo
    ScriptRange{0x31A0, 0x9FFF},    // Bopomofo, kana, Han
    ScriptRange{0xA000, 0xA4CF},    // Yi
    ScriptRange{0xF900, 0xFAFF},    // Han
    ScriptRange{0xFE30, 0xFE4F},    // vertical punctuation
    ScriptRange{0xFF00, 0xFF0F},    // wide punctuation
    ScriptRange{0xFF1A, 0xFF20},    // wide punctuation
    ScriptRange{0xFF61, 0xFF9F},    // narrow kana
    ScriptRange{0x1F300, 0x1FAFF},  // emoji
    ScriptRange{0x20000, 0x3FFFF},  // Han
};
constexpr std::u32string_view kClauseEnds = U"、。，．！？：；」』】》〉）";
constexpr std::u32string_view kClauseStarts = U"「『【《〈（";

bool is_unspaced(char32_t c) {
  return std::any_of(kUnspaced.begin(), kUnspaced.end(),
                     [&](const ScriptRange& range) { return c >= range.first && c <= range.last; });
}

bool is_wide_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The well-formed sequence of two bytes or more that is cut at this byte, if any. Its first byte
// is no continuation, so there is at most one.
std::optional<ByteRange> character_around(std::string_view text, size_t at) {
  for (size_t back = 1; back < kMostUtf8Bytes && back <= at; ++back) {
    const size_t begin = at - back;
    if ((static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) continue;
    const Utf8Step step = utf8_step(text.substr(begin, kMostUtf8Bytes));
    const auto length = static_cast<size_t>(step.length_bytes);
    if (step.kind != Utf8Kind::complete || length <= back) return std::nullopt;
    return ByteRange{begin, begin + length};
  }
  return std::nullopt;
}

// Characters beside a cut that cuts none. U+FFFD for a byte that is no UTF-8.
char32_t character_before(std::string_view text, size_t at) {
  // The cut one byte earlier is inside of the character before, or there is only one byte.
  const auto around = at >= 2 ? character_around(text, at - 1) : std::nullopt;
  return utf8_step(text.substr(around ? around->begin : at - 1, kMostUtf8Bytes)).code_point;
}

char32_t character_after(std::string_view text, size_t at) {
  return utf8_step(text.substr(at, kMostUtf8Bytes)).code_point;
}

// Marks, joined emoji, and flags stay with their base.
bool breaks_between(char32_t before, char32_t after) {
  constexpr char32_t kJoiner = 0x200D;
  return before != kJoiner && utf8proc_grapheme_break(static_cast<utf8proc_int32_t>(before),
                                                      static_cast<utf8proc_int32_t>(after));
}

bool breaks_at(std::string_view text, size_t at) {
  if (at == 0 || at == text.size()) return true;
  return breaks_between(character_before(text, at), character_after(text, at));
}

// Like ```cpp, behind blanks and marks of lists and quotes. No code in a line: ```x``` y.
bool is_fence_line(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t>-*+");
  if (at == std::string_view::npos || (line[at] != '`' && line[at] != '~')) return false;
  const char mark = line[at];
  const size_t info = std::min(line.find_first_not_of(mark, at), line.size());
  if (info - at < 3) return false;
  return mark == '~' || line.find('`', info) == std::string_view::npos;
}

}  // namespace

bool is_character_border(std::string_view text, size_t at) {
  return at == 0 || at == text.size() || !character_around(text, at);
}

CutKind cut_kind(std::string_view text, size_t at) {
  if (at == 0 || at == text.size()) return CutKind::word;
  if (character_around(text, at)) return CutKind::none;
  const char32_t before = character_before(text, at), after = character_after(text, at);
  // No mark follows a blank as its base, but \r\n is one.
  if (!breaks_between(before, after)) return CutKind::none;
  if (is_wide_blank(before) || is_wide_blank(after)) return CutKind::word;
  const bool clause_after = kClauseEnds.find(after) != std::u32string_view::npos;
  if (kClauseEnds.find(before) != std::u32string_view::npos && !clause_after) return CutKind::word;
  if (kClauseStarts.find(after) != std::u32string_view::npos) return CutKind::word;
  // Punctuation stays with the words before it.
  if (clause_after) return CutKind::none;
  return is_unspaced(before) || is_unspaced(after) ? CutKind::script : CutKind::none;
}

std::vector<ByteRange> fence_lines(std::string_view text) {
  std::vector<ByteRange> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_end = std::min(text.find('\n', begin), text.size());
    const size_t end = std::min(line_end + 1, text.size());
    if (end - begin <= kMostFenceBytes && is_fence_line(text.substr(begin, line_end - begin)))
      out.push_back({begin, end});
    begin = end;
  }
  return out;
}

WordCuts::WordCuts(std::string_view text, std::span<const uint32_t> token_ends,
                   std::span<const ByteRange> markers)
    : text_(text), token_ends_(token_ends) {
  BRAID_CHECK(std::is_sorted(token_ends.begin(), token_ends.end()));
  BRAID_CHECK((token_ends.empty() ? 0 : token_ends.back()) == text.size());
  std::vector<ByteRange> spans = fence_lines(text);
  for (const ByteRange& marker : markers) {
    BRAID_CHECK(marker.begin <= marker.end && marker.end <= text.size());
    if (marker.begin < marker.end) spans.push_back(marker);
  }
  std::sort(spans.begin(), spans.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  for (const ByteRange& span : spans) {
    if (!spans_.empty() && span.begin < spans_.back().end) {
      spans_.back().end = std::max(spans_.back().end, span.end);
    } else {
      spans_.push_back(span);
    }
  }
}

std::optional<ByteRange> WordCuts::span_around(size_t at) const {
  const auto behind =
      std::lower_bound(spans_.begin(), spans_.end(), at,
                       [](const ByteRange& span, size_t place) { return span.begin < place; });
  if (behind == spans_.begin() || (behind - 1)->end <= at) return std::nullopt;
  return *(behind - 1);
}

bool WordCuts::is_span_edge(size_t at) const {
  const auto next =
      std::lower_bound(spans_.begin(), spans_.end(), at,
                       [](const ByteRange& span, size_t place) { return span.begin < place; });
  if (next != spans_.end() && next->begin == at) return true;
  return next != spans_.begin() && (next - 1)->end == at;
}

CutKind WordCuts::kind_at(size_t at) const {
  const CutKind kind = cut_kind(text_, at);
  return is_span_edge(at) && is_character_border(text_, at) ? CutKind::word : kind;
}

size_t WordCuts::whole_before(size_t at) const {
  while (true) {
    if (const auto span = span_around(at)) {
      at = span->begin;
    } else if (const auto character = character_around(text_, at)) {
      at = character->begin;
    } else {
      return at;
    }
  }
}

size_t WordCuts::whole_after(size_t at) const {
  while (true) {
    if (const auto span = span_around(at)) {
      at = span->end;
    } else if (const auto character = character_around(text_, at)) {
      at = character->end;
    } else {
      return at;
    }
  }
}

size_t WordCuts::cut_before(size_t token) const {
  std::optional<size_t> between_words;
  size_t at = start_of(token);
  if (span_around(at)) return whole_before(at);
  for (size_t step = 0; step <= std::min(token, kMostExtendedTokens); ++step) {
    at = start_of(token - step);
    if (const auto span = span_around(at)) return whole_before(span->end);
    const CutKind kind = kind_at(at);
    if (kind == CutKind::word) return at;
    if (kind == CutKind::script && !between_words) between_words = at;
  }
  if (between_words) return *between_words;
  at = whole_before(at);
  for (size_t i = 0; i < kMostPassedCharacters && !breaks_at(text_, at); ++i)
    at = whole_before(at - 1);
  return at;
}

size_t WordCuts::cut_after(size_t token) const {
  std::optional<size_t> between_words;
  size_t at = start_of(token);
  if (span_around(at)) return whole_after(at);
  const size_t most = std::min(token_ends_.size() - token, kMostExtendedTokens);
  for (size_t step = 0; step <= most; ++step) {
    at = start_of(token + step);
    if (const auto span = span_around(at)) return whole_after(span->begin);
    const CutKind kind = kind_at(at);
    if (kind == CutKind::word) return at;
    if (kind == CutKind::script && !between_words) between_words = at;
  }
  if (between_words) return *between_words;
  at = whole_after(at);
  for (size_t i = 0; i < kMostPassedCharacters && !breaks_at(text_, at); ++i)
    at = whole_after(at + 1);
  return at;
}

ByteRange WordCuts::extended(const TokenRange& tokens) const {
  BRAID_CHECK(tokens.begin <= tokens.end && tokens.end <= token_ends_.size());
  return {cut_before(tokens.begin), cut_after(tokens.end)};
}

}  // namespace braid
