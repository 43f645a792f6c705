// threads.h -- a worker pool that runs one region of work on every thread.
//
// run(f) calls f(worker) on all size() workers (the caller is worker 0) and returns when all are
// done. In a region, barrier() makes them wait for each other. One thread owns a pool. Regions do
// not nest. Nothing allocates after construction.
//
// - Waiting::spin: workers spin for about half a millisecond between regions, then sleep. All
//   threads are pinned, the caller from its first run() to the end of the pool; threads that it
//   starts meanwhile inherit its CPU.
// - Waiting::sleep, for rare work: workers sleep at once and are not pinned.
//
// Pool threads flush denormals to zero, the caller while in run().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace braid {

// One CPU per physical core of the affinity mask, limited by the cgroup's quota; at least 1.
int usable_cores();

// Flushes denormals of this thread to zero while it lives. run() does so too. Work on the calling
// thread alone needs it, or its bytes differ from those of a worker.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t saved_ = 0;
};

class ThreadPool {
 public:
  enum class Waiting : uint8_t { spin, sleep };
  explicit ThreadPool(int threads, Waiting waiting = Waiting::spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  template <typename F>
  void run(F&& f) {
    auto call = [](void* context, int worker) {
      (*static_cast<std::remove_reference_t<F>*>(context))(worker);
    };
    run_erased(call, const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Inside run(): returns when all workers have called it.
  void barrier(int worker);

  // Half-open share of `count` items for `worker`, in multiples of `unit`, differing by at most
  // one.
  std::pair<int64_t, int64_t> share(int64_t count, int worker, int64_t unit = 1) const;

 private:
  void run_erased(void (*call)(void*, int), void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int size_;
};

// Hands out 0, 1, 2, ... to any thread.
class alignas(64) Counter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> next_{0};
};

}  // namespace braid
