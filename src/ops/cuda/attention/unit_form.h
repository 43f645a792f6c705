// unit_form.h -- formats of sealed blocks that kernels support, and the layout of their units
// (code_planes.h, channel_planes.h, row_forms.h of ops/kv).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/batch.h"
#include "ops/cuda/both.h"

namespace braid::cuda {

inline constexpr int kMostUnitWidth = 256;  // of a head
inline constexpr int kUnitThreads = 256;
inline constexpr int kMostUnitGroups = kMostUnitWidth / 32;

enum class UnitFamily : uint8_t {
  number,    // rows of numbers
  classic,   // 32 values along a row with a scale, or a scale and a minimum
  codebook,  // levels of 128 rotated values, and a norm
  channel,   // scale and zero per channel; of V also a factor per row
};
enum class UnitKind : uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q5_1,
  q5_0,
  q4_1,
  q4_0,
  tbq4,
  tq3,
  c6,
  c5,
  c4,
  c3
};

struct UnitForm {
  UnitKind kind = UnitKind::f16;
  bool rotated = false;
};

BRAID_BOTH constexpr UnitFamily family_of(UnitKind kind) {
  return kind <= UnitKind::bf16   ? UnitFamily::number
         : kind <= UnitKind::q4_0 ? UnitFamily::classic
         : kind <= UnitKind::tq3  ? UnitFamily::codebook
                                  : UnitFamily::channel;
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
    case UnitKind::c6:
      return 6;
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
    case UnitKind::c3:
      return 3;
  }
  return 0;
}
BRAID_BOTH constexpr bool has_minimum(UnitKind kind) {
  return kind == UnitKind::q5_1 || kind == UnitKind::q4_1;
}

// Codes of 3, 5 and 6 bits are two planes.
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

// By the codec's name; none: not supported.
inline std::optional<UnitForm> unit_form(std::string_view name) {
  struct Named {
    std::string_view name;
    UnitKind kind;
  };
  constexpr Named kPlain[] = {
      {"f32", UnitKind::f32},   {"f16", UnitKind::f16},   {"bf16", UnitKind::bf16},
      {"q8_0", UnitKind::q8_0}, {"q5_1", UnitKind::q5_1}, {"q5_0", UnitKind::q5_0},
      {"q4_1", UnitKind::q4_1}, {"q4_0", UnitKind::q4_0}, {"c6", UnitKind::c6},
      {"c5", UnitKind::c5},     {"c4", UnitKind::c4},     {"c3", UnitKind::c3}};
  if (name == "tbq4_0") return UnitForm{UnitKind::tbq4, true};
  if (name == "tq3_0" || name == "tbq3_0") return UnitForm{UnitKind::tq3, true};
  const bool rotated = name.substr(0, 2) == "r_";
  if (rotated) name.remove_prefix(2);
  for (const Named& n : kPlain)
    if (n.name == name && (!rotated || family_of(n.kind) == UnitFamily::classic))
      return UnitForm{n.kind, rotated};
  return std::nullopt;
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
    case UnitKind::c6:
      return run.template operator()<UnitKind::c6>();
    case UnitKind::c5:
      return run.template operator()<UnitKind::c5>();
    case UnitKind::c4:
      return run.template operator()<UnitKind::c4>();
    case UnitKind::c3:
      return run.template operator()<UnitKind::c3>();
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
