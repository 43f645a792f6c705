// threads.h -- the worker pool that runs one region of work on every thread.
//
// run(f) calls f(worker) on all `size()` workers (the caller is worker 0) and returns when all are done.
// Inside a region, barrier() makes all workers wait for each other. Workers spin for about half a millisecond
// between regions, then sleep on a futex: spinning keeps a step's regions within a fraction of a microsecond,
// sleeping keeps an idle engine from burning cores and survives a shared machine. A pool for work that is rare
// sleeps at once, and its threads run wherever they are put (Waiting::sleep). Else all are pinned, the
// caller from its first run() until the pool ends (threads it starts meanwhile inherit its CPU); every pool
// thread flushes denormals to zero, the caller too while it is inside run().
//
// Work is claimed statically by (worker, size()) or, for uneven work, from a Counter.
// One thread owns a pool and calls run(); regions do not nest. Nothing allocates after construction.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace braid {

// CPUs this process may use: one per physical core of the affinity mask, at most the cgroup's quota; at
// least 1.
int usable_cores();

// While it lives, denormal results and operands of this thread are zero. run() does this by itself; work that
// an op does on the calling thread alone needs one, or its bytes would differ from the same work done by a
// worker.
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

  // f(int worker)
  template <typename F>
  void run(F&& f) {
    auto call = [](void* context, int worker) {
      (*static_cast<std::remove_reference_t<F>*>(context))(worker);
    };
    run_erased(call, const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Inside run(): returns when all workers have called it.
  void barrier(int worker);

  // Half-open share [begin, end) of `count` items for `worker`, sizes differing by at most one, in units of
  // `unit`.
  std::pair<int64_t, int64_t> share(int64_t count, int worker, int64_t unit = 1) const;

 private:
  void run_erased(void (*call)(void*, int), void* context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int size_;
};

// Hands out 0, 1, 2, ... to whoever asks first.
class alignas(64) Counter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> next_{0};
};

}  // namespace braid
