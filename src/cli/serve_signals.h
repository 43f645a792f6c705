// serve_signals.h -- signals of a server.
// - SIGTERM, SIGINT: the first asks for the end. A later one, or one while loading, exits with 130.
// - SIGHUP: asks to reload keys and certificates. If the terminal is gone, it asks for the end,
//   except under nohup.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

namespace braid::cli {

class ServeSignals {
 public:
  enum class Asked { end, reload };

  // Construct it before any other thread, so that all threads block these signals.
  ServeSignals();

  // From now on wait() reports signals.
  void serving();
  Asked wait();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool serving = false, end = false, reload = false;  // guarded by mutex
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace braid::cli
