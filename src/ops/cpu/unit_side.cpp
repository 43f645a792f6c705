// unit_side.cpp -- see unit_side.h.
#include "ops/cpu/unit_side.h"

#include <cstring>

#include "ops/kv/formats.h"

namespace braid::cpu {

UnitSide unit_side(const KvCodec& codec, KvSide side, int32_t head_dim) {
  UnitSide out{&codec, side, head_dim};
  if (has_unit_kernels(codec, head_dim)) {
    out.form = UnitSide::Form::codes;
  } else if (&codec == &kv::kF32 || &codec == &kv::kF16 || &codec == &kv::kBf16) {
    out.form = UnitSide::Form::rows;
    if (&codec != &kv::kF32) out.format = &codec == &kv::kF16 ? KvFormat::f16 : KvFormat::bf16;
  }
  return out;
}

void seal_unit(const UnitSide& side, const std::byte* rows, float* scratch, std::byte* unit) {
  const auto* halves = reinterpret_cast<const uint16_t*>(rows);
  auto* to = reinterpret_cast<uint8_t*>(unit);
  const bool numbers =
      side.form == UnitSide::Form::codes
          ? encode_unit(*side.codec, side.head_dim, side.side, halves, side.head_dim, scratch, to)
          : kv_encode(*side.codec, side.head_dim, side.side, halves, side.head_dim, nullptr, to);
  if (!numbers)
    std::memset(unit, 0, static_cast<size_t>(side.codec->unit_bytes(side.head_dim, side.side)));
}

void restore_rows(const UnitSide& side, const std::byte* unit, float* rows, int64_t row_stride) {
  const auto* from = reinterpret_cast<const uint8_t*>(unit);
  if (side.form == UnitSide::Form::codes)
    return expand_unit(*side.codec, side.head_dim, side.side, from, rows, row_stride);
  side.codec->decode(from, side.head_dim, side.side, rows);
  // In descending order, so that no row is overwritten before it has moved.
  for (int64_t t = kBlockTokens - 1; t >= 0; --t) {
    float* row = rows + t * row_stride;
    std::memmove(row, rows + t * side.head_dim, static_cast<size_t>(side.head_dim) * sizeof(float));
    kv_unrotate(*side.codec, row, side.head_dim);
  }
}

}  // namespace braid::cpu
