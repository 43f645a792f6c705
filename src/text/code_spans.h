// code_spans.h -- where a text is code in Markdown: inside a fenced block, or between backticks of a line.
//
// A tag of a call that stands there is shown, not meant. The parser of answers and the mask of tokens follow
// a text with this same machine. It has few states, and equal states go on equally.
//
// A fence opens and closes as in Markdown; list marks and quote marks may stand before it, and a tag may
// stand behind the closing one. Code between backticks ends with its line at the latest. More marks than
// kMostMarks in a row count as so many.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace braid {

class CodeSpans {
 public:
  void push(char c) {
    if (c == '\n') return end_line();
    if (c == '`' || c == '~') return mark(c == '~');
    end_run();
    if (kPrefix.find(c) != std::string_view::npos) return;
    line_start_ = false;
    if (closing_ && c == '<') fence_ = 0;
    closing_ = false;
  }
  void push(std::string_view text) {
    for (const char c : text) push(c);
  }

  // Of a '<' that comes next.
  bool fenced_next() const { return behind_tag_mark().fence_ > 0; }
  bool inline_next() const { return behind_tag_mark().span_ > 0; }
  // The last byte has ended a line, or nothing came yet.
  bool fenced() const { return fence_ > 0; }

  auto operator<=>(const CodeSpans&) const = default;

 private:
  static constexpr uint8_t kMostMarks = 4;
  static constexpr std::string_view kPrefix = " \t\r>-*+.)0123456789";

  CodeSpans behind_tag_mark() const {
    CodeSpans next = *this;
    next.push('<');
    return next;
  }

  void end_line() {
    end_run();
    if (closing_) fence_ = 0;
    closing_ = info_ = false;
    span_ = 0;
    line_start_ = true;
  }

  void mark(bool tilde) {
    if (run_ > 0 && run_tilde_ != tilde) end_run();
    if (run_ > 0) {
      if (run_ < kMostMarks) ++run_;
      return;
    }
    if (info_ && !tilde && !tilde_) {  // a fence has no backtick behind it: it was code of this line
      span_ = fence_;
      fence_ = 0;
      info_ = false;
    }
    closing_ = false;
    run_ = 1;
    run_tilde_ = tilde;
    run_first_ = line_start_;
    line_start_ = false;
  }

  void end_run() {
    const uint8_t marks = run_;
    const bool first = run_first_, tilde = run_tilde_;
    run_ = 0;
    run_first_ = run_tilde_ = false;
    if (marks == 0 || info_) return;
    if (fence_ > 0) {
      closing_ = first && tilde == tilde_ && marks >= fence_;
    } else if (first && marks >= 3) {
      fence_ = marks;
      tilde_ = tilde;
      info_ = true;
    } else if (!tilde) {
      span_ = span_ == 0 ? marks : span_ == marks ? 0 : span_;
    }
  }

  uint8_t fence_ = 0;  // marks of the fence that is open; 0: none
  uint8_t span_ = 0;   // backticks that opened code in this line; 0: none
  uint8_t run_ = 0;    // marks that the text ends with
  bool tilde_ = false, run_tilde_ = false;
  bool run_first_ = false;  // the run is the first of its line
  bool line_start_ = true;  // only prefixes came in this line
  bool info_ = false;       // in the line that opens the fence
  bool closing_ = false;    // a run that closes the fence came, and blanks
};

}  // namespace braid
