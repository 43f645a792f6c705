// kv_codec.h -- the formats that sealed KV blocks can have.
//
// A unit is one side of one block of one KV head: 32 rows of head_dim values. encode() takes the rows as f16,
// as attention wrote them (K after norm and RoPE), decode() gives them as f32 in the stored domain: rotated
// where the format rotates. There q is multiplied after the same rotation of its own, and the output is
// rotated back once:
//   q . k = rotate(q) . rotate(k)          sum p v = unrotate(sum p rotate(v))
//
// K may have a constant row subtracted (the mean of the keys of some text). Softmax does not change when all
// keys move by the same vector, so nobody adds it back; it must be the same for everything that a query sees.
//
// What rows may hold: an infinity (a value that did not fit f16) counts as the largest finite number. A NaN
// is refused. Scales that do not fit f16 are stored as its largest number, so a decoded unit is finite.
//
// Scalar and allocating: for tests, tools and as the specification of what kernels do. Any thread.
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

enum class KvRotation : uint8_t {
  none,
  signed_groups,  // R of rotation.h: each 128 values
  head,           // H: all values of the head, no signs
};

struct KvCodec {
  std::string_view name;
  KvRotation rotation = KvRotation::none;
  bool by_block = false;      // scales span the cells of a block: a row has no meaning without its unit
  int32_t head_dim_unit = 1;  // head_dim must be a multiple; of `head` rotations also a power of two

  int64_t (*unit_bytes)(int32_t head_dim, KvSide side) = nullptr;
  // rows [32][head_dim], finite, not rotated.
  void (*encode)(const float* rows, int32_t head_dim, KvSide side, uint8_t* unit) = nullptr;
  // rows [32][head_dim], in the stored domain.
  void (*decode)(const uint8_t* unit, int32_t head_dim, KvSide side, float* rows) = nullptr;

  // The same codes and scales as rows of blocks, the form in which the format is published: for known answers
  // and for exchange. None where a format has no such form.
  int64_t (*row_bytes)(int32_t head_dim) = nullptr;
  void (*pack_rows)(const uint8_t* unit, int32_t head_dim, uint8_t* rows) = nullptr;    // unit to rows
  void (*unpack_rows)(const uint8_t* rows, int32_t head_dim, uint8_t* unit) = nullptr;  // rows to unit

  // With all metadata.
  double bits_per_value(int32_t head_dim, KvSide side) const;
};

// Every format, widest first.
std::span<const KvCodec* const> kv_codecs();

// Their names, for people.
std::string kv_codec_names();

// By name, whatever the case of its letters. Error: invalid_argument, with the names that there are.
Result<const KvCodec*> find_kv_codec(std::string_view name);

// Whether heads of that width can be stored so. Error: unsupported.
Status kv_codec_accepts(const KvCodec& codec, int32_t head_dim);

// rows: 32 rows of f16, `row_stride` elements apart. k_mean: f16 [head_dim], or null; of V always null. unit:
// unit_bytes. False: a row holds a NaN, and nothing is written.
[[nodiscard]] bool kv_encode(const KvCodec& codec, int32_t head_dim, KvSide side, const uint16_t* rows,
                             int64_t row_stride, const uint16_t* k_mean, uint8_t* unit);

// Turns one row of head_dim values into the stored domain, or back.
void kv_rotate(KvRotation rotation, float* row, int32_t head_dim);
void kv_unrotate(KvRotation rotation, float* row, int32_t head_dim);

}  // namespace braid
