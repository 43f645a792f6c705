// mirror_test.h -- lets tests that read and write host memory run on a device that computes elsewhere.
//
// The mirror gives out host memory and keeps a twin of each stretch on the device under test. Around every op
// it uploads all of them, turns f32 activations into the device's activation type, runs the op and brings
// everything back. Batch arrays and row lists travel with the op. Elements that the op left alone keep their
// host bytes, so poison and canaries work.
//
// Over the reference it does one thing only: it rounds activations that go in, so that the reference answers
// the question that the device was asked.
#pragma once

#include <memory>

#include "ops/device.h"

namespace braid::test {

// Whether mirrors tell their device what is announced to them. Either way they make an announced product together
// with the op that writes its x, so that both ways x is what the device stores.
inline bool mirrors_announce = true;

std::unique_ptr<Device> make_mirror(std::unique_ptr<Device> inner, DType activation_type);

}  // namespace braid::test
