// engine_devices_test.h -- on which devices the tests of the engine run.
//
// BRAID_TEST_DEVICES=gpu leaves everything but the GPU out: a run on a GPU machine need not repeat what any
// machine can test. Without a GPU its tests are skipped and say why there is none.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace braid::testing_devices {

// Empty if tests run on `device`.
inline std::string why_not_on(std::string_view device) {
  const char* wanted = std::getenv("BRAID_TEST_DEVICES");
  const bool only_gpu = wanted != nullptr && std::string_view(wanted) == "gpu";
  if (device != "cuda") return only_gpu ? "BRAID_TEST_DEVICES=gpu" : "";
  static const std::string reason = [] {
    const auto made = make_cuda_device({});
    return made.ok() ? std::string() : made.error().message;
  }();
  return reason;
}

// Log probabilities that are no further apart may change places on a GPU, whose forms for other rows round otherwise.
inline constexpr float kNearTie = 0.05f;

// "cpu_late": a CPU whose clients hear of a step during the next, as those of a GPU do.
inline void choose(EngineOptions& options, std::string_view device) {
  options.hooks.late_events = device == "cpu_late";
  options.device = options.hooks.late_events ? "cpu" : device;
}

// A test fixture whose parameter is a device's name, for choose().
class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_on(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace braid::testing_devices
