// rehearsal.h -- a simulated GPU: ops choose kernels for a given card, and launches are recorded,
// not made. For tests without a GPU.
#pragma once

#include <memory>
#include <vector>

#include "ops/cuda/card.h"
#include "ops/device.h"

namespace braid::cuda {

// Appends to `launches`, which must outlive the device. Nothing is computed, copied or loaded:
// memory holds zeros, weights have a shape and no bytes. Forms that need the driver's tensor maps
// (wgmma attention) are skipped without a driver.
std::unique_ptr<Device> make_rehearsal(const Card& card, std::vector<KernelLaunch>& launches);

}  // namespace braid::cuda
