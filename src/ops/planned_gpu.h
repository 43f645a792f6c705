// planned_gpu.h -- a GPU that is not there, for memory plans.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/device.h"

namespace braid {

// GPU `number` with so much free memory. It sizes weights, states and steps like the CUDA device;
// its workspaces are an estimate. It allocates nothing and has no ops.
std::unique_ptr<Device> make_planned_gpu(int number, uint64_t free_bytes);

}  // namespace braid
