// barriers.cuh -- barriers in shared memory, and copies that report to them. sm_80 and up; bulk copies sm_90.
//
// A barrier counts arrivals and bytes of its current phase; a phase ends when both are complete, and the next
// one begins. Who waits names the parity of the phase: 0 for the first, 1 for the second, and so on.
#pragma once

#include <cstdint>

#include "ops/cuda/primitives/mma.h"

namespace braid::cuda {

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After all init_barrier of a thread, before the CTA meets.
__device__ inline void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier) : "memory");
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

// Where somebody is in a ring of stages, which are filled again and again. `parity`: of the phase in which the
// stage gets full; the one in which it got empty has the other.
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

// Stages that are filled again: when all lanes of a warp have read one, one lane arrives for all 32 at the
// barrier that the next copy into it waits for. compute-sanitizer's racecheck does not see what orders the
// other lanes' reads before that arrival where it is not a __syncwarp(). In a build for it (CMake option
// BRAID_SANITIZE_CUDA) every lane arrives for itself, and a warp counts as that many.
#if defined(BRAID_SANITIZE_CUDA)
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

// A number in shared memory that one thread writes while others look at it. To racecheck only atomic operations may do so.
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

// Arrives once all cp.async of this thread so far are done; counts as one of the arrivals given to
// init_barrier.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Which lines of the L2 cache a copy takes: first those that leave first, so that what streams through once
// does not push out code and activations.
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
// True in one lane; all call it. A bulk copy wants its operands in registers that all lanes share: where the
// compiler does not know that one lane asks, it loops over lanes.
__device__ inline bool elected() {
  uint32_t is = 0;
  asm volatile("{\n.reg .pred own;\nelect.sync _|own, 0xffffffff;\nselp.u32 %0, 1, 0, own;\n}\n" : "=r"(is));
  return is != 0;
}
// Arrives, and the phase also waits for that many bytes.
__device__ inline void arrive_expecting(uint32_t barrier, int size_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(size_bytes)
               : "memory");
}
// A place of this block's shared memory as block `rank` of the cluster has it.
__device__ inline uint32_t address_at_rank(uint32_t shared, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
// Numbers to the shared memory of a block of the cluster; their bytes are counted by a barrier there.
__device__ inline void store_async(uint32_t to, float x, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n" ::"r"(to),
               "f"(x), "r"(barrier)
               : "memory");
}
__device__ inline void store_async(uint32_t to, float4 x, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::
          "r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
// Of this block, in its cluster.
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster that have not ended meet.
__device__ inline void meet_whole_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}
// The same in two halves, where only barriers were made before (publish_barriers): all threads arrive, those that
// need it wait. It waits for no memory, which meeting does.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// Whole 16-byte pieces, 16-byte aligned; the bytes are counted by the barrier.
__device__ inline void copy_bulk(uint32_t to, const void* from, int size_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
      "l"(from), "r"(size_bytes), "r"(barrier)
      : "memory");
}
__device__ inline void copy_bulk(uint32_t to, const void* from, int size_bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;\n" ::"r"(to),
      "l"(from), "r"(size_bytes), "r"(barrier), "l"(policy)
      : "memory");
}
#endif

// Threads of the first kThreads / 32 warps meet; others do not take part. Where all meet later, racecheck (2025.3.1) takes what
// these write in between and the others read behind both barriers for a race, and no longer does once all take part here
// (delta_chunk_intra.cuh): in a build for it they have to.
template <int kThreads>
__device__ inline void meet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

}  // namespace braid::cuda
