// products.cu -- (being written)
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/weights.h"

namespace braid {
#define BRAID_NO_KERNEL BRAID_CHECK(!"this op has no kernel yet")
void CudaOps::embed(Tensor, const Weight&, const Batch&) { BRAID_NO_KERNEL; }
void CudaOps::linear(std::span<const LinearPart>, Tensor) { BRAID_NO_KERNEL; }
void CudaOps::logits(Tensor, const Weight&, Tensor) { BRAID_NO_KERNEL; }
void CudaOps::gather_rows(Tensor, Tensor, const int32_t*, int32_t) { BRAID_NO_KERNEL; }
void CudaOps::top_k(Tensor, Tensor, Tensor, Tensor) { BRAID_NO_KERNEL; }
void CudaOps::moe_route(Tensor, Tensor, Tensor, const RouteParams&) { BRAID_NO_KERNEL; }
void CudaOps::moe_ffn(Tensor, Tensor, Tensor, Tensor, const MoeWeights&) { BRAID_NO_KERNEL; }
size_t CudaOps::products_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds&) { return 0; }
size_t CudaOps::moe_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds&) { return 0; }
namespace cuda {
size_t planned_bytes(const Weight&) { return 0; }
Status load_weights(Device&, Context&, std::span<Weight* const>, const Device::WeightDone&,
                    std::vector<std::unique_ptr<PackedWeight>>&) {
  BRAID_NO_KERNEL;
  return {};
}
}  // namespace cuda
}  // namespace braid
