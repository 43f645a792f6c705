// codebook.cpp -- tbq4_0, tq3_0: rotated unit vectors against one fixed codebook.
//
// After R the 128 values of a group are close to independent normals of variance 1/128, so one
// codebook fits all rows. The stored norm is the row's norm divided by that of its codes, which
// keeps the row's length. The plain norm would make scores 1 % (4 bits) or 3 % (3 bits) smaller.
// Factors of a unit (row_forms.h) are norms, per 128 channels. Rows of tq3_0 have each norm four
// times.
#include <array>
#include <cmath>

#include "ops/kv/format_numbers.h"
#include "ops/kv/formats.h"
#include "ops/kv/rotation.h"
#include "ops/kv/row_forms.h"

namespace braid::kv {

namespace {

template <int bits>
constexpr Codebook<bits> kCodebook;

template <int bits>
float level_of(uint8_t code) {
  constexpr int kHalf = 1 << (bits - 1);
  const auto& levels = kCodebook<bits>.levels;
  return code >= kHalf ? levels[code - kHalf] : -levels[kHalf - 1 - code];
}

template <int bits>
uint8_t nearest_code(float y) {
  const auto& limits = kCodebook<bits>.limits;
  int code = y >= 0.0f ? 1 : 0;
  for (const float limit : limits) code += (y >= limit ? 1 : 0) + (y >= -limit ? 1 : 0);
  return static_cast<uint8_t>(code);
}

// The codes of a group; returns the norm to store.
template <int bits>
float encode_group(const float* x, uint8_t* codes) {
  const float norm = std::sqrt(ordered_sum(kRotationGroup, [&](int32_t i) { return x[i] * x[i]; }));
  const float inverse = norm > kTinyNorm ? 1.0f / norm : 0.0f;
  std::array<float, kRotationGroup> y;
  for (size_t i = 0; i < y.size(); ++i) y[i] = x[i] * inverse;
  rotate_group(y.data());
  for (size_t i = 0; i < y.size(); ++i) codes[i] = nearest_code<bits>(y[i]);
  const float length = std::sqrt(ordered_sum(kRotationGroup, [&](int32_t i) {
    const float level = level_of<bits>(codes[i]);
    return level * level;
  }));
  return length > kTinyNorm ? norm / length : norm;
}

struct CodebookForm {
  static constexpr int32_t kGroup = kRotationGroup;
  static constexpr int kFactors = 1;
  static uint16_t factor(const uint8_t* b, int) { return load_u16(b); }
  static void put_factor(uint8_t* b, int, uint16_t norm) { store_u16(b, norm); }
};

struct FormTbq4 : CodebookForm {
  static constexpr int kBits = 4;
  static constexpr int64_t kBytes = 66;
  static uint8_t code(const uint8_t* b, int i) { return b[2 + i / 2] >> i % 2 * 4 & 15; }
  static void put_code(uint8_t* b, int i, uint8_t code) {
    b[2 + i / 2] = static_cast<uint8_t>(b[2 + i / 2] | code << i % 2 * 4);
  }
};

// Four blocks of 14 bytes: norm, two bits of 32 codes, their third bit.
struct FormTq3 : CodebookForm {
  static constexpr int kBits = 3;
  static constexpr int64_t kBytes = 56;
  static uint8_t code(const uint8_t* b, int i) {
    const uint8_t* block = b + i / 32 * 14;
    const int j = i % 32;
    return static_cast<uint8_t>((block[2 + j / 4] >> j % 4 * 2 & 3) |
                                (block[10 + j / 8] >> j % 8 & 1) << 2);
  }
  static void put_factor(uint8_t* b, int, uint16_t norm) {
    for (int block = 0; block < 4; ++block) store_u16(b + block * 14, norm);
  }
  static void put_code(uint8_t* b, int i, uint8_t code) {
    uint8_t* block = b + i / 32 * 14;
    const int j = i % 32;
    block[2 + j / 4] = static_cast<uint8_t>(block[2 + j / 4] | (code & 3) << j % 4 * 2);
    block[10 + j / 8] = static_cast<uint8_t>(block[10 + j / 8] | (code >> 2) << j % 8);
  }
};

template <typename Form>
void codebook_encode(const float* rows, int32_t head_dim, KvSide, uint8_t* unit) {
  for (int32_t group = 0; group < head_dim / kRotationGroup; ++group) {
    uint8_t codes[kBlockTokens][kRotationGroup];
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const float* x = rows + int64_t{t} * head_dim + group * kRotationGroup;
      store_half(factor_at<Form>(unit, head_dim, 0, group, t),
                 encode_group<Form::kBits>(x, codes[t]));
    }
    for (int32_t i = 0; i < kRotationGroup; ++i) {
      uint8_t channel[kBlockTokens];
      for (int32_t t = 0; t < kBlockTokens; ++t) channel[t] = codes[t][i];
      put_codes<Form::kBits>(unit, head_dim, group * kRotationGroup + i, channel);
    }
  }
}

template <typename Form>
void codebook_decode(const uint8_t* unit, int32_t head_dim, KvSide, float* rows) {
  for (int32_t channel = 0; channel < head_dim; ++channel) {
    uint8_t codes[kBlockTokens];
    get_codes<Form::kBits>(unit, head_dim, channel, codes);
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const float norm = load_half(factor_at<Form>(unit, head_dim, 0, channel / kRotationGroup, t));
      rows[int64_t{t} * head_dim + channel] = level_of<Form::kBits>(codes[t]) * norm;
    }
  }
}

template <typename Form>
constexpr KvCodec codebook_codec(std::string_view name) {
  KvCodec c = codec_of_form<Form>(name);
  c.rotated = true;
  c.encode = codebook_encode<Form>;
  c.decode = codebook_decode<Form>;
  return c;
}

}  // namespace

const KvCodec kTbq4_0 = codebook_codec<FormTbq4>("tbq4_0");
const KvCodec kTq3_0 = codebook_codec<FormTq3>("tq3_0");

}  // namespace braid::kv
