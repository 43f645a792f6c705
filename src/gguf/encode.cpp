// encode.cpp -- floats to block bytes, for types whose codes follow from the extremes of a block.
// As in the reference, codes use the scale before it is rounded to f16. x is one block.
#include "gguf/encode.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/half.h"

namespace braid {

namespace {

void store_half(uint8_t* at, float value) { store(at, f32_to_f16(value)); }

float max_abs(const float* x, int n) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// The element of largest magnitude with its sign; the first one of equals.
float signed_extreme(const float* x, int n) {
  float extreme = 0.0f;
  float most = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > most) {
      most = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  return extreme;
}

float inverse_or_zero(float d) { return d != 0.0f ? 1.0f / d : 0.0f; }

// Returns the scale before rounding.
float encode_q8(const float* x, uint8_t* codes, int& sum) {
  const float d = max_abs(x, 32) / 127.0f;
  const float inverse = inverse_or_zero(d);
  sum = 0;
  for (int i = 0; i < 32; ++i) {
    const auto code = static_cast<int8_t>(to_int(std::round(x[i] * inverse)));
    codes[i] = static_cast<uint8_t>(code);
    sum += code;
  }
  return d;
}

void encode_q8_0(const float* x, uint8_t* b) {
  int sum = 0;
  store_half(b, encode_q8(x, b + 2, sum));
}

void encode_q8_1(const float* x, uint8_t* b) {
  int sum = 0;
  const float d = encode_q8(x, b + 4, sum);
  store_half(b, d);
  store_half(b + 2, d * static_cast<float>(sum));
}

void encode_q4_0(const float* x, uint8_t* b) {
  const float d = signed_extreme(x, 32) / -8.0f;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  const auto code = [&](float v) {
    return std::min(15, static_cast<int>(static_cast<int8_t>(to_int(v * inverse + 8.5f))));
  };
  for (int j = 0; j < 16; ++j) b[2 + j] = static_cast<uint8_t>(code(x[j]) | code(x[j + 16]) << 4);
}

void encode_q4_1(const float* x, uint8_t* b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float d = (*high - *low) / 15.0f;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  store_half(b + 2, *low);
  const auto code = [&, low = *low](float v) {
    return std::min(15, static_cast<int>(static_cast<int8_t>(to_int((v - low) * inverse + 0.5f))));
  };
  for (int j = 0; j < 16; ++j) b[4 + j] = static_cast<uint8_t>(code(x[j]) | code(x[j + 16]) << 4);
}

template <typename Code>
void pack_five_bits(uint8_t* qh, uint8_t* qs, Code code) {
  uint32_t high = 0;
  for (int j = 0; j < 16; ++j) {
    const auto first = static_cast<uint32_t>(code(j));
    const auto second = static_cast<uint32_t>(code(j + 16));
    qs[j] = static_cast<uint8_t>((first & 15) | (second & 15) << 4);
    high |= (first >> 4 & 1) << j | (second >> 4 & 1) << (j + 16);
  }
  store(qh, high);
}

void encode_q5_0(const float* x, uint8_t* b) {
  const float d = signed_extreme(x, 32) / -16.0f;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  pack_five_bits(b + 2, b + 6, [&](int i) {
    return std::min(31, static_cast<int>(static_cast<int8_t>(to_int(x[i] * inverse + 16.5f))));
  });
}

void encode_q5_1(const float* x, uint8_t* b) {
  const auto [low_at, high_at] = std::minmax_element(x, x + 32);
  const float low = *low_at;
  const float d = (*high_at - low) / 31.0f;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  store_half(b + 2, low);
  pack_five_bits(b + 4, b + 8, [&](int i) { return to_int((x[i] - low) * inverse + 0.5f); });
}

// On a tie, the upper level.
int nearest_iq4(float v) {
  if (!(v > kIq4Levels[0])) return 0;
  if (v >= kIq4Levels[15]) return 15;
  int above = 1;
  while (v >= kIq4Levels[above]) ++above;
  return v - kIq4Levels[above - 1] < kIq4Levels[above] - v ? above - 1 : above;
}

// Least-squares scale of 32 elements, each weighted by its square; 0 if they are (nearly) all zero.
float search_iq4_scale(const float* x) {
  const float extreme = signed_extreme(x, 32);
  if (std::fabs(extreme) < 1e-15f) return 0.0f;
  float along = 0.0f;
  float square = 0.0f;
  const auto fit = [&](float inverse) {
    along = 0.0f;
    square = 0.0f;
    for (int i = 0; i < 32; ++i) {
      const float level = kIq4Levels[nearest_iq4(x[i] * inverse)];
      const float weight = x[i] * x[i];
      along += weight * level * x[i];
      square += weight * level * level;
    }
  };
  fit(1.0f / (-extreme / kIq4Levels[0]));
  float scale = square != 0.0f ? along / square : 0.0f;
  float best = scale * along;
  for (int t = -7; t <= 7; ++t) {
    fit(static_cast<float>(t + kIq4Levels[0]) / extreme);
    if (square > 0.0f && along * along > best * square) {
      scale = along / square;
      best = scale * along;
    }
  }
  return scale;
}

void pack_iq4(const float* x, float inverse, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) {
    qs[j] =
        static_cast<uint8_t>(nearest_iq4(x[j] * inverse) | nearest_iq4(x[j + 16] * inverse) << 4);
  }
}

void encode_iq4_nl(const float* x, uint8_t* b) {
  const float d = search_iq4_scale(x);
  store_half(b, d);
  pack_iq4(x, inverse_or_zero(d), b + 2);
}

void encode_iq4_xs(const float* x, uint8_t* b) {
  float scales[8];
  for (int g = 0; g < 8; ++g) scales[g] = search_iq4_scale(x + 32 * g);
  const float d = -signed_extreme(scales, 8) / 32.0f;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  uint32_t high = 0;
  std::memset(b + 4, 0, 4);
  for (int g = 0; g < 8; ++g) {
    const int scale = std::clamp(to_int(round_even(inverse * scales[g])), -32, 31);
    const float step = d * static_cast<float>(scale);
    pack_iq4(x + 32 * g, inverse_or_zero(step), b + 8 + 16 * g);
    const auto stored = static_cast<uint32_t>(scale + 32);
    b[4 + g / 2] = static_cast<uint8_t>(b[4 + g / 2] | (stored & 15) << 4 * (g % 2));
    high |= stored >> 4 << 2 * g;
  }
  store(b + 2, static_cast<uint16_t>(high));
}

// The first nearest code, so never minus zero.
int nearest_fp4(float v, float scale) {
  int best = 0;
  float least = std::fabs(kFp4Doubled[0] * scale - v);
  for (int c = 1; c < 16; ++c) {
    const float distance = std::fabs(kFp4Doubled[c] * scale - v);
    if (distance < least) {
      least = distance;
      best = c;
    }
  }
  return best;
}

void encode_mxfp4(const float* x, uint8_t* b) {
  const float most = max_abs(x, 32);
  const int exponent = most > 0.0f ? to_int(std::floor(std::log2(most))) - 2 + 127 : 0;
  b[0] = static_cast<uint8_t>(std::clamp(exponent, 0, 254));
  const float scale = e8m0_half_to_f32(b[0]);
  for (int j = 0; j < 16; ++j) {
    b[1 + j] = static_cast<uint8_t>(nearest_fp4(x[j], scale) | nearest_fp4(x[j + 16], scale) << 4);
  }
}

void pack_nvfp4(const float* x, float scale, uint8_t* qs) {
  for (int j = 0; j < 8; ++j) {
    qs[j] = static_cast<uint8_t>(nearest_fp4(x[j], scale) | nearest_fp4(x[j + 8], scale) << 4);
  }
}

void encode_nvfp4(const float* x, uint8_t* b) {
  for (int s = 0; s < 4; ++s) {
    b[s] = f32_to_ue4m3_reference(max_abs(x + 16 * s, 16) / 6.0f);
    pack_nvfp4(x + 16 * s, 0.5f * ue4m3_to_f32(b[s]), b + 4 + 8 * s);
  }
}

void encode_q1_0(const float* x, uint8_t* b) {
  float sum = 0.0f;
  for (int i = 0; i < 128; ++i) sum += std::fabs(x[i]);
  store_half(b, sum / 128.0f);
  std::memset(b + 2, 0, 16);
  for (int i = 0; i < 128; ++i) {
    if (x[i] >= 0.0f) b[2 + i / 8] = static_cast<uint8_t>(b[2 + i / 8] | 1 << (i % 8));
  }
}

void encode_q2_0(const float* x, uint8_t* b) {
  const float d = max_abs(x, 64);
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  std::memset(b + 2, 0, 16);
  for (int i = 0; i < 64; ++i) {
    const int code = std::clamp(to_int(std::round(x[i] * inverse)) + 1, 0, 3);
    b[2 + i / 4] = static_cast<uint8_t>(b[2 + i / 4] | code << 2 * (i % 4));
  }
}

int ternary_code(float x, float inverse) {
  return std::clamp(to_int(std::round(x * inverse)) + 1, 0, 2);
}

void encode_tq2_0(const float* x, uint8_t* b) {
  const float d = max_abs(x, 256);
  const float inverse = inverse_or_zero(d);
  std::memset(b, 0, 64);
  for (int i = 0; i < 256; ++i) {
    uint8_t& byte = b[32 * (i / 128) + i % 32];
    byte = static_cast<uint8_t>(byte | ternary_code(x[i], inverse) << 2 * (i % 128 / 32));
  }
  store_half(b + 64, d);
}

void encode_tq1_0(const float* x, uint8_t* b) {
  const float d = max_abs(x, 256);
  const float inverse = inverse_or_zero(d);
  // `digits` elements x[0], x[stride], ... as a base-3 number of five digits, scaled to a byte.
  const auto byte = [&](const float* first, int stride, int digits) {
    int value = 0;
    for (int n = 0; n < 5; ++n)
      value = value * 3 + (n < digits ? ternary_code(first[n * stride], inverse) : 0);
    return static_cast<uint8_t>((value * 256 + 242) / 243);
  };
  for (int m = 0; m < 32; ++m) b[m] = byte(x + m, 32, 5);
  for (int m = 0; m < 16; ++m) b[32 + m] = byte(x + 160 + m, 16, 5);
  for (int m = 0; m < 4; ++m) b[48 + m] = byte(x + 240 + m, 4, 4);
  store_half(b + 52, d);
}

void encode_q8_K(const float* x, uint8_t* b) {
  const float extreme = signed_extreme(x, 256);
  std::memset(b, 0, 292);
  if (extreme == 0.0f) return;
  const float inverse = -127.0f / extreme;
  for (int g = 0; g < 16; ++g) {
    int sum = 0;
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      const auto code = static_cast<int8_t>(std::min(127, to_int(round_even(inverse * x[i]))));
      b[4 + i] = static_cast<uint8_t>(code);
      sum += code;
    }
    store(b + 260 + 2 * g, static_cast<int16_t>(sum));
  }
  store(b, 1.0f / inverse);
}

