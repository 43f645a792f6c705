// serve_signals.h -- what signals ask of a server.
//
// SIGTERM and SIGINT: the first asks for the end, a second one does not wait for it (exit code 130), and
// while the first model loads the first does not either. SIGHUP asks to read keys and certificates again;
// when it comes because the terminal that the server was started in is gone, it asks for the end (unless
// nohup said otherwise).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

namespace braid::cli {

class ServeSignals {
 public:
  enum class Asked { end, reload };

  // Before any other thread exists, so that all of them leave these signals to one that waits for them.
  ServeSignals();

  // From now on what is asked for is for wait().
  void serving();
  // The next thing that is asked for.
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
