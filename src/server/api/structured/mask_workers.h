// mask_workers.h -- threads that compute expensive masks. Jobs begin in order. Thread-safe. The
// destructor waits for begun jobs and drops others, so a waiting owner must hold the workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace braid::server {

class MaskWorkers {
 public:
  explicit MaskWorkers(int threads);
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // `job` does not throw and holds no reference to the workers.
  void post(std::function<void()> job);
  uint64_t jobs() const { return jobs_; }

 private:
  void run();

  std::atomic<uint64_t> jobs_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace braid::server
