// decode.cpp -- block bytes to floats. One function per type; offsets show the layout.
#include <bit>
#include <cstring>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/half.h"
#include "gguf/iq_grids.h"

namespace braid {

namespace {

template <typename T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float half_at(const uint8_t* at) { return f16_to_f32(load<uint16_t>(at)); }

void decode_q4_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>((b[2 + j] & 15) - 8) * d;
    y[j + 16] = static_cast<float>((b[2 + j] >> 4) - 8) * d;
  }
}

void decode_q4_1(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const float m = half_at(b + 2);
  for (int j = 0; j < 16; ++j) {
    y[j] = static_cast<float>(b[4 + j] & 15) * d + m;
    y[j + 16] = static_cast<float>(b[4 + j] >> 4) * d + m;
  }
}

int code5(const uint8_t* qs, uint32_t qh, int i) {
  const int nibble = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return nibble | static_cast<int>(qh >> i & 1) << 4;
}

void decode_q5_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const auto qh = load<uint32_t>(b + 2);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(code5(b + 6, qh, i) - 16) * d;
}

void decode_q5_1(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const float m = half_at(b + 2);
  const auto qh = load<uint32_t>(b + 4);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(code5(b + 8, qh, i)) * d + m;
}

void decode_q8_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void decode_q8_1(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(b[4 + i])) * d;
}

void decode_iq4_nl(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * kIq4Levels[b[2 + j] & 15];
    y[j + 16] = d * kIq4Levels[b[2 + j] >> 4];
  }
}

void decode_mxfp4(const uint8_t* b, float* y) {
  const float d = e8m0_half_to_f32(b[0]);
  for (int j = 0; j < 16; ++j) {
    y[j] = kFp4Doubled[b[1 + j] & 15] * d;
    y[j + 16] = kFp4Doubled[b[1 + j] >> 4] * d;
  }
}

void decode_nvfp4(const uint8_t* b, float* y) {
  for (int s = 0; s < 4; ++s) {
    const float d = 0.5f * ue4m3_to_f32(b[s]);
    const uint8_t* qs = b + 4 + 8 * s;
    for (int j = 0; j < 8; ++j) {
      y[16 * s + j] = kFp4Doubled[qs[j] & 15] * d;
      y[16 * s + j + 8] = kFp4Doubled[qs[j] >> 4] * d;
    }
  }
}

void decode_q1_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 128; ++i) y[i] = (b[2 + i / 8] >> (i % 8) & 1) != 0 ? d : -d;
}

