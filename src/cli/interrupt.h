// interrupt.h -- Ctrl-C as a request to stop.
// While an InterruptScope lives, the first SIGINT sets the flag of interrupted(); a second one ends
// the program at once. Scopes do not nest.
#pragma once

#include <csignal>

namespace braid::cli {

bool interrupted();

class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace braid::cli
