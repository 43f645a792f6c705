#include "cli/terminal/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace braid::cli {

bool stderr_is_terminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

bool use_colour() { return stderr_is_terminal() && std::getenv("NO_COLOR") == nullptr; }

void print_error(std::string_view message) {
  const char* red = use_colour() ? "\x1b[1;31m" : "";
  const char* off = use_colour() ? "\x1b[0m" : "";
  fmt::print(stderr, "{}error:{} {}\n", red, off, message);
}

void print_note(std::string_view message) { fmt::print(stderr, "note: {}\n", message); }

double now_ms() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

int fail(const Error& error) {
  print_error(error.message);
  return error.kind == ErrorKind::cancelled ? 130 : 2;
}

void ProgressLine::update(uint64_t done, uint64_t total, std::string_view detail) {
  if (!stderr_is_terminal()) return;
  const double now = now_ms();
  if (started_ms_ < 0) started_ms_ = now;
  if (now - started_ms_ < 300 || (visible_ && now - drawn_ms_ < 100)) return;
  constexpr int kWidth = 24;
  const double share =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r\x1b[K{} [{:<{}}] {:3.0f} %{}{}", label_, std::string(filled, '#'), kWidth,
             share * 100, detail.empty() ? "" : "  ", detail);
  std::fflush(stderr);
  drawn_ms_ = now;
  visible_ = true;
}

void ProgressLine::clear() {
  if (visible_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  visible_ = false;
  started_ms_ = -1;
}

}  // namespace braid::cli
