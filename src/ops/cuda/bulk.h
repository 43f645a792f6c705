// bulk.h -- the bulk copy engine of compute capability 9.0: whole stretches between global and shared memory,
// one thread asking, a barrier in shared memory counting the bytes that came.
//
// What ordinary stores wrote to shared memory is seen by the engine only after publish_to_engine() in every
// writing thread and a barrier between them and the thread that asks.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu.h"

namespace braid::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline void init_arrivals(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Also makes initialised barriers known to the engine.
__device__ inline void publish_to_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts a copy of `bytes` (a multiple of 16, both addresses aligned to 16) and tells the barrier to wait for
// it.
__device__ inline void fetch_bulk(uint32_t to_shared, const void* from, int bytes, uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void wait_fetched(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline void write_bulk(void* to, uint32_t from_shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from_shared),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of this thread's write_bulk still read shared memory.
template <int kPending>
__device__ inline void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ inline void wait_written() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace braid::cuda
