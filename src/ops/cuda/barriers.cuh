// barriers.cuh -- barriers in shared memory, and copies that report to them. sm_80 and up; bulk
// copies sm_90.
//
// A barrier counts arrivals and bytes of its current phase, which ends when both are complete. A
// waiter names the parity of the phase: 0 for the first, 1 for the second, and so on.
#pragma once

#include <cstdint>

#include "ops/cuda/mma.h"

namespace braid::cuda {

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After all init_barrier of a thread, before the CTA's barrier.
__device__ inline void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier)
               : "memory");
}
__device__ inline void wait_barrier(uint32_t barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN_%=:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Position in a ring of stages. `parity`: of the phase that ends when the stage is full.
struct StagePlace {
  int stage = 0;
  int parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Lane 0 arrives for a warp that has read a stage. racecheck does not see this order of reads; in
// builds for it (BRAID_SANITIZE_CUDA) every lane arrives, and a warp counts as 32.
#if defined(BRAID_SANITIZE_CUDA)
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

// A flag in shared memory that other threads poll; racecheck accepts only atomic operations.
__device__ inline void store_flag(int& flag, int x) {
#if defined(BRAID_SANITIZE_CUDA)
  atomicExch(&flag, x);
#else
  *const_cast<volatile int*>(&flag) = x;
#endif
}
__device__ inline int load_flag(int& flag) {
#if defined(BRAID_SANITIZE_CUDA)
  return atomicAdd(&flag, 0);
#else
  return *const_cast<const volatile int*>(&flag);
#endif
}

// Counts as one arrival of init_barrier, once all cp.async of this thread so far are done.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// L2 eviction policy: data that streams through once should not evict code and activations.
__device__ inline uint64_t cache_policy(bool leaves_first) {
  uint64_t policy;
  if (leaves_first) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  }
  return policy;
}

#if __CUDA_ARCH__ >= 900
// True in one lane; all call it. Bulk copies need uniform operands: under `if (lane == 0)` the
// compiler would emit a loop over lanes.
__device__ inline bool elected() {
  uint32_t is = 0;
  asm volatile("{\n.reg .pred own;\nelect.sync _|own, 0xffffffff;\nselp.u32 %0, 1, 0, own;\n}\n"
               : "=r"(is));
  return is != 0;
}
// Arrives, and makes the phase also wait for that many bytes.
__device__ inline void arrive_expecting(uint32_t barrier, int size_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
               "r"(size_bytes)
               : "memory");
}
// The corresponding shared memory address in block `rank` of the cluster.
__device__ inline uint32_t address_at_rank(uint32_t shared, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
// Stores to another block of the cluster; a barrier there counts the bytes.
__device__ inline void store_async(uint32_t to, float x, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n" ::"r"(to),
      "f"(x), "r"(barrier)
      : "memory");
}
__device__ inline void store_async(uint32_t to, float4 x, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];\n" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster that have not ended.
__device__ inline void meet_whole_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}
// The same in two halves, without ordering memory, which suffices after publish_barriers.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// 16-byte aligned address and size; the barrier counts the bytes.
__device__ inline void copy_bulk(uint32_t to, const void* from, int size_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(size_bytes), "r"(barrier)
      : "memory");
}
__device__ inline void copy_bulk(uint32_t to, const void* from, int size_bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, "
      "[%3], %4;\n" ::"r"(to),
      "l"(from), "r"(size_bytes), "r"(barrier), "l"(policy)
      : "memory");
}
#endif

// A barrier of the first kThreads / 32 warps. With racecheck (2025.3.1) all threads take part: it
// otherwise reports races for data that is read after a later barrier of all.
template <int kThreads>
__device__ inline void meet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

}  // namespace braid::cuda