using EncodeBlock = void (*)(const float*, uint8_t*);

EncodeBlock block_encoder(GgmlType type) {
  switch (type) {
    case GgmlType::Q4_0:
      return encode_q4_0;
    case GgmlType::Q4_1:
      return encode_q4_1;
    case GgmlType::Q5_0:
      return encode_q5_0;
    case GgmlType::Q5_1:
      return encode_q5_1;
    case GgmlType::Q8_0:
      return encode_q8_0;
    case GgmlType::Q8_1:
      return encode_q8_1;
    case GgmlType::Q4_K:
      return encode_q4_K;
    case GgmlType::Q5_K:
      return encode_q5_K;
    case GgmlType::Q6_K:
      return encode_q6_K;
    case GgmlType::Q8_K:
      return encode_q8_K;
    case GgmlType::IQ4_NL:
      return encode_iq4_nl;
    case GgmlType::IQ4_XS:
      return encode_iq4_xs;
    case GgmlType::MXFP4:
      return encode_mxfp4;
    case GgmlType::NVFP4:
      return encode_nvfp4;
    case GgmlType::Q1_0:
      return encode_q1_0;
    case GgmlType::Q2_0:
      return encode_q2_0;
    case GgmlType::TQ1_0:
      return encode_tq1_0;
    case GgmlType::TQ2_0:
      return encode_tq2_0;
    default:
      return nullptr;
  }
}

