// metadata_keys.h -- reads the metadata of one architecture and names wrong keys.
// Limits are far above published models and keep products of two or three sizes far below 2^63, so
// later code needs no checked arithmetic.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "gguf/gguf.h"

namespace braid {

inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxWidth = 1 << 18;  // of each part of an activation row
inline constexpr uint32_t kMaxHeads = 4096;
inline constexpr uint32_t kMaxHeadDim = 1024;
inline constexpr uint32_t kMaxConvTaps = 16;
inline constexpr uint32_t kMaxExperts = 65536;
inline constexpr uint32_t kMaxExpertsUsed = 64;
inline constexpr uint32_t kMaxContext = 1 << 28;

// For one file and prefix ("qwen35"); the file must outlive it.
class MetadataKeys {
 public:
  MetadataKeys(const GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)) {}

  const GgufFile& file() const { return file_; }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }

  Error corrupt(std::string_view key, const std::string& why) const {
    return {ErrorKind::corrupt, fmt::format("{}: key {}: {}", file_.name(), full(key), why)};
  }
  Error unsupported(std::string_view key, const std::string& why) const {
    return {ErrorKind::unsupported, fmt::format("{}: key {}: {}", file_.name(), full(key), why)};
  }

  Result<uint32_t> in_range(std::string_view key, uint32_t value, uint32_t low,
                            uint32_t high) const {
    if (value < low || value > high)
      return corrupt(key, fmt::format("{} is not between {} and {}", value, low, high));
    return value;
  }
  Result<uint32_t> u32(std::string_view key, uint32_t low, uint32_t high) const {
    BRAID_ASSIGN(const uint32_t value, file_.get_u32(full(key)));
    return in_range(key, value, low, high);
  }
  Result<uint32_t> u32_or(std::string_view key, uint32_t fallback, uint32_t low,
                          uint32_t high) const {
    BRAID_ASSIGN(const auto value, file_.find_u32(full(key)));
    return value ? in_range(key, *value, low, high) : Result<uint32_t>(fallback);
  }
  Result<float> f32_or(std::string_view key, float fallback) const {
    BRAID_ASSIGN(const auto value, file_.find_f32(full(key)));
    if (value && !std::isfinite(*value)) return corrupt(key, "is not a finite number");
    return value ? *value : fallback;
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

}  // namespace braid
