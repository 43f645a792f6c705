// kv_codec.h -- the formats of sealed KV blocks.
//
// A unit is one side of one block of one KV head: 32 rows of head_dim values. encode() takes the
// rows as f16, as attention wrote them (K after norm and RoPE). decode() gives f32 in the stored
// domain, rotated if the format rotates. There q is rotated before and the output unrotated after:
//   q . k = rotate(q) . rotate(k)          sum p v = unrotate(sum p rotate(v))
// A constant row may be subtracted from K (the mean of some keys). Softmax is invariant to it, so
// it is not added back; it must be the same for all cells that a query sees.
//
// An infinity in a row (a value that did not fit f16) counts as the largest finite number; a NaN is
// refused. Scales are limited to the largest f16, so a decoded unit is finite.
// Scalar and allocating: the specification of the kernels, for tests and tools. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid {

enum class KvSide : uint8_t { k, v };
inline constexpr KvSide kKvSides[] = {KvSide::k, KvSide::v};

struct KvCodec {
  std::string_view name;
  bool rotated = false;       // by R of rotation.h, each 128 values by themselves
  int32_t head_dim_unit = 1;  // head_dim must be a multiple

  int64_t (*unit_bytes)(int32_t head_dim, KvSide side) = nullptr;
  // rows [32][head_dim], finite, not rotated.
  void (*encode)(const float* rows, int32_t head_dim, KvSide side, uint8_t* unit) = nullptr;
  // rows [32][head_dim], in the stored domain.
  void (*decode)(const uint8_t* unit, int32_t head_dim, KvSide side, float* rows) = nullptr;

  // The format's published form: codes and scales as rows of blocks. Null if there is none.
  int64_t (*row_bytes)(int32_t head_dim) = nullptr;
  void (*pack_rows)(const uint8_t* unit, int32_t head_dim, uint8_t* rows) = nullptr;
  void (*unpack_rows)(const uint8_t* rows, int32_t head_dim, uint8_t* unit) = nullptr;

  // Including all metadata.
  double bits_per_value(int32_t head_dim, KvSide side) const;
};

// Every format, widest first.
std::span<const KvCodec* const> kv_codecs();

std::string kv_codec_names();

// Ignores case. Error: invalid_argument, with the list of names.
Result<const KvCodec*> find_kv_codec(std::string_view name);

// Whether the format supports heads of that width. Error: unsupported.
Status kv_codec_accepts(const KvCodec& codec, int32_t head_dim);

// rows: 32 rows of f16, `row_stride` elements apart. k_mean: f16 [head_dim] or null; null for V.
// unit: unit_bytes. False: a row has a NaN, and nothing is written.
[[nodiscard]] bool kv_encode(const KvCodec& codec, int32_t head_dim, KvSide side,
                             const uint16_t* rows, int64_t row_stride, const uint16_t* k_mean,
                             uint8_t* unit);

// One row of head_dim values, out of the stored domain.
void kv_unrotate(const KvCodec& codec, float* row, int32_t head_dim);

}  // namespace braid
