#include "cli/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace braid::cli {

namespace {

int g_result_errno = 0;  // of the first failed write to stdout

// The reader of the pipe has enough (`braid inspect FILE | head`). Other tools end so, too: by
// SIGPIPE and without a word.
[[noreturn]] void end_by_closed_pipe() {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
  ::raise(SIGPIPE);
  ::_exit(128 + SIGPIPE);
}

void note_result(bool written) {
  if (written || g_result_errno != 0) return;
  g_result_errno = errno != 0 ? errno : EIO;
  if (g_result_errno == EPIPE) end_by_closed_pipe();
}

}  // namespace

void open_standard_streams() {
  // In this order each open() gets the missing number. A closed stdout is opened for reading, so
  // that writing results stays an error.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    if (::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) < 0) return;
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

void write_result(std::string_view text) {
  if (g_result_errno != 0) return;
  errno = 0;
  note_result(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
              std::fflush(stdout) == 0);
}

Status result_status() {
  errno = 0;
  note_result(std::fflush(stdout) == 0 && std::ferror(stdout) == 0);
  if (g_result_errno == 0) return {};
  const char* why = g_result_errno == EBADF ? "it is closed" : std::strerror(g_result_errno);
  return Error{ErrorKind::io, fmt::format("standard output cannot be written: {}", why)};
}

void write_status(std::string_view text) {
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), stderr);
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

bool stderr_is_terminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

bool use_colour() { return stderr_is_terminal() && std::getenv("NO_COLOR") == nullptr; }

void print_error(std::string_view message) {
  const char* red = use_colour() ? "\x1b[1;31m" : "";
  const char* off = use_colour() ? "\x1b[0m" : "";
  print_status("{}error:{} {}\n", red, off, message);
}

void print_note(std::string_view message) { print_status("note: {}\n", message); }

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
  print_status("\r\x1b[K{} [{:<{}}] {:3.0f} %{}{}", label_, std::string(filled, '#'), kWidth,
               share * 100, detail.empty() ? "" : "  ", detail);
  std::fflush(stderr);
  drawn_ms_ = now;
  visible_ = true;
}

void ProgressLine::clear() {
  if (visible_) print_status("\r\x1b[K");
  std::fflush(stderr);
  visible_ = false;
  started_ms_ = -1;
}

}  // namespace braid::cli
