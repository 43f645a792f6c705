// version.cpp -- see version.h. CMakeLists.txt sets BRAID_VERSION, BRAID_COMMIT and BRAID_CUDA_FOR.
#include "cli/options/version.h"

#include <fmt/format.h>

#include <string_view>

#include "ops/device.h"

namespace braid::cli {

std::string version_text() {
  constexpr std::string_view kCuda = BRAID_CUDA_FOR;
  DeviceOptions options;
  options.threads = 1;
  const auto cpu = make_cpu_device(options);
  const std::string path = cpu.ok() ? (*cpu)->numerics() : cpu.error().message;  // "cpu avx512"
  return fmt::format("braid {} ({})\nCPU kernels: {}\nCUDA kernels: {}", BRAID_VERSION,
                     BRAID_COMMIT, path.starts_with("cpu ") ? path.substr(4) : path,
                     kCuda.empty() ? "none, built for CPUs only" : kCuda);
}

}  // namespace braid::cli