void decode_q2_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 64; ++i) y[i] = static_cast<float>((b[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * d;
}

void decode_q2_K(const uint8_t* b, float* y) {
  const float d = half_at(b + 80);
  const float dmin = half_at(b + 82);
  for (int i = 0; i < 256; ++i) {
    const uint8_t scale_min = b[i / 16];
    const int q = b[16 + 32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
    const float scale = d * static_cast<float>(scale_min & 15);
    const float min = dmin * static_cast<float>(scale_min >> 4);
    y[i] = scale * static_cast<float>(q) - min;
  }
}

void decode_q3_K(const uint8_t* b, float* y) {
  const uint8_t* scales = b + 96;
  const float d = half_at(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = scales[8 + g % 4] >> 2 * (g / 4) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      const int q = b[32 + 32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
      const bool high_bit = (b[i % 32] >> (i / 32) & 1) != 0;
      y[i] = scale * static_cast<float>(q - (high_bit ? 0 : 4));
    }
  }
}

void decode_q4_K(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const float dmin = half_at(b + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin packed = unpack_scale_min(b + 4, g);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = dmin * static_cast<float>(packed.min);
    const uint8_t* qs = b + 16 + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    for (int l = 0; l < 32; ++l)
      y[32 * g + l] = scale * static_cast<float>(qs[l] >> shift & 15) - min;
  }
}

void decode_q5_K(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const float dmin = half_at(b + 2);
  const uint8_t* qh = b + 16;
  for (int g = 0; g < 8; ++g) {
    const ScaleMin packed = unpack_scale_min(b + 4, g);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = dmin * static_cast<float>(packed.min);
    const uint8_t* qs = b + 48 + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    for (int l = 0; l < 32; ++l) {
      const int q = (qs[l] >> shift & 15) | (qh[l] >> g & 1) << 4;
      y[32 * g + l] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode_q6_K(const uint8_t* b, float* y) {
  const uint8_t* qh = b + 128;
  const float d = half_at(b + 208);
  for (int i = 0; i < 256; ++i) {
    const int n = i / 128;
    const int j = i % 128 / 32;
    const int l = i % 32;
    const uint8_t pair = b[64 * n + 32 * (j & 1) + l];
    const int low = j >= 2 ? pair >> 4 : pair & 15;
    const int high = qh[32 * n + l] >> 2 * j & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    y[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void decode_q8_K(const uint8_t* b, float* y) {
  const float d = load<float>(b);
  for (int i = 0; i < 256; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(b[4 + i]));
}

void decode_iq4_xs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const auto scales_high = load<uint16_t>(b + 2);
  for (int g = 0; g < 8; ++g) {
    const int scale = (b[4 + g / 2] >> 4 * (g % 2) & 15) | (scales_high >> 2 * g & 3) << 4;
    const float dl = d * static_cast<float>(scale - 32);
    const uint8_t* qs = b + 8 + 16 * g;
    for (int j = 0; j < 16; ++j) {
      y[32 * g + j] = dl * kIq4Levels[qs[j] & 15];
      y[32 * g + j + 16] = dl * kIq4Levels[qs[j] >> 4];
    }
  }
}

// Digit n (0 first) of the base-3 fraction in a byte, as -1, 0, 1.
float trit(uint8_t byte, int n) {
  constexpr uint8_t kPower[] = {1, 3, 9, 27, 81};
  const auto shifted = static_cast<uint8_t>(byte * kPower[n]);
  return static_cast<float>((shifted * 3 >> 8) - 1);
}

void decode_tq1_0(const uint8_t* b, float* y) {
  const float d = half_at(b + 52);
  for (int i = 0; i < 160; ++i) y[i] = trit(b[i % 32], i / 32) * d;
  for (int i = 0; i < 80; ++i) y[160 + i] = trit(b[32 + i % 16], i / 16) * d;
  for (int i = 0; i < 16; ++i) y[240 + i] = trit(b[48 + i % 4], i / 4) * d;
}

void decode_tq2_0(const uint8_t* b, float* y) {
  const float d = half_at(b + 64);
  for (int i = 0; i < 256; ++i)
    y[i] = static_cast<float>((b[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3) - 1) * d;
}

// Seven stored signs; the eighth makes the number of minus signs even.
uint8_t eight_signs(uint32_t seven) {
  return static_cast<uint8_t>(seven | (std::popcount(seven) & 1) << 7);
}

template <int Dims>
void signed_vector(float* y, const uint8_t* v, float scale, int signs) {
  for (int j = 0; j < Dims; ++j) y[j] = scale * v[j] * ((signs >> j & 1) != 0 ? -1.0f : 1.0f);
}

void decode_iq2_xxs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* index = b + 2 + 8 * g;
    const auto rest = load<uint32_t>(index + 4);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
    for (int l = 0; l < 4; ++l) {
      signed_vector<8>(y + 32 * g + 8 * l, iq_grids().g2xxs[index[l]].data(), scale,
                       eight_signs(rest >> 7 * l & 127));
    }
  }
}

void decode_iq2_xs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int v = 0; v < 32; ++v) {
    const auto code = load<uint16_t>(b + 2 + 2 * v);
    const int nibble = b[66 + v / 4] >> 4 * (v % 4 / 2) & 15;
    const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
    signed_vector<8>(y + 8 * v, iq_grids().g2xs[code & 511].data(), scale, eight_signs(code >> 9));
  }
}

void decode_iq2_s(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int v = 0; v < 32; ++v) {
    const int g = v / 4;
    const int l = v % 4;
    const int index = b[2 + v] | (b[66 + g] >> 2 * l & 3) << 8;
    const float scale = d * (0.5f + static_cast<float>(b[74 + g] >> 4 * (l / 2) & 15)) * 0.25f;
    signed_vector<8>(y + 8 * v, iq_grids().g2s[index].data(), scale, b[34 + v]);
  }
}

void decode_iq3_xxs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int v = 0; v < 32; ++v) {
    const auto rest = load<uint32_t>(b + 66 + 4 * (v / 4));
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    const uint8_t signs = eight_signs(rest >> 7 * (v % 4) & 127);
    signed_vector<4>(y + 8 * v, iq_grids().g3xxs[b[2 + 2 * v]].data(), scale, signs & 15);
    signed_vector<4>(y + 8 * v + 4, iq_grids().g3xxs[b[3 + 2 * v]].data(), scale, signs >> 4);
  }
}

void decode_iq3_s(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int v = 0; v < 32; ++v) {
    const int g = v / 4;
    const int l = v % 4;
    const uint8_t qh = b[66 + g];
    const float scale = d * static_cast<float>(1 + 2 * (b[106 + g / 2] >> 4 * (g % 2) & 15));
    const int first = b[2 + 2 * v] | (qh >> 2 * l & 1) << 8;
    const int second = b[3 + 2 * v] | (qh >> (2 * l + 1) & 1) << 8;
    signed_vector<4>(y + 8 * v, iq_grids().g3s[first].data(), scale, b[74 + v] & 15);
    signed_vector<4>(y + 8 * v + 4, iq_grids().g3s[second].data(), scale, b[74 + v] >> 4);
  }
}

void shifted_vector(float* y, const std::array<int8_t, 8>& v, float scale, float delta) {
  for (int j = 0; j < 8; ++j) y[j] = scale * (v[j] + delta);
}

void decode_iq1_s(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int g = 0; g < 8; ++g) {
    const auto h = load<uint16_t>(b + 34 + 2 * g);
    const float scale = d * static_cast<float>(2 * (h >> 12 & 7) + 1);
    const float delta = (h & 0x8000) != 0 ? -0.125f : 0.125f;
    for (int l = 0; l < 4; ++l) {
      const int index = b[2 + 4 * g + l] | (h >> 3 * l & 7) << 8;
      shifted_vector(y + 32 * g + 8 * l, iq_grids().g1[index], scale, delta);
    }
  }
}

