// context.h -- what every launch needs: the stream, what the GPU has, and the place where errors stay.
//
// Owned by the device, shared by its ops. Errors are sticky: the first one is kept as a sentence that names
// the GPU and what was being done, later work is pointless, and the engine asks for it after synchronize()
// (Device::health).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "ops/cuda/primitives/card.h"
#include "ops/cuda/primitives/gpu.h"

namespace braid::cuda {

// A Card: kernels ask the context what they may use, context.shared_bytes_per_block or context.has_clusters.
struct Context : Card {
  int gpu = 0;  // as the driver counts
  cudaStream_t stream = nullptr;
  bool deterministic = false;   // device.h: forms are chosen without looking at the number of rows
  uint64_t launches = 0;        // kernels queued so far
  std::string name;             // "NVIDIA GeForce RTX 3090, 8.6"
  const char* op = "a kernel";  // that is being queued (profile.h)

  // The driver's calls of this thread are for this GPU from now on. What works on a stream or allocates comes
  // by here first: one thread may serve several GPUs. Where it fails, so does the next call.
  void make_current() const {
    static thread_local int current = -1;
    if (current != gpu && cudaSetDevice(gpu) == cudaSuccess) current = gpu;
  }

  // Remembers the first error. True: all is well.
  bool note(cudaError_t error, const char* what) {
    return error == cudaSuccess || keep("failed in", what, error);
  }
  // After each launch. What a launch is refused for is forgotten when it is asked for; what has broken the
  // GPU, in whichever kernel, is told every time.
  void launched(const char* what) {
    ++launches;
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return;
    keep(cudaGetLastError() == error ? "failed in or before" : "refused", what, error);
  }
  bool healthy() const { return first_error.empty(); }

  // Where launches are written down instead of made (rehearsal.h); null: they are made.
  std::vector<KernelLaunch>* rehearsal = nullptr;

  std::string first_error;

  // Of kernels, each GPU knows for itself (launch.h): which were prepared, and how many clusters it runs.
  struct Clusters {
    const void* kernel;
    unsigned cluster;
    size_t shared;
    int64_t count;
  };
  std::unordered_set<const void*> prepared;
  std::vector<Clusters> clusters;

 private:
  bool keep(const char* did, const char* what, cudaError_t error) {
    if (first_error.empty())
      first_error = "the GPU (" + name + ") " + did + " " + what + ": " + cudaGetErrorString(error);
    return false;
  }
};

inline Error gpu_error(cudaError_t error, const char* what, ErrorKind kind = ErrorKind::io) {
  return Error{kind, std::string("GPU: ") + what + ": " + cudaGetErrorString(error)};
}

}  // namespace braid::cuda
