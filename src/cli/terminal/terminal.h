// terminal.h -- what the person at the terminal sees besides results: colours, a progress line, numbers in
// units.
//
// All of it goes to stderr; stdout belongs to results. Colours and the progress line appear only when stderr
// is a terminal (and NO_COLOR is unset).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid::cli {

bool stderr_is_terminal();
bool use_colour();

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
