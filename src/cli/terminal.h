// terminal.h -- results on stdout; all else that a person at the terminal sees on stderr: errors, notes, a progress
// line. Colours and the progress line appear only when stderr is a terminal (and NO_COLOR is unset).
//
// A result that cannot be written is an error of the command. What cannot be written to stderr is lost, and the
// command goes on: nobody reads it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid::cli {

// Call it once, before anything is opened or printed: closed standard streams become ones that cannot be read or
// written, so that no other file gets their number; a broken pipe or a limit of file sizes becomes an error of the
// write instead of a signal.
void open_standard_streams();

bool stderr_is_terminal();
bool use_colour();

// A part of the command's result, on stdout at once. After the first failure nothing more is written.
void write_result(std::string_view text);
template <typename... T>
void print_result(fmt::format_string<T...> format, T&&... values) {
  write_result(fmt::format(format, std::forward<T>(values)...));
}
// Whether all results so far were written. Long commands look between results, main() at the end.
Status result_status();

// A line, or a part of one, on stderr.
void write_status(std::string_view text);
template <typename... T>
void print_status(fmt::format_string<T...> format, T&&... values) {
  write_status(fmt::format(format, std::forward<T>(values)...));
}

// "error: MESSAGE" on stderr, red on a terminal.
void print_error(std::string_view message);

// "note: MESSAGE" on stderr: what works, but perhaps not as somebody expects.
void print_note(std::string_view message);

// Prints it; the exit code it stands for: 130 interrupted, else 2.
int fail(const Error& error);

// One line that is rewritten in place while something takes longer than a moment; erased when done.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label) : label_(std::move(label)) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // done of total; redrawn at most ten times a second, first after 0.3 s.
  void update(uint64_t done, uint64_t total, std::string_view detail = {});
  void clear();

 private:
  std::string label_;
  double started_ms_ = -1;
  double drawn_ms_ = -1;
  bool visible_ = false;
};

// Milliseconds of a steady clock.
double now_ms();

}  // namespace braid::cli
