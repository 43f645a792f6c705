#include "cli/interrupt.h"

#include <unistd.h>

namespace braid::cli {

namespace {
volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) {
  if (g_interrupted != 0) ::_exit(130);
  g_interrupted = 1;
}
}  // namespace

bool interrupted() { return g_interrupted != 0; }

InterruptScope::InterruptScope() {
  g_interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() { ::sigaction(SIGINT, &before_, nullptr); }

}  // namespace braid::cli
