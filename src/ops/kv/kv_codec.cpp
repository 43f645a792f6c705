// kv_codec.cpp -- the table of formats, and the code common to all of them.
#include "ops/kv/kv_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "gguf/half.h"
#include "ops/batch.h"
#include "ops/kv/formats.h"
#include "ops/kv/rotation.h"

namespace braid {

namespace {

constexpr std::array kTable = {
    &kv::kF32,  &kv::kF16,  &kv::kBf16, &kv::kQ8_0, &kv::kQ5_1,   &kv::kC5,
    &kv::kQ5_0, &kv::kQ4_1, &kv::kC4,   &kv::kQ4_0, &kv::kTbq4_0, &kv::kTq3_0,
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_infinite(uint16_t bits) { return (bits & 0x7fff) == 0x7c00; }
bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

}  // namespace

double KvCodec::bits_per_value(int32_t head_dim, KvSide side) const {
  return 8.0 * static_cast<double>(unit_bytes(head_dim, side)) /
         (static_cast<double>(kBlockTokens) * head_dim);
}

std::span<const KvCodec* const> kv_codecs() { return kTable; }

std::string kv_codec_names() {
  std::string names;
  for (const KvCodec* codec : kTable)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", codec->name);
  return names;
}

Result<const KvCodec*> find_kv_codec(std::string_view name) {
  for (const KvCodec* codec : kTable)
    if (std::equal(name.begin(), name.end(), codec->name.begin(), codec->name.end(),
                   [](char a, char b) { return lower(a) == b; }))
      return codec;
  return Error{ErrorKind::invalid_argument,
               fmt::format("'{}' is no KV cache type; there are {}", name, kv_codec_names())};
}

Status kv_codec_accepts(const KvCodec& codec, int32_t head_dim) {
  if (head_dim <= 0 || head_dim % codec.head_dim_unit != 0) {
    return Error{ErrorKind::unsupported,
                 fmt::format("KV cache type {} needs heads whose width is a multiple of {}, not {}",
                             codec.name, codec.head_dim_unit, head_dim)};
  }
  return {};
}

bool kv_encode(const KvCodec& codec, int32_t head_dim, KvSide side, const uint16_t* rows,
               int64_t row_stride, const uint16_t* k_mean, uint8_t* unit) {
  BRAID_CHECK(kv_codec_accepts(codec, head_dim).ok() && row_stride >= head_dim);
  BRAID_CHECK(k_mean == nullptr || side == KvSide::k);
  std::vector<float> wide(static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim));
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    for (int32_t d = 0; d < head_dim; ++d) {
      const uint16_t bits = rows[t * row_stride + d];
      if (is_nan(bits)) return false;
      float& x =
          wide[static_cast<size_t>(t) * static_cast<size_t>(head_dim) + static_cast<size_t>(d)];
      x = f16_to_f32(is_infinite(bits) ? static_cast<uint16_t>(bits - 1) : bits);
      if (k_mean != nullptr) x -= f16_to_f32(k_mean[d]);
    }
  }
  codec.encode(wide.data(), head_dim, side, unit);
  return true;
}

void kv_unrotate(const KvCodec& codec, float* row, int32_t head_dim) {
  if (!codec.rotated) return;
  for (int32_t at = 0; at < head_dim; at += kv::kRotationGroup) kv::unrotate_group(row + at);
}

}  // namespace braid
