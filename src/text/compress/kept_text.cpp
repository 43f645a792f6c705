// kept_text.cpp -- see kept_text.h.
#include "text/compress/kept_text.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "text/blanks.h"
#include "text/compress/word_cuts.h"

namespace braid {
namespace {

// A part may reach back over those before it. Tokens inside of one need no borders of their own.
std::vector<ByteRange> extended_parts(const KeptTextInput& input, const WordCuts& cuts) {
  std::vector<ByteRange> parts;
  size_t done = 0;
  for (const TokenRange& tokens : input.kept) {
    BRAID_CHECK(tokens.begin >= done && tokens.begin <= tokens.end);
    done = tokens.end;
    BRAID_CHECK(done <= input.token_ends.size());
    const size_t begin = cuts.start_of(tokens.begin), end = cuts.start_of(tokens.end);
    const bool inside = !parts.empty() && parts.back().begin <= begin && end <= parts.back().end;
    if (begin == end || inside) continue;
    ByteRange part = cuts.extended(tokens);
    while (!parts.empty() && parts.back().end >= part.begin) {
      part.begin = std::min(part.begin, parts.back().begin);
      part.end = std::max(part.end, parts.back().end);
      parts.pop_back();
    }
    parts.push_back(part);
  }
  return parts;
}

class PartSeparator {
 public:
  PartSeparator(std::string_view text, std::span<const ByteRange> markers) : text_(text) {
    for (const ByteRange& marker : markers) {
      if (marker.begin == marker.end) continue;
      begins_.push_back(marker.begin);
      ends_.push_back(marker.end);
    }
    std::sort(begins_.begin(), begins_.end());
    std::sort(ends_.begin(), ends_.end());
  }

  std::string_view between(const ByteRange& left, const ByteRange& right) const {
    if (std::binary_search(ends_.begin(), ends_.end(), left.end) ||
        std::binary_search(begins_.begin(), begins_.end(), right.begin))
      return "";
    const char last = text_[left.end - 1];
    const std::string_view next = text_.substr(right.begin, 2);
    const bool line_break =
        text_.substr(left.end, right.begin - left.end).find('\n') != std::string_view::npos;
    if (line_break) return last == '\n' || next[0] == '\n' || next == "\r\n" ? "" : "\n";
    return is_blank(last) || is_blank(next[0]) ? "" : " ";
  }

 private:
  std::string_view text_;
  std::vector<size_t> begins_, ends_;  // of markers, ascending
};

// An empty token is kept with what it touches.
size_t tokens_in(const std::vector<KeptPart>& parts, std::span<const uint32_t> token_ends) {
  size_t kept = 0, part = 0, begin = 0;
  for (const size_t end : token_ends) {
    while (part < parts.size() &&
           (parts[part].source.end < begin || (parts[part].source.end == begin && begin < end)))
      ++part;
    if (part == parts.size()) break;
    const size_t first = parts[part].source.begin;
    if (first < end || (first == end && begin == end)) ++kept;
    begin = end;
  }
  return kept;
}

bool parts_hold(const std::vector<KeptPart>& parts, const ByteRange& bytes) {
  if (bytes.begin == bytes.end) return true;
  const auto behind =
      std::upper_bound(parts.begin(), parts.end(), bytes.begin,
                       [](size_t at, const KeptPart& part) { return at < part.source.begin; });
  return behind != parts.begin() && bytes.end <= (behind - 1)->source.end;
}

}  // namespace

KeptText kept_text(const KeptTextInput& input) {
  BRAID_CHECK(input.text.size() <= std::numeric_limits<uint32_t>::max());
  const WordCuts cuts(input.text, input.token_ends, input.markers);
  const PartSeparator separator(input.text, input.markers);
  KeptText out;
  for (const ByteRange& source : extended_parts(input, cuts)) {
    if (!out.parts.empty()) out.text += separator.between(out.parts.back().source, source);
    const size_t at = out.text.size();
    out.text += input.text.substr(source.begin, source.end - source.begin);
    out.parts.push_back({source, {at, out.text.size()}});
  }
  for (const TokenRange& tokens : input.protected_tokens) {
    BRAID_CHECK(tokens.begin <= tokens.end && tokens.end <= input.token_ends.size());
    BRAID_CHECK(parts_hold(out.parts, {cuts.start_of(tokens.begin), cuts.start_of(tokens.end)}));
  }
  out.kept_tokens = tokens_in(out.parts, input.token_ends);
  out.total_tokens = input.token_ends.size();
  return out;
}

}  // namespace braid
