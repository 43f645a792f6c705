// threads.cpp -- the worker pool (threads.h). Three words, each on its own cache line:
//
// - epoch: the caller raises it to start a region; workers wait for a change.
// - done: workers that finished the region; the caller waits for size - 1.
// - phase: raised by the last thread at a barrier; the others wait for a change.
//
// A waiter spins, then counts itself as a sleeper and calls futex, which compares the word. The
// waker stores the word, then reads the sleeper count. Both are sequentially consistent, so no
// wake-up is lost, and spinning threads need no system call.

#include "base/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/cores.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace braid {
namespace {

constexpr std::chrono::microseconds kSpin{500};
constexpr int kPausesPerLook = 32;  // between two clock readings

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// A counter to wait for. The sleeper count, used only in slow paths, is on the next cache line.
struct Word {
  alignas(64) std::atomic<uint32_t> value{0};
  alignas(64) std::atomic<uint32_t> sleepers{0};

  template <typename Reached>
  void wait(Reached reached, bool spin) {
    if (reached(value.load(std::memory_order_acquire))) return;
    if (spin) {
      const auto start = std::chrono::steady_clock::now();
      do {
        for (int i = 0; i < kPausesPerLook; i++) {
          if (reached(value.load(std::memory_order_acquire))) return;
          pause_cpu();
        }
      } while (std::chrono::steady_clock::now() - start < kSpin);
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t seen; !reached(seen = value.load(std::memory_order_seq_cst));) {
      futex(&value, FUTEX_WAIT, seen);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  // Call after a sequentially consistent store to `value`.
  void wake() {
    if (sleepers.load(std::memory_order_seq_cst) > 0) futex(&value, FUTEX_WAKE, INT_MAX);
  }
};

// Failing to pin costs only speed.
void allow(pthread_t thread, const std::vector<int>& cpus) {
  const int count = std::max(*std::max_element(cpus.begin(), cpus.end()) + 1, 1024);
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return;
  CPU_ZERO_S(CPU_ALLOC_SIZE(count), set);
  for (const int cpu : cpus) CPU_SET_S(cpu, CPU_ALLOC_SIZE(count), set);
  pthread_setaffinity_np(thread, CPU_ALLOC_SIZE(count), set);
  CPU_FREE(set);
}

}  // namespace

#if defined(__x86_64__)
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(static_cast<unsigned>(saved_) | kFlushToZero | kDenormalsAreZero);
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(saved_ | uint64_t{1} << 24));
}
FlushDenormals::~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FlushDenormals::FlushDenormals() = default;
FlushDenormals::~FlushDenormals() = default;
#endif

struct ThreadPool::Impl {
  Word epoch;
  Word done;
  Word phase;
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) void (*call)(void*, int) = nullptr;  // null: workers exit
  void* context = nullptr;
  bool spin = true;
  uint32_t others = 0;  // threads besides the caller
  std::vector<std::thread> workers;
  int caller_cpu = -1;  // CPU for the thread that calls run(); -1: any
  pthread_t caller{};   // the thread last pinned to caller_cpu
  bool caller_pinned = false;

  // An unpinned caller can stay on a worker's CPU: each region then takes a whole spin.
  void pin_caller() {
    if (caller_cpu < 0 || (caller_pinned && pthread_equal(caller, pthread_self()))) return;
    caller = pthread_self();
    caller_pinned = true;
    allow(caller, {caller_cpu});
  }

  void work(int worker) {
    const FlushDenormals flush;
    for (uint32_t seen = 0;;) {
      epoch.wait([&](uint32_t value) { return value != seen; }, spin);
      seen++;  // run() waits for all workers, so no epoch is skipped
      if (call == nullptr) return;
      call(context, worker);
      if (done.value.fetch_add(1, std::memory_order_seq_cst) + 1 == others) done.wake();
    }
  }
};

ThreadPool::ThreadPool(int threads, Waiting waiting)
    : impl_(std::make_unique<Impl>()), size_(threads) {
  BRAID_CHECK(threads >= 1);
  impl_->others = static_cast<uint32_t>(threads - 1);
  if (threads == 1) return;
  std::vector<int> cores = one_per_core(affinity_cpus(), "/sys/devices/system/cpu");
  // With more threads than CPUs, a spinning waiter would block the thread that it waits for.
  const bool spins = waiting == Waiting::spin;
  const bool roomy = spins && threads <= static_cast<int>(affinity_cpus().size());
  const bool pinned = spins && threads <= static_cast<int>(cores.size());
  impl_->spin = roomy;
  // The caller keeps its CPU; workers take the others.
  const int here = sched_getcpu();
  const auto own = std::find(cores.begin(), cores.end(), here);
  if (own != cores.end()) std::rotate(cores.begin(), own, own + 1);
  if (pinned) impl_->caller_cpu = cores[0];
  impl_->workers.reserve(threads - 1);
  for (int worker = 1; worker < threads; worker++) {
    impl_->workers.emplace_back([impl = impl_.get(), worker] { impl->work(worker); });
    if (pinned) allow(impl_->workers.back().native_handle(), {cores[worker]});
  }
}

ThreadPool::~ThreadPool() {
  impl_->call = nullptr;
  impl_->epoch.value.fetch_add(1, std::memory_order_seq_cst);
  impl_->epoch.wake();
  for (std::thread& worker : impl_->workers) worker.join();
  if (impl_->caller_pinned && pthread_equal(impl_->caller, pthread_self()))
    allow(impl_->caller, affinity_cpus());
}

void ThreadPool::run_erased(void (*call)(void*, int), void* context) {
  const FlushDenormals flush;
  if (size_ == 1) return call(context, 0);
  Impl& impl = *impl_;
  impl.pin_caller();
  impl.call = call;
  impl.context = context;
  impl.done.value.store(0, std::memory_order_relaxed);
  impl.epoch.value.fetch_add(1, std::memory_order_seq_cst);
  impl.epoch.wake();
  call(context, 0);
  impl.done.wait([&](uint32_t value) { return value == impl.others; }, impl.spin);
}

void ThreadPool::barrier(int worker) {
  BRAID_CHECK(worker >= 0 && worker < size_);
  if (size_ == 1) return;
  Impl& impl = *impl_;
  // Safe to read first: the phase cannot change before this thread arrives.
  const uint32_t seen = impl.phase.value.load(std::memory_order_relaxed);
  if (impl.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    impl.arrived.store(0, std::memory_order_relaxed);
    impl.phase.value.store(seen + 1, std::memory_order_seq_cst);
    impl.phase.wake();
  } else {
    impl.phase.wait([&](uint32_t value) { return value != seen; }, impl.spin);
  }
}

std::pair<int64_t, int64_t> ThreadPool::share(int64_t count, int worker, int64_t unit) const {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t each = units / size_, more = units % size_;
  const int64_t begin = worker * each + std::min<int64_t>(worker, more);
  const int64_t end = begin + each + (worker < more ? 1 : 0);
  return {std::min(count, begin * unit), std::min(count, end * unit)};
}

}  // namespace braid
