// context.h -- what every launch needs: the stream, the size of the GPU, and the place where errors stay.
//
// Owned by the device, shared by its ops. Errors are sticky: the first one is kept with the name of what was
// being done, later work is pointless, and the engine asks for it after synchronize() (Device::health).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "ops/cuda/primitives/gpu.h"

namespace braid::cuda {

struct Context {
  cudaStream_t stream = nullptr;
  int processors = 0;                 // streaming multiprocessors
  int capability = 0;                 // 90 for 9.0
  size_t shared_bytes_per_block = 0;  // what a block may ask for
  bool deterministic = false;         // device.h: forms are chosen without looking at the number of rows
  uint64_t launches = 0;              // kernels queued so far

  // Remembers the first error. True: all is well.
  bool note(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return true;
    if (first_error.empty()) first_error = std::string(what) + ": " + cudaGetErrorString(error);
    return false;
  }
  // After each launch.
  void launched(const char* kernel) {
    ++launches;
    note(cudaGetLastError(), kernel);
  }
  bool healthy() const { return first_error.empty(); }

  std::string first_error;
};

inline Error gpu_error(cudaError_t error, const char* what, ErrorKind kind = ErrorKind::io) {
  return Error{kind, std::string("GPU: ") + what + ": " + cudaGetErrorString(error)};
}

}  // namespace braid::cuda
