// engine_devices_test.h -- the devices on which engine tests run.
//
// BRAID_TEST_DEVICES=gpu runs only the GPU's tests. Without a GPU they are skipped.
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

// On a GPU log probabilities this close may swap: other kernels round differently.
inline constexpr float kNearTie = 0.05f;

// "cpu_late": a CPU that delivers events during the next step, like a GPU.
inline void choose(EngineOptions& options, std::string_view device) {
  options.hooks.late_events = device == "cpu_late";
  options.device = options.hooks.late_events ? "cpu" : device;
}

class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_on(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace braid::testing_devices