// The f16 scale of an iq1_m block is spread over the top nibbles of its four scale words.
uint16_t iq1_m_scale_bits(const uint8_t* b) {
  uint32_t bits = 0;
  for (int k = 0; k < 4; ++k)
    bits |= static_cast<uint32_t>(load<uint16_t>(b + 48 + 2 * k) >> 12) << 4 * k;
  return static_cast<uint16_t>(bits);
}

void decode_iq1_m(const uint8_t* b, float* y) {
  const float d = f16_to_f32(iq1_m_scale_bits(b));
  for (int k = 0; k < 32; ++k) {
    const int nibble = b[32 + k / 2] >> 4 * (k % 2) & 15;
    const int t = k / 2;
    const int scale3 = load<uint16_t>(b + 48 + 2 * (t / 4)) >> 3 * (t % 4) & 7;
    const float scale = d * static_cast<float>(2 * scale3 + 1);
    shifted_vector(y + 8 * k, iq_grids().g1[b[k] | (nibble & 7) << 8], scale,
                   (nibble & 8) != 0 ? -0.125f : 0.125f);
  }
}

template <typename T>
void decode_plain(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    dst[i] = static_cast<float>(load<T>(src + i * static_cast<int64_t>(sizeof(T))));
}

using DecodeBlock = void (*)(const uint8_t*, float*);

DecodeBlock block_decoder(GgmlType type) {
  switch (type) {
    case GgmlType::Q4_0:
      return decode_q4_0;
    case GgmlType::Q4_1:
      return decode_q4_1;
    case GgmlType::Q5_0:
      return decode_q5_0;
    case GgmlType::Q5_1:
      return decode_q5_1;
    case GgmlType::Q8_0:
      return decode_q8_0;
    case GgmlType::Q8_1:
      return decode_q8_1;
    case GgmlType::Q2_K:
      return decode_q2_K;
    case GgmlType::Q3_K:
      return decode_q3_K;
    case GgmlType::Q4_K:
      return decode_q4_K;
    case GgmlType::Q5_K:
      return decode_q5_K;
    case GgmlType::Q6_K:
      return decode_q6_K;
    case GgmlType::Q8_K:
      return decode_q8_K;
    case GgmlType::IQ2_XXS:
      return decode_iq2_xxs;
    case GgmlType::IQ2_XS:
      return decode_iq2_xs;
    case GgmlType::IQ2_S:
      return decode_iq2_s;
    case GgmlType::IQ3_XXS:
      return decode_iq3_xxs;
    case GgmlType::IQ3_S:
      return decode_iq3_s;
    case GgmlType::IQ1_S:
      return decode_iq1_s;
    case GgmlType::IQ1_M:
      return decode_iq1_m;
    case GgmlType::IQ4_NL:
      return decode_iq4_nl;
    case GgmlType::IQ4_XS:
      return decode_iq4_xs;
    case GgmlType::TQ1_0:
      return decode_tq1_0;
    case GgmlType::TQ2_0:
      return decode_tq2_0;
    case GgmlType::MXFP4:
      return decode_mxfp4;
    case GgmlType::NVFP4:
      return decode_nvfp4;
    case GgmlType::Q1_0:
      return decode_q1_0;
    case GgmlType::Q2_0:
      return decode_q2_0;
    default:
      return nullptr;
  }
}

