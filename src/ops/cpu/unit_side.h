// unit_side.h -- one side of a layer's sealed blocks, in the fastest available form.
// Formats without kernels (kv_unit.h), except plain rows, use ops/kv: scalar and allocating.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kv_unit.h"
#include "ops/state.h"

namespace braid::cpu {

struct UnitSide {
  enum class Form : uint8_t {
    codes,  // score_unit(), add_unit()
    rows,   // [32][head_dim] of `format`
    other,  // expanded to f32
  };
  const KvCodec* codec = nullptr;
  KvSide side = KvSide::k;
  int32_t head_dim = 0;
  Form form = Form::other;
  KvFormat format = KvFormat::f32;  // of the rows that units are or become
};
UnitSide unit_side(const KvCodec& codec, KvSide side, int32_t head_dim);
inline bool is_expanded(const KvCodec& codec, int32_t head_dim) {
  return unit_side(codec, KvSide::k, head_dim).form == UnitSide::Form::other;
}

// rows [32][head_dim] of f16; a NaN gives a unit of zeros. scratch: unit_scratch_floats().
void seal_unit(const UnitSide& side, const std::byte* rows, float* scratch, std::byte* unit);

// Decodes and unrotates a unit to rows `row_stride` floats apart.
void restore_rows(const UnitSide& side, const std::byte* unit, float* rows, int64_t row_stride);

}  // namespace braid::cpu
