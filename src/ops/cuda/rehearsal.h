// rehearsal.h -- a GPU that is not there: ops choose their kernels as for a given card, and what each launch
// asks of the card is written down instead of made. For tests of those choices, which need no GPU.
#pragma once

#include <memory>
#include <vector>

#include "ops/cuda/primitives/card.h"
#include "ops/device.h"

namespace braid::cuda {

// Launches are appended to `launches`, which must outlive the device. Nothing is computed, copied or loaded:
// memory holds zeros, weights have a shape and no bytes. Forms that describe tensors to the driver (wgmma
// attention) need one, and are passed over without it.
std::unique_ptr<Device> make_rehearsal(const Card& card, std::vector<KernelLaunch>& launches);

}  // namespace braid::cuda
