// checked.h -- 64-bit arithmetic on untrusted numbers: an overflow gives an empty result.
#pragma once

#include <cstdint>
#include <optional>

namespace braid {

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

inline std::optional<uint64_t> checked_align_up(uint64_t a, uint64_t unit) {
  const auto sum = checked_add(a, unit - 1);
  if (!sum) return std::nullopt;
  return *sum & ~(unit - 1);
}

}  // namespace braid
