// peaks.h -- what this machine can do at best, measured in under two seconds, so that speeds can be given
// as a share of it.
//
// Arithmetic is the best of many slices of 20 us with independent accumulators; reads are the best of several
// passes over a buffer with huge pages asked for, each thread its own part. Beside other busy programs every
// figure is a lower bound.
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
  Rate dot_gops;    // byte products of the fastest integer instruction the product kernels use, with its
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
