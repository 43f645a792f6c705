// code_spans.h -- tracks whether text is Markdown code: a fenced block, or backticks in a line.
// The parser of answers and the token mask both use it. Equal states continue equally. List and
// quote marks may precede a fence, and a tag may follow the closing one. Code between backticks
// ends with its line. Runs longer than kMostMarks count as kMostMarks.
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

  // State of a '<' that comes next.
  bool fenced_next() const { return behind_tag_mark().fence_ > 0; }
  bool inline_next() const { return behind_tag_mark().span_ > 0; }
  // REQUIRES: the text is at the start of a line.
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
    if (info_ && !tilde && !tilde_) {  // backticks never follow a fence: it was code of this line
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

  uint8_t fence_ = 0;  // marks of the open fence; 0: none
  uint8_t span_ = 0;   // backticks that opened code in this line; 0: none
  uint8_t run_ = 0;    // marks at the end of the text
  bool tilde_ = false, run_tilde_ = false;
  bool run_first_ = false;  // the run is the first of its line
  bool line_start_ = true;  // the line has only prefixes so far
  bool info_ = false;       // in the line that opens the fence
  bool closing_ = false;    // a closing run came, and blanks
};

}  // namespace braid
