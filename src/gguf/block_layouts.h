// block_layouts.h -- decodes, encodes and checks tensor rows of every block format. Thread-safe.
//
// This specifies the formats, bit for bit as in published files: each product and sum is rounded to
// binary32 in the order written, without fusing. The fast kernels in ops/ are tested against it. n
// is a multiple of the type's block_elems; src and dst need the alignment of their element type.
#pragma once

#include <cstdint>
#include <optional>

#include "gguf/types.h"

namespace braid {

// Levels of iq4_nl and iq4_xs, by code.
inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// E2M1 doubled, to get integers; code 8, minus zero, reads as 0.
inline constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Scale and minimum (6 bits each) of group 0..7 in the 12 packed bytes of a q4_K or q5_K block.
struct ScaleMin {
  uint8_t scale;
  uint8_t min;
};
inline ScaleMin unpack_scale_min(const uint8_t* packed, int group) {
  const uint8_t* s = packed;
  if (group < 4)
    return {static_cast<uint8_t>(s[group] & 63), static_cast<uint8_t>(s[group + 4] & 63)};
  return {static_cast<uint8_t>((s[group + 4] & 15) | s[group - 4] >> 6 << 4),
          static_cast<uint8_t>(s[group + 4] >> 4 | s[group] >> 6 << 4)};
}

void decode_row(GgmlType type, const void* src, float* dst, int64_t n);

// F32 F16 BF16, Q8_0 Q4_0 Q4_1 Q5_0 Q5_1, Q4_K Q5_K Q6_K, IQ4_NL IQ4_XS, MXFP4 NVFP4, Q1_0 Q2_0
// TQ1_0 TQ2_0, Q8_1 Q8_K.
bool can_encode(GgmlType type);

// Equal to the reference encoder without importance weights. REQUIRES: can_encode(type); src is
// finite (all_finite). Scales beyond f16 become infinite; check the result with find_invalid_block.
void encode_row(GgmlType type, const float* src, void* dst, int64_t n);

// nvfp4 with a scale per tensor (per expert in a stack): block scales alone underflow for real
// weights. value = decoded value * tensor_scale. The best one is max|W| / 2688; it must not be 0.
float nvfp4_tensor_scale(float max_abs);
void encode_nvfp4_scaled(const float* src, void* dst, int64_t n, float tensor_scale);

bool all_finite(const float* src, int64_t n);

// The first block with an infinite or NaN scale or element; empty if all are finite.
std::optional<int64_t> find_invalid_block(GgmlType type, const void* src, int64_t n);

}  // namespace braid
