// serve_signals.cpp -- see serve_signals.h.
#include "cli/serve_signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <utility>

namespace braid::cli {
namespace {

bool has_terminal() {
  const int file = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (file >= 0) ::close(file);
  return file >= 0;
}

// sigwait() also returns ignored signals, so the setting of nohup is checked here.
bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

ServeSignals::ServeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const bool ends_with_terminal = has_terminal() && !is_ignored(SIGHUP);
  std::thread([state = state_, signals, ends_with_terminal] {
    while (true) {
      int number = 0;
      sigwait(&signals, &number);
      const std::lock_guard lock(state->mutex);
      if (number == SIGHUP && !(ends_with_terminal && !has_terminal())) {
        state->reload = true;
      } else {
        if (!state->serving || state->end) std::_Exit(130);
        state->end = true;
      }
      state->changed.notify_all();
    }
  }).detach();
}

void ServeSignals::serving() {
  const std::lock_guard lock(state_->mutex);
  state_->serving = true;
}

ServeSignals::Asked ServeSignals::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->end || state_->reload; });
  if (state_->end) return Asked::end;
  state_->reload = false;
  return Asked::reload;
}

}  // namespace braid::cli
