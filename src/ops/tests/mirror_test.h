// mirror_test.h -- runs tests that use host memory on a device that computes elsewhere.
// The mirror gives out host memory and keeps a twin of each buffer on the device. Every op uploads
// all buffers, batch arrays and row lists, converts f32 activations to the device's type, runs and
// downloads. Untouched elements keep their host bytes, so canaries work.
// Over the reference it only rounds activations, so that both devices get the same inputs.
#pragma once

#include <memory>

#include "ops/device.h"

namespace braid::test {

// Whether mirrors announce products. Either way a product runs together with the op that writes its
// x, so that x is what the device stores.
inline bool mirrors_announce = true;

std::unique_ptr<Device> make_mirror(std::unique_ptr<Device> inner, DType activation_type);

}  // namespace braid::test
