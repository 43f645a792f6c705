// weights.h -- weights on the GPU: packed for products, or as in the file for look-ups.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/context.h"
#include "ops/device.h"

namespace braid::cuda {

struct PackedWeight;

size_t planned_bytes(const Weight& weight);
Status load_weights(Device& device, Context& context, std::span<Weight* const> weights,
                    const Device::WeightDone& done, std::vector<std::unique_ptr<PackedWeight>>& out);

struct PackedWeight {
  Buffer memory;
};

}  // namespace braid::cuda
