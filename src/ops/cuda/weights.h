// weights.h -- brings weights to the GPU: file bytes through pinned staging, packed there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/gemm/expert_slots.h"
#include "ops/cuda/gemm/packed.h"

namespace braid::cuda {

// The packed form of `weight`; `data` is null.
PackedWeight shape_of(const Weight& weight);

Status load_weights(Device& device, Context& context, ExpertSlots& slots,
                    std::span<Weight* const> weights, const Device::WeightDone& done,
                    std::vector<std::unique_ptr<PackedWeight>>& out);

void copy_rows(Context& context, const Weight& to, const Weight& from,
               std::span<const int32_t> rows);

}  // namespace braid::cuda
