// interrupt.h -- Ctrl-C as a request to stop, not as the end of the program.
//
// While an InterruptScope lives, the first SIGINT sets a flag that interrupted() reads; a second one ends the
// program at once. Scopes do not nest.
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
