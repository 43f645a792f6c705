// unit_kind.h -- formats of sealed blocks as kernels know them, and the layout of their units
// (code_planes.h, channel_planes.h, row_forms.h of ops/kv).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "ops/batch.h"
#include "ops/cuda/both.h"

namespace braid::cuda {

// A head's width is a multiple of the first and at most the second.
inline constexpr int kUnitWidthUnit = 32;
inline constexpr int kMostUnitWidth = 256;
inline constexpr int kUnitThreads = 256;

enum class UnitFamily : uint8_t {
  number,    // rows of numbers
  classic,   // 32 values along a row with a scale, or a scale and a minimum
  codebook,  // levels of 128 rotated values, and a norm
  channel,   // scale and zero per channel; of V also a factor per row
};
enum class UnitKind : uint8_t { f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, tbq4, tq3, c5, c4 };

BRAID_BOTH constexpr UnitFamily family_of(UnitKind kind) {
  return kind <= UnitKind::bf16   ? UnitFamily::number
         : kind <= UnitKind::q4_0 ? UnitFamily::classic
         : kind <= UnitKind::tq3  ? UnitFamily::codebook
                                  : UnitFamily::channel;
}
// By R of ops/kv/rotation.h.
BRAID_BOTH constexpr bool is_rotated(UnitKind kind) {
  return family_of(kind) == UnitFamily::codebook;
}
BRAID_BOTH constexpr int bits_of_kind(UnitKind kind) {
  switch (kind) {
    case UnitKind::f32:
      return 32;
    case UnitKind::f16:
    case UnitKind::bf16:
      return 16;
    case UnitKind::q8_0:
      return 8;
    case UnitKind::q5_1:
    case UnitKind::q5_0:
    case UnitKind::c5:
      return 5;
    case UnitKind::q4_1:
    case UnitKind::q4_0:
    case UnitKind::tbq4:
    case UnitKind::c4:
      return 4;
    case UnitKind::tq3:
      return 3;
  }
  return 0;
}
BRAID_BOTH constexpr bool has_minimum(UnitKind kind) {
  return kind == UnitKind::q5_1 || kind == UnitKind::q4_1;
}

// Codes of 3 and 5 bits are two planes, the second of one bit.
BRAID_BOTH constexpr int low_bits_of(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
BRAID_BOTH constexpr int code_plane_bytes(int bits, int width) { return 4 * bits * width; }

BRAID_BOTH constexpr int unit_bytes_of(UnitKind kind, int width, bool value) {
  const int codes = code_plane_bytes(bits_of_kind(kind), width);
  switch (family_of(kind)) {
    case UnitFamily::number:
      return codes;
    case UnitFamily::classic:
      return codes + (has_minimum(kind) ? 2 : 1) * (width / 32) * 64;
    case UnitFamily::codebook:
      return codes + width / 128 * 64;
    case UnitFamily::channel:
      return codes + 2 * width + 16 + (value ? 64 : 0);
  }
  return 0;
}

// By the codec's name.
inline UnitKind unit_kind(std::string_view name) {
  constexpr std::string_view kNames[] = {"f32",  "f16",  "bf16",   "q8_0",  "q5_1", "q5_0",
                                         "q4_1", "q4_0", "tbq4_0", "tq3_0", "c5",   "c4"};
  static_assert(std::size(kNames) == static_cast<size_t>(UnitKind::c4) + 1);
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  BRAID_CHECK(found != std::end(kNames));
  return static_cast<UnitKind>(found - std::begin(kNames));
}

// Calls run.template operator()<kind>(), on the caller's side (host or device).
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <typename Run>
BRAID_BOTH void with_kind(UnitKind kind, Run run) {
  switch (kind) {
    case UnitKind::f32:
      return run.template operator()<UnitKind::f32>();
    case UnitKind::f16:
      return run.template operator()<UnitKind::f16>();
    case UnitKind::bf16:
      return run.template operator()<UnitKind::bf16>();
    case UnitKind::q8_0:
      return run.template operator()<UnitKind::q8_0>();
    case UnitKind::q5_1:
      return run.template operator()<UnitKind::q5_1>();
    case UnitKind::q5_0:
      return run.template operator()<UnitKind::q5_0>();
    case UnitKind::q4_1:
      return run.template operator()<UnitKind::q4_1>();
    case UnitKind::q4_0:
      return run.template operator()<UnitKind::q4_0>();
    case UnitKind::tbq4:
      return run.template operator()<UnitKind::tbq4>();
    case UnitKind::tq3:
      return run.template operator()<UnitKind::tq3>();
    case UnitKind::c5:
      return run.template operator()<UnitKind::c5>();
    case UnitKind::c4:
      return run.template operator()<UnitKind::c4>();
  }
}

// Shared memory of a block for a unit. Padded rows put a column into different banks.
struct UnitRows {
  float at[kBlockTokens][kMostUnitWidth + 1];
};
struct UnitScratch {
  UnitRows rows;
  float sums[kBlockTokens * 2][33];  // 32 partial sums of each row, of each half of it
  float norm[kBlockTokens * 2];
  float middle[kMostUnitWidth], half[kMostUnitWidth];  // of channels
  float farthest[32], widest[32];
  int refused;
};

}  // namespace braid::cuda
