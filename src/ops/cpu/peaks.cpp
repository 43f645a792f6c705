// peaks.cpp -- measuring the machine (peaks.h).

#include "ops/cpu/peaks.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops/cpu/gemm/products.h"
#include "ops/cpu/peaks_kernels.h"
#include "ops/cpu/workspace.h"

namespace braid::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kArithmeticSeconds = 0.05, kReadSeconds = 0.12, kWaitSeconds = 0.05;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Dependent register additions take one cycle each; some processors fold additions of constants.
double clock_hz() {
  double best = 0;
  for (int slice = 0; slice < 400; slice++) {
    const auto start = Clock::now();
    uint64_t x = 0, one = 1;
    asm volatile("" : "+r"(one));
    for (int i = 0; i < 800; i++) {
      for (int j = 0; j < 8; j++) {
        x += one;
        asm volatile("" : "+r"(x));
      }
    }
    best = std::max(best, 6400 / seconds_since(start));
  }
  return best;
}

// Sum of the workers' best slices; `threads` workers run at once.
double arithmetic(ThreadPool& pool, int threads, double (*kernel)(int)) {
  std::vector<double> best(static_cast<size_t>(pool.size()) * 16, 0.0);
  pool.run([&](int worker) {
    if (worker >= threads) return;
    double& mine = best[static_cast<size_t>(worker) * 16];
    const auto begin = Clock::now();
    for (int slice = 0; slice < 400 && seconds_since(begin) < kArithmeticSeconds; slice++) {
      const auto start = Clock::now();
      const double operations = kernel(1000);
      mine = std::max(mine, operations / seconds_since(start));
    }
  });
  double sum = 0;
  for (int w = 0; w < threads; w++) sum += best[static_cast<size_t>(w) * 16];
  return sum;
}

double read_rate(ThreadPool& pool, int threads, const std::byte* data, size_t size_bytes,
                 void (*read)(const void*, size_t)) {
  const size_t part = size_bytes / static_cast<size_t>(threads) / 512 * 512;
  const int passes =
      size_bytes > (size_t{100} << 20) ? 1 : 1 + static_cast<int>((size_t{8} << 20) / size_bytes);
  double best = 0;
  const auto begin = Clock::now();
  for (int slice = 0; slice == 0 || (slice < 1000 && seconds_since(begin) < kReadSeconds);
       slice++) {
    const auto start = Clock::now();
    pool.run([&](int worker) {
      if (worker >= threads) return;
      for (int i = 0; i < passes; i++) read(data + static_cast<size_t>(worker) * part, part);
    });
    const double bytes = static_cast<double>(part) * threads * passes;
    best = std::max(best, bytes / seconds_since(start));
  }
  return best;
}

double median(std::vector<double>* v) {
  std::nth_element(v->begin(), v->begin() + static_cast<int64_t>(v->size() / 2), v->end());
  return (*v)[v->size() / 2];
}

void plain_read(const void* p, size_t size_bytes) {
  const auto* words = static_cast<const uint64_t*>(p);
  uint64_t sum = 0;
  for (size_t i = 0; i < size_bytes / 8; i++) sum += words[i];
  asm volatile("" ::"r"(sum));
}

double plain_fma(int repeats) {
  float sums[8] = {};
  for (int i = 0; i < repeats; i++) {
    for (float& s : sums) {
      s = s * 0.5f + 1.0f;
      asm volatile("" : "+m"(s));
    }
  }
  return repeats * 16.0;
}

}  // namespace

PeakKernels plain_peaks() { return {"plain loops", plain_fma, plain_fma, plain_read}; }

Peaks::Rate Peaks::read_rate(size_t size_bytes) const {
  for (const Read& r : reads) {
    if (size_bytes <= r.size_bytes) return r.gb_per_s;
  }
  return reads.empty() ? Rate{} : reads.back().gb_per_s;
}

Peaks measure_peaks(ThreadPool& pool) {
  PeakKernels kernels = plain_peaks();
#if defined(__x86_64__)
  if (choose_products("avx2") != nullptr) kernels = avx2_peaks();
  if (choose_products("avx512") != nullptr) kernels = avx512_peaks();
#endif
  Peaks c;
  c.dot_name = kernels.dot_name;
  c.clock_ghz = clock_hz() * 1e-9;
  const int all = pool.size();
  c.fma_gflops = {arithmetic(pool, 1, kernels.fma) * 1e-9,
                  arithmetic(pool, all, kernels.fma) * 1e-9};
  c.dot_gops = {arithmetic(pool, 1, kernels.dot) * 1e-9, arithmetic(pool, all, kernels.dot) * 1e-9};

  constexpr size_t kMiB = size_t{1} << 20;
  auto buffer = Mapping::make(400 * kMiB);
  if (buffer.ok()) {
    std::byte* data = buffer->data();
    pool.run([&](int worker) {
      const auto [begin, end] = pool.share(400, worker);
      std::memset(data + static_cast<size_t>(begin) * kMiB, 1,
                  static_cast<size_t>(end - begin) * kMiB);
    });
    for (const size_t mib : {size_t{1}, size_t{16}, size_t{64}, size_t{400}}) {
      c.reads.push_back({mib * kMiB,
                         {read_rate(pool, 1, data, mib * kMiB, kernels.read) * 1e-9,
                          read_rate(pool, all, data, mib * kMiB, kernels.read) * 1e-9}});
    }
  }
  std::vector<double> regions, barriers;
  for (const auto begin = Clock::now(); regions.empty() || seconds_since(begin) < kWaitSeconds;) {
    const auto start = Clock::now();
    pool.run([](int) {});
    regions.push_back(seconds_since(start) * 1e6);
  }
  for (const auto begin = Clock::now(); barriers.empty() || seconds_since(begin) < kWaitSeconds;) {
    pool.run([&](int worker) {
      pool.barrier(worker);
      const auto start = Clock::now();
      for (int i = 0; i < 100; i++) pool.barrier(worker);
      if (worker == 0) barriers.push_back(seconds_since(start) * 1e6 / 100);
    });
  }
  c.region_us = median(&regions);
  c.barrier_us = median(&barriers);
  return c;
}

}  // namespace braid::cpu