bool is_plain_float(GgmlType type) {
  return type == GgmlType::F32 || type == GgmlType::F16 || type == GgmlType::BF16;
}

}  // namespace

bool can_encode(GgmlType type) { return is_plain_float(type) || block_encoder(type) != nullptr; }

void encode_row(GgmlType type, const float* src, void* dst, int64_t n) {
  auto* bytes = static_cast<uint8_t*>(dst);
  const GgmlTypeInfo& info = type_info(type);
  BRAID_CHECK(n >= 0 && n % info.block_elems == 0);
  switch (type) {
    case GgmlType::F32:
      if (n > 0) std::memcpy(bytes, src, static_cast<size_t>(n) * 4);
      return;
    case GgmlType::F16:
      for (int64_t i = 0; i < n; ++i) store(bytes + 2 * i, f32_to_f16(src[i]));
      return;
    case GgmlType::BF16:
      for (int64_t i = 0; i < n; ++i) store(bytes + 2 * i, f32_to_bf16(src[i]));
      return;
    default:
      break;
  }
  const EncodeBlock encode = block_encoder(type);
  BRAID_CHECK(encode != nullptr);
  for (int64_t i = 0; i < n / info.block_elems; ++i) {
    encode(src + i * info.block_elems, bytes + i * info.block_bytes);
  }
}

float nvfp4_tensor_scale(float max_abs) { return max_abs / (6.0f * 448.0f); }

void encode_nvfp4_scaled(const float* src, void* dst, int64_t n, float tensor_scale) {
  BRAID_CHECK(n >= 0 && n % 64 == 0 && tensor_scale != 0.0f);
  auto* b = static_cast<uint8_t*>(dst);
  for (int64_t i = 0; i < n; i += 64, b += 36) {
    for (int s = 0; s < 4; ++s) {
      const float* x = src + i + 16 * s;
      b[s] = f32_to_ue4m3(max_abs(x, 16) / 6.0f / tensor_scale);
      pack_nvfp4(x, 0.5f * ue4m3_to_f32(b[s]) * tensor_scale, b + 4 + 8 * s);
    }
  }
}

}  // namespace braid
