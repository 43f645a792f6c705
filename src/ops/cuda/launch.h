// launch.h -- launches that may start while the preceding kernel ends (programmatic dependent
// launch, where the GPU has it; elsewhere plain launches).
//
// A kernel launched here may begin once every block of the preceding kernel has called
// let_next_start() or ended. Rules for all kernels:
// - Before wait_for_previous() a kernel reads only data that no kernel of a step writes (weights,
//   tables), and writes only its own shared memory.
// - Every block that does anything calls wait_for_previous(), because the end of a kernel must
//   imply the end of all earlier ones.
// - let_next_start() comes after wait_for_previous(). So only two kernels overlap, and when a
//   kernel starts, the one before the preceding one is complete and its writes are visible.
// - Exception: short kernels between two products (norm, order, route, sort, combine, collect)
//   call it first, so that the next product sets up during the previous one. The kernel after a
//   short one may rely only on its own wait: GemmLaunch::beside_previous and ExpertList::early do
//   not apply.
//
// Overlap needs room: at most half of a multiprocessor's threads, registers and shared memory. All
// kernels request the same division of the L1 cache, since a change waits for an idle
// multiprocessor. Kernels with very many loads in flight (launch_loads) do not: these loads occupy
// L1.
#pragma once

#include <utility>

#include "ops/cuda/context.h"

namespace braid::cuda {

#if defined(__CUDACC__)
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

enum class L1 : uint8_t {
  small,  // the common division
  large,  // the driver's choice for the kernel
};

// Before the first launch of a kernel on this GPU.
template <typename... Parameters>
void prepare_kernel(Context& context, L1 l1, void (*kernel)(Parameters...)) {
  const auto* name = reinterpret_cast<const void*>(kernel);
  // Also for less than 48 KB: the default limit includes static shared memory.
  if (context.prepared.insert(name).second) {
    cudaFuncAttributes attributes;
    context.note(cudaFuncGetAttributes(&attributes, name), context.op);
    const auto most = static_cast<int>(context.shared_bytes_per_block - attributes.sharedSizeBytes);
    context.note(cudaFuncSetAttribute(name, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                 context.op);
    if (context.has_dependent_launch && l1 == L1::small) {
      context.note(cudaFuncSetAttribute(name, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared),
                   context.op);
    }
  }
}

// `shared`: dynamic bytes. `cluster`: blocks (along x); above 1 only if the GPU has clusters.
template <typename... Parameters, typename... Args>
void launch_on(Context& context, L1 l1, unsigned cluster, void (*kernel)(Parameters...), dim3 grid,
               unsigned threads, size_t shared, Args&&... args) {
  if (context.rehearsal != nullptr) {
    ++context.launches;
    context.rehearsal->push_back({context.op, shared, threads, cluster});
    return;
  }
  prepare_kernel(context, l1, kernel);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  cudaLaunchAttribute attributes[3];
  if (context.has_dependent_launch) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
    // Many clusters are not spread: beside the preceding kernel that would take a second round.
    if (grid.x <= static_cast<unsigned>(context.processors)) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      attributes[config.numAttrs++].val.clusterSchedulingPolicyPreference =
          cudaClusterSchedulingPolicySpread;
    }
  }
  config.attrs = attributes;
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  context.launched(context.op);
}

// How many clusters of `cluster` blocks an idle GPU runs at the same time.
template <typename... Parameters>
int64_t most_clusters(Context& context, unsigned cluster, void (*kernel)(Parameters...),
                      unsigned threads, size_t shared) {
  if (context.rehearsal != nullptr) return context.processors / static_cast<int64_t>(cluster);
  const auto* name = reinterpret_cast<const void*>(kernel);
  for (const Context::Clusters& k : context.clusters)
    if (k.kernel == name && k.cluster == cluster && k.shared == shared) return k.count;
  prepare_kernel(context, L1::small, kernel);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    count = 0;  // unsupported size
  }
  context.clusters.push_back({name, cluster, shared, count});
  return count;
}

template <typename... Parameters, typename... Args>
void launch_clusters(Context& context, unsigned cluster, void (*kernel)(Parameters...), dim3 grid,
                     unsigned threads, size_t shared, Args&&... args) {
  launch_on(context, L1::small, cluster, kernel, grid, threads, shared,
            std::forward<Args>(args)...);
}

template <typename... Parameters, typename... Args>
void launch_loads(Context& context, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                  size_t shared, Args&&... args) {
  launch_on(context, L1::large, 1, kernel, grid, threads, shared, std::forward<Args>(args)...);
}

template <typename... Parameters, typename... Args>
void launch_early(Context& context, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                  size_t shared, Args&&... args) {
  launch_clusters(context, 1, kernel, grid, threads, shared, std::forward<Args>(args)...);
}

}  // namespace braid::cuda
