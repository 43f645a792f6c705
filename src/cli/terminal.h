// terminal.h -- results go to stdout; errors, notes and a progress line go to stderr.
// The progress line needs a terminal, and colors also need NO_COLOR to be unset. A failed write to
// stdout is an error of the command, but a closed pipe ends the program silently, by SIGPIPE. A
// failed write to stderr is ignored.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid::cli {

// Call it before anything is opened or printed. Closed standard streams become unusable ones, so
// that no other file gets their number. SIGPIPE and SIGXFSZ become write errors.
void open_standard_streams();

bool stdout_is_terminal();
bool stderr_is_terminal();
bool use_colour();

// Writes a part of the result to stdout at once. After a failure nothing more is written.
void write_result(std::string_view text);
template <typename... T>
void print_result(fmt::format_string<T...> format, T&&... values) {
  write_result(fmt::format(format, std::forward<T>(values)...));
}
// Whether all results so far were written. Long commands check it between results.
Status result_status();

void write_status(std::string_view text);
template <typename... T>
void print_status(fmt::format_string<T...> format, T&&... values) {
  write_status(fmt::format(format, std::forward<T>(values)...));
}

void print_error(std::string_view message);

void print_note(std::string_view message);

// Prints the error. Returns the exit code: 130 if interrupted, else 2.
int fail(const Error& error);

// A line that is rewritten in place during long work and erased at the end.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label) : label_(std::move(label)) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times a second, first after 0.3 s.
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
