// peaks.h -- peak speeds of this machine, measured in under two seconds.
// Arithmetic: the best of many slices of 20 us with independent accumulators. Reads: the best of
// several passes over huge pages, a part per thread. With other load all figures are lower bounds.
#pragma once

#include <cstddef>
#include <vector>

#include "base/threads.h"

namespace braid::cpu {

struct Peaks {
  struct Rate {
    double one_thread = 0;
    double all_threads = 0;
  };
  struct Read {
    size_t size_bytes = 0;  // of all threads together
    Rate gb_per_s;
  };
  double clock_ghz = 0;
  Rate fma_gflops;  // f32 FMA, two operations each
  Rate dot_gops;    // byte products of the kernels' fastest integer instruction, with the
                    // addition; two operations each
  const char* dot_name = "";
  std::vector<Read> reads;  // ascending size: 1, 16, 64, 400 MiB
  double barrier_us = 0;    // median
  double region_us = 0;     // median of an empty run()

  // GB/s of the smallest measured level that holds `size_bytes`.
  Rate read_rate(size_t size_bytes) const;
};

Peaks measure_peaks(ThreadPool& pool);

}  // namespace braid::cpu
