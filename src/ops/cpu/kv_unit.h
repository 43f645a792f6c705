// kv_unit.h -- vector code for q8_0, q4_0 and c4 units, with the bits of ops/kv. Any thread.
#pragma once

#include <cstdint>

#include "ops/kv/kv_codec.h"

namespace braid::cpu {

enum class UnitFormat : uint8_t { none, q8_0, q4_0, c4 };

// UnitFormat::none unless head_dim is a multiple of 64.
UnitFormat unit_format(const KvCodec& codec, int32_t head_dim);
inline bool has_unit_kernels(const KvCodec& codec, int32_t head_dim) {
  return unit_format(codec, head_dim) != UnitFormat::none;
}

constexpr int64_t unit_scratch_floats(int32_t head_dim) { return int64_t{44} * head_dim; }

[[nodiscard]] bool encode_unit(const KvCodec& codec, int32_t head_dim, KvSide side,
                               const uint16_t* rows, int64_t row_stride, float* scratch,
                               uint8_t* unit);

// As KvCodec::decode, to rows `row_stride` floats apart.
void expand_unit(const KvCodec& codec, int32_t head_dim, KvSide side, const uint8_t* unit,
                 float* rows, int64_t row_stride);

}  // namespace braid::cpu