bool half_is_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }
bool halves_are_finite(const uint8_t* b, int first, int second = -1) {
  return half_is_finite(load<uint16_t>(b + first)) &&
         (second < 0 || half_is_finite(load<uint16_t>(b + second)));
}
bool float_is_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7f800000) != 0x7f800000; }

bool block_is_valid(GgmlType type, const uint8_t* b) {
  switch (type) {
    case GgmlType::F32:
      return float_is_finite(load<float>(b));
    case GgmlType::F64:
      return (load<uint64_t>(b) >> 52 & 0x7ff) != 0x7ff;
    case GgmlType::F16:
      return half_is_finite(load<uint16_t>(b));
    case GgmlType::BF16:
      return (load<uint16_t>(b) & 0x7f80) != 0x7f80;
    case GgmlType::Q4_0:
    case GgmlType::Q5_0:
    case GgmlType::Q8_0:
    case GgmlType::IQ2_XXS:
    case GgmlType::IQ2_XS:
    case GgmlType::IQ2_S:
    case GgmlType::IQ3_XXS:
    case GgmlType::IQ3_S:
    case GgmlType::IQ1_S:
    case GgmlType::IQ4_NL:
    case GgmlType::IQ4_XS:
    case GgmlType::Q1_0:
    case GgmlType::Q2_0:
      return halves_are_finite(b, 0);
    case GgmlType::Q4_1:
    case GgmlType::Q5_1:
    case GgmlType::Q8_1:
    case GgmlType::Q4_K:
    case GgmlType::Q5_K:
      return halves_are_finite(b, 0, 2);
    case GgmlType::Q2_K:
      return halves_are_finite(b, 80, 82);
    case GgmlType::Q3_K:
      return halves_are_finite(b, 108);
    case GgmlType::Q6_K:
      return halves_are_finite(b, 208);
    case GgmlType::Q8_K:
      return float_is_finite(load<float>(b));
    case GgmlType::IQ1_M:
      return half_is_finite(iq1_m_scale_bits(b));
    case GgmlType::TQ1_0:
      return halves_are_finite(b, 52);
    case GgmlType::TQ2_0:
      return halves_are_finite(b, 64);
    case GgmlType::MXFP4:
      return b[0] != 0xff;
    case GgmlType::NVFP4:
    case GgmlType::I8:
    case GgmlType::I16:
    case GgmlType::I32:
    case GgmlType::I64:
      return true;
  }
  return false;
}

}  // namespace

void decode_row(GgmlType type, const void* src, float* dst, int64_t n) {
  const auto* bytes = static_cast<const uint8_t*>(src);
  const GgmlTypeInfo& info = type_info(type);
  BRAID_CHECK(n >= 0 && n % info.block_elems == 0);
  switch (type) {
    case GgmlType::F32:
      if (n > 0) std::memcpy(dst, bytes, static_cast<size_t>(n) * 4);
      return;
    case GgmlType::F16:
      for (int64_t i = 0; i < n; ++i) dst[i] = half_at(bytes + 2 * i);
      return;
    case GgmlType::BF16:
      for (int64_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load<uint16_t>(bytes + 2 * i));
      return;
    case GgmlType::I8:
      return decode_plain<int8_t>(bytes, dst, n);
    case GgmlType::I16:
      return decode_plain<int16_t>(bytes, dst, n);
    case GgmlType::I32:
      return decode_plain<int32_t>(bytes, dst, n);
    case GgmlType::I64:
      return decode_plain<int64_t>(bytes, dst, n);
    case GgmlType::F64:
      return decode_plain<double>(bytes, dst, n);
    default:
      break;
  }
  const DecodeBlock decode = block_decoder(type);
  BRAID_CHECK(decode != nullptr);
  for (int64_t i = 0; i < n / info.block_elems; ++i) {
    decode(bytes + i * info.block_bytes, dst + i * info.block_elems);
  }
}

bool all_finite(const float* src, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= float_is_finite(src[i]) ? 0u : 1u;
  return bad == 0;
}

std::optional<int64_t> find_invalid_block(GgmlType type, const void* src, int64_t n) {
  const auto* bytes = static_cast<const uint8_t*>(src);
  const GgmlTypeInfo& info = type_info(type);
  BRAID_CHECK(n >= 0 && n % info.block_elems == 0);
  for (int64_t i = 0; i < n / info.block_elems; ++i) {
    if (!block_is_valid(type, bytes + i * info.block_bytes)) return i;
  }
  return std::nullopt;
}

}  // namespace braid
