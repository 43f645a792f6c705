// expert_share.cpp -- see expert_share.h: the host's side.
#include "ops/cuda/gemm/expert_share.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/threads.h"

namespace braid::cuda {
namespace {

// Until calls have told better: a link of 25 GB/s, threads that compute 20 GB/s.
constexpr ShareAnswer::Rates kFirstRates{40, {50, 60, 80}, 8000};
constexpr double kBeginNs = 8000;    // from a call until threads compute, and back
constexpr double kNewest = 1.0 / 8;  // weight of the newest time in an average
constexpr double kLeastNs = 0.1;     // of a KiB
constexpr double kMostAfterNs = 2e6;

// Between calls the thread spins; without calls it sleeps, at first for short times, as a step that
// was queued long ago may yet call.
constexpr int64_t kSpinNs = 5'000'000;
constexpr int64_t kCallingNs = 200'000'000;
constexpr int64_t kAwakeNs = 60'000'000'000;
constexpr auto kShortSleep = std::chrono::microseconds(500);
constexpr auto kLongSleep = std::chrono::milliseconds(500);

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t read_word(uint32_t& word) {
  return std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
}

size_t page(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
size_t x_at() { return page(sizeof(ShareCall)) + page(sizeof(ShareAnswer)); }
size_t y_at(const HostExperts::Limits& limits) {
  return x_at() + page(static_cast<size_t>(limits.rows * limits.width) * sizeof(uint16_t));
}

float load(float& from) { return std::atomic_ref<float>(from).load(std::memory_order_relaxed); }

void approach(float& average, double newest) {
  const double before = load(average);
  std::atomic_ref<float>(average).store(static_cast<float>(before + (newest - before) * kNewest),
                                        std::memory_order_relaxed);
}
// A time far above the average, as when a thread was suspended, counts as four times the average.
void approach_time(float& average, double newest) {
  approach(average, std::clamp(newest, kLeastNs, 4.0 * load(average)));
}

}  // namespace

size_t ExpertShare::memory_bytes(const HostExperts::Limits& limits) {
  return y_at(limits) + static_cast<size_t>(limits.rows * limits.width) * sizeof(float);
}

ExpertShare::Places ExpertShare::places(const HostExperts::Limits& limits, void* memory) {
  auto* const at = static_cast<std::byte*>(memory);
  return {reinterpret_cast<ShareCall*>(at),
          reinterpret_cast<ShareAnswer*>(at + page(sizeof(ShareCall))),
          reinterpret_cast<uint16_t*>(at + x_at()), reinterpret_cast<float*>(at + y_at(limits))};
}

ExpertShare::ExpertShare(Options options, void* memory)
    : options_(std::move(options)), at_(places(options_.limits, memory)) {
  BRAID_CHECK(options_.limits.rows <= kMostShareRows && options_.limits.used <= kMostShareUsed &&
              options_.expert_kib.size() == options_.layers.size());
  ids_.reserve(std::size(at_.call->ids));
  weights_.reserve(std::size(at_.call->ids));
  mine_.reserve(std::size(at_.call->mine));
  new (at_.call) ShareCall();
  new (at_.answer) ShareAnswer();
  at_.answer->rates = kFirstRates;
  thread_ = std::thread([this] { serve(); });
}

ExpertShare::~ExpertShare() {
  stop_ = true;
  { const std::lock_guard lock(mutex_); }
  woken_.notify_all();
  thread_.join();
}

void ExpertShare::wake() {
  woken_ns_ = clock_ns();  // before resting_ is read: a thread about to rest must see it
  if (!resting_) return;
  const std::lock_guard lock(mutex_);
  woken_.notify_all();
}

std::string ExpertShare::fault() const {
  if (read_word(at_.answer->late) == 0) return {};
  return "threads of the CPU did not answer with experts within " +
         std::to_string(kMostWaitNs / 1'000'000'000) + " s";
}

ShareAnswer::Rates ExpertShare::rates() const {
  ShareAnswer::Rates& now = at_.answer->rates;
  ShareAnswer::Rates out{load(now.read_ns), {}, load(now.ahead_ns)};
  for (int i = 0; i < kShareRowClasses; ++i) out.compute_ns[i] = load(now.compute_ns[i]);
  return out;
}

void ExpertShare::serve() {
  ThreadPool pool(options_.threads);
  HostExperts experts(pool, options_.limits);
  uint32_t served = 0;
  int64_t served_ns = clock_ns();
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint32_t number = read_word(at_.call->number);
    if (number != served) {
      answer(experts, number);
      served = number;
      served_ns = clock_ns();
    } else {
      rest(clock_ns(), served_ns);
    }
  }
}

// Between two looks.
void ExpertShare::rest(int64_t now_ns, int64_t served_ns) {
  const int64_t woken_ns = woken_ns_.load(std::memory_order_relaxed);
  // Steps without calls need no thread that spins.
  const int64_t idle_ns = now_ns - std::max(served_ns, woken_ns);
  if (idle_ns < kSpinNs && now_ns - served_ns < kCallingNs) {
    for (int i = 0; i < 8; ++i) pause_cpu();
    return;
  }
  std::unique_lock lock(mutex_);
  resting_ = true;
  const auto ends = [&] { return stop_.load() || woken_ns_.load() != woken_ns; };
  if (now_ns - woken_ns < kAwakeNs) {
    woken_.wait_for(lock, kShortSleep, ends);
  } else {
    woken_.wait_for(lock, kLongSleep, ends);
  }
  resting_ = false;
}

void ExpertShare::answer(HostExperts& experts, uint32_t number) {
  const int64_t begin_ns = clock_ns();
  const ShareCall& call = *at_.call;
  const auto layer = static_cast<size_t>(call.layer);
  learn(call.told);
  const auto choices = static_cast<size_t>(call.rows * call.used);
  ids_.assign(call.ids, call.ids + choices);
  weights_.assign(call.weights, call.weights + choices);
  mine_.assign(std::begin(call.mine), std::end(call.mine));
  HostExperts::Job job;
  job.layer = &options_.layers[layer];
  job.rows = call.rows;
  job.used = call.used;
  job.x = at_.x;
  job.x_stride = options_.limits.width;
  job.ids = ids_.data();
  job.weights = weights_.data();
  job.mine = mine_.data();
  job.y = at_.y;
  const int64_t computed = experts.run(job);
  std::atomic_ref<uint32_t>(at_.answer->number).store(number, std::memory_order_release);
  computed_ns_ = static_cast<double>(clock_ns() - begin_ns);
  computed_kib_ = static_cast<double>(computed) * options_.expert_kib[layer];
  row_class_ = share_row_class(static_cast<int>(job.rows));
}

// The GPU reads rates at any time; each is a word.
void ExpertShare::learn(const ShareCall::Told& told) {
  if (computed_kib_ == 0) return;
  ShareAnswer::Rates& rates = at_.answer->rates;
  const double after_ns = std::min<double>(told.after_ns, kMostAfterNs);
  if (told.read_kib > 0) approach_time(rates.read_ns, told.read_ns / told.read_kib);
  // A thread that came late has measured less than the GPU has waited.
  const double seen_ns =
      told.waited_ns > 500 ? double{told.read_ns} + after_ns + told.waited_ns : 0;
  const double all_ns = std::max(computed_ns_ + kBeginNs / 2, seen_ns);
  approach_time(rates.compute_ns[row_class_],
                std::max(all_ns - kBeginNs, 0.2 * all_ns) / computed_kib_);
  approach(rates.ahead_ns, kBeginNs - after_ns);
}

}  // namespace braid::cuda
