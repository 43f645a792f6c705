// context.h -- the stream, the card, and the first error, for every launch.
//
// Owned by the device, shared by its ops. Errors are sticky: the first one is kept as text with the
// GPU and the op; the engine reads it after synchronize() (Device::health).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "ops/cuda/card.h"
#include "ops/cuda/gpu.h"

namespace braid::cuda {

// Kernels read the limits of the Card, such as context.shared_bytes_per_block.
struct Context : Card {
  int gpu = 0;  // the driver's number
  cudaStream_t stream = nullptr;
  bool deterministic = false;   // device.h: forms are chosen independently of the number of rows
  int devices_on_gpu = 1;       // device.h
  uint64_t launches = 0;        // kernels queued so far
  std::string name;             // "NVIDIA GeForce RTX 3090, 8.6"
  const char* op = "a kernel";  // the op that is being queued (profile.h)

  // Selects this GPU for this thread. Call it before streams are used or memory is allocated: one
  // thread may serve several GPUs. If it fails, the next driver call fails, too.
  void make_current() const {
    static thread_local int current = -1;
    if (current != gpu && cudaSetDevice(gpu) == cudaSuccess) current = gpu;
  }

  // Remembers the first error. True: no error.
  bool note(cudaError_t error, const char* what) {
    return error == cudaSuccess || keep("failed in", what, error);
  }
  // Called after each launch. The driver reports a refused launch once, a broken GPU every time.
  void launched(const char* what) {
    ++launches;
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return;
    keep(cudaGetLastError() == error ? "failed in or before" : "refused", what, error);
  }
  bool healthy() const { return fault().empty(); }

  // The first error, or what a watch tells; empty: none.
  std::string fault() const {
    if (!first_error.empty()) return first_error;
    for (const Watch& watch : watches)
      if (std::string told = watch.fault(); !told.empty()) return told;
    return {};
  }
  // Faults that kernels see without failing (exchange/protocol.cuh). Empty: none.
  struct Watch {
    const void* owner;
    std::function<std::string()> fault;
  };
  std::vector<Watch> watches;

  // If not null, launches are recorded here instead of made (rehearsal.h).
  std::vector<KernelLaunch>* rehearsal = nullptr;

  std::string first_error;

  // Per GPU (launch.h): prepared kernels, and the number of clusters that run at a time.
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
