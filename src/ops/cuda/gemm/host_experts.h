// host_experts.h -- products of experts on the CPU, from weights in the GPU's packed form.
//
// A GPU that keeps some experts of a layer has all of them in host memory as packed units
// (packed.h). Here the CPU's threads compute chosen ones on those units.
#pragma once

#include <cstdint>
#include <memory>

#include "base/threads.h"
#include "ops/cuda/gemm/pack_plan.h"

namespace braid::cuda {

// Of all experts of one layer, in host memory. n and k are any numbers: units are padded.
struct HostMatrix {
  Pack pack = Pack::f16;
  int64_t n = 0, k = 0;            // rows and columns of an expert
  const uint8_t* units = nullptr;  // [experts][ceil(n / 32)][ceil(k / 256)] units
  const float* scales = nullptr;   // [experts][ceil(n / 32)]: factor of a block's sums
};
// gate and up have one shape, down has it transposed. Packs may differ.
struct HostLayer {
  HostMatrix gate, up, down;
};

// One thread at a time calls run(), as it is with the pool. Broken promises stop the program
// (base/check.h); there are no other errors.
class HostExperts {
 public:
  static constexpr int64_t kMostUsed = 32;

  // Whether weights in this form are computed here: all but f16, given vector instructions.
  static bool takes(Pack pack);

  // The largest of each that run() may meet.
  struct Limits {
    int64_t rows = 0;
    int64_t used = 0;     // experts of a row, up to kMostUsed
    int64_t width = 0;    // k of gate and up, n of down
    int64_t hidden = 0;   // n of gate and up, k of down
    int64_t experts = 0;  // of a layer
  };
  // Allocates all memory. `pool` outlives this.
  HostExperts(ThreadPool& pool, const Limits& limits);
  ~HostExperts();
  HostExperts(const HostExperts&) = delete;
  HostExperts& operator=(const HostExperts&) = delete;

  // All memory is the caller's.
  struct Job {
    const HostLayer* layer = nullptr;
    int64_t rows = 0, used = 0;
    const uint16_t* x = nullptr;  // f16 [rows][x_stride]
    int64_t x_stride = 0;
    const int32_t* ids = nullptr;    // [rows][used]; outside 0 .. experts - 1: none
    const float* weights = nullptr;  // [rows][used]
    const uint32_t* mine = nullptr;  // bit e: expert e is computed here
    float* y = nullptr;              // [rows][down.n], overwritten
  };
  // y[row] = sum over j with ids[row][j] in mine, in ascending expert id, of
  //   weights[row][j] * down_e(silu(gate_e x[row]) * up_e x[row])
  // Rows without such experts are zeros. Returns the number of distinct experts computed. A row's
  // bytes depend on nothing but its x, ids and weights: not on threads, nor on other rows.
  int64_t run(const Job& job);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid::cuda
