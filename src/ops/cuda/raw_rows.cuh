// raw_rows.cuh -- reads the block formats of files on the GPU, 32 consecutive elements at a time.
// Values equal gguf/block_layouts.h bit for bit: every product and sum is rounded, in that
// order. Types without a case here are decoded to f32 on the host.
#pragma once

#include "gguf/types.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/gemm/pack_plan.h"

namespace braid::cuda {

__device__ inline int iq4_level(int code) {
  constexpr uint64_t low = 0xf6eaddcfbfad9881ull;   // -127 -104 -83 -65 -49 -35 -22 -10
  constexpr uint64_t high = 0x7159453526190d01ull;  // 1 13 25 38 53 69 89 113
  return static_cast<int8_t>((code < 8 ? low : high) >> 8 * (code & 7));
}
__device__ inline int fp4_doubled(int code) {
  constexpr uint64_t levels = 0x0c08060403020100ull;
  const int magnitude = static_cast<int>(levels >> 8 * (code & 7) & 15);
  return code & 8 ? -magnitude : magnitude;
}

// The level of a 4-bit code, for types without a minimum.
__device__ inline int level_of(GgmlType type, int code) {
  switch (type) {
    case GgmlType::Q4_0:
      return code - 8;
    case GgmlType::IQ4_NL:
    case GgmlType::IQ4_XS:
      return iq4_level(code);
    default:
      return fp4_doubled(code);
  }
}

__device__ inline uint32_t load16(const uint8_t* at) {
  return at[0] | static_cast<uint32_t>(at[1]) << 8;
}
__device__ inline uint32_t load32(const uint8_t* at) { return load16(at) | load16(at + 2) << 16; }
__device__ inline float half_at(const uint8_t* at) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(load16(at))));
}
__device__ inline float e8m0_half(int e) {
  return __uint_as_float(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
__device__ inline float ue4m3(int s) {
  const uint32_t exponent = s >> 3 & 15;
  const uint32_t mantissa = s & 7;
  if ((s & 0x7f) == 0x7f) return 0.0f;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return __uint_as_float((exponent + 120) << 23 | mantissa << 20);
}
__device__ inline void scale_min(const uint8_t* s, int group, int& scale, int& min) {
  if (group < 4) {
    scale = s[group] & 63;
    min = s[group + 4] & 63;
  } else {
    scale = (s[group + 4] & 15) | s[group - 4] >> 6 << 4;
    min = s[group + 4] >> 4 | s[group] >> 6 << 4;
  }
}

// 32 codes: value = scale * code - min; one scale each for the first and the last 16.
struct Codes {
  int8_t code[32];
  float scale[2];
  float min;
};

// One function per block layout. `group`: index of 32 among 256 elements.

struct Levels {
  GgmlType type;
  bool as_stored;

  __device__ int8_t operator()(int code) const {
    return static_cast<int8_t>(as_stored ? code : level_of(type, code));
  }
};

template <class Meaning>
__device__ inline void read_nibbles(const uint8_t* bytes, Codes& out, const Meaning& meaning) {
  for (int j = 0; j < 16; ++j) {
    out.code[j] = meaning(bytes[j] & 15);
    out.code[j + 16] = meaning(bytes[j] >> 4);
  }
}
// With a fifth bit each, from one word; `zero`: the code of 0.
__device__ inline void read_nibbles_and_bits(const uint8_t* bytes, uint32_t high, int zero,
                                             Codes& out) {
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
    out.code[i] = static_cast<int8_t>((nibble | static_cast<int>(high >> i & 1) << 4) - zero);
  }
}

// Q8_0: scale, 32 codes.
__device__ inline void read_q8_0(const uint8_t* b, Codes& out) {
  out.scale[0] = out.scale[1] = half_at(b);
  for (int i = 0; i < 32; ++i) out.code[i] = static_cast<int8_t>(b[2 + i]);
}
// Q4_0, IQ4_NL: scale, nibbles.
__device__ inline void read_scale_nibbles(const uint8_t* b, const Levels& level, Codes& out) {
  out.scale[0] = out.scale[1] = half_at(b);
  read_nibbles(b + 2, out, level);
}
// Q4_1: scale, minimum, nibbles.
__device__ inline void read_q4_1(const uint8_t* b, Codes& out) {
  out.scale[0] = out.scale[1] = half_at(b);
  out.min = -half_at(b + 2);
  read_nibbles(b + 4, out, [](int code) { return static_cast<int8_t>(code); });
}
// Q5_0: scale, fifth bits, nibbles.
__device__ inline void read_q5_0(const uint8_t* b, Codes& out) {
  const uint32_t high = load32(b + 2);
  out.scale[0] = out.scale[1] = half_at(b);
  read_nibbles_and_bits(b + 6, high, 16, out);
}
// Q5_1: scale, minimum, fifth bits, nibbles.
__device__ inline void read_q5_1(const uint8_t* b, Codes& out) {
  const uint32_t high = load32(b + 4);
  out.scale[0] = out.scale[1] = half_at(b);
  out.min = -half_at(b + 2);
  read_nibbles_and_bits(b + 8, high, 0, out);
}
// Q4_K, Q5_K: factors of scales and minima, scales and minima of eight groups, Q5_K's fifth bits (a
// byte has those of eight groups), nibbles (a byte has those of two groups).
__device__ inline void read_q4_k_or_q5_k(const uint8_t* b, int group, bool five, Codes& out) {
  int scale;
  int min;
  scale_min(b + 4, group, scale, min);
  out.scale[0] = out.scale[1] = __fmul_rn(half_at(b), static_cast<float>(scale));
  out.min = __fmul_rn(half_at(b + 2), static_cast<float>(min));
  const uint8_t* qs = b + (five ? 48 : 16) + 32 * (group / 2);
  for (int l = 0; l < 32; ++l) {
    int q = qs[l] >> 4 * (group % 2) & 15;
    if (five) q |= (b[16 + l] >> group & 1) << 4;
    out.code[l] = static_cast<int8_t>(q);
  }
}
// Q6_K: nibbles, pairs of high bits (a byte has those of four groups), scales of 16, their factor.
__device__ inline void read_q6_k(const uint8_t* b, int group, Codes& out) {
  const int n = group / 4;
  const int j = group % 4;
  const float d = half_at(b + 208);
  for (int s = 0; s < 2; ++s)
    out.scale[s] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(b[192 + 2 * group + s])));
  for (int l = 0; l < 32; ++l) {
    const int pair = b[64 * n + 32 * (j & 1) + l];
    const int low = j >= 2 ? pair >> 4 : pair & 15;
    const int high = b[128 + 32 * n + l] >> 2 * j & 3;
    out.code[l] = static_cast<int8_t>((low | high << 4) - 32);
  }
}
// IQ4_XS: a factor, 6-bit scales of eight groups (high bits first), nibbles of each group.
__device__ inline void read_iq4_xs(const uint8_t* b, int group, const Levels& level, Codes& out) {
  const int scale = (b[4 + group / 2] >> 4 * (group % 2) & 15) | (load16(b + 2) >> 2 * group & 3)
                                                                     << 4;
  out.scale[0] = out.scale[1] = __fmul_rn(half_at(b), static_cast<float>(scale - 32));
  read_nibbles(b + 8 + 16 * group, out, level);
}
// MXFP4: an exponent, nibbles.
__device__ inline void read_mxfp4(const uint8_t* b, const Levels& level, Codes& out) {
  out.scale[0] = out.scale[1] = e8m0_half(b[0]);
  read_nibbles(b + 1, out, level);
}
// NVFP4: a scale for each 16 of 64 elements, then their nibbles, 0 to 7 of the 16 in the low bits.
__device__ inline void read_nvfp4(const uint8_t* b, int k0, const Levels& level, Codes& out) {
  for (int s = 0; s < 2; ++s) {
    const int sub = k0 % 64 / 16 + s;
    out.scale[s] = 0.5f * ue4m3(b[sub]);
    for (int j = 0; j < 8; ++j) {
      out.code[16 * s + j] = level(b[4 + 8 * sub + j] & 15);
      out.code[16 * s + j + 8] = level(b[4 + 8 * sub + j] >> 4);
    }
  }
}

// For types with a scale per 16 or 32 elements. as_stored: raw 4-bit codes instead of level_of().
__device__ inline void read_codes(GgmlType type, const uint8_t* row, int k0, Codes& out,
                                  bool as_stored = false) {
  const Levels level{type, as_stored};
  const int group = k0 % 256 / 32;
  out.min = 0;
  switch (type) {
    case GgmlType::Q8_0:
      return read_q8_0(row + k0 / 32 * 34, out);
    case GgmlType::Q4_0:
    case GgmlType::IQ4_NL:
      return read_scale_nibbles(row + k0 / 32 * 18, level, out);
    case GgmlType::Q5_0:
      return read_q5_0(row + k0 / 32 * 22, out);
    case GgmlType::Q4_1:
      return read_q4_1(row + k0 / 32 * 20, out);
    case GgmlType::Q5_1:
      return read_q5_1(row + k0 / 32 * 24, out);
    case GgmlType::Q4_K:
    case GgmlType::Q5_K: {
      const bool five = type == GgmlType::Q5_K;
      return read_q4_k_or_q5_k(row + k0 / 256 * (five ? 176 : 144), group, five, out);
    }
    case GgmlType::Q6_K:
      return read_q6_k(row + k0 / 256 * 210, group, out);
    case GgmlType::IQ4_XS:
      return read_iq4_xs(row + k0 / 256 * 136, group, level, out);
    case GgmlType::MXFP4:
      return read_mxfp4(row + k0 / 32 * 17, level, out);
    case GgmlType::NVFP4:
      return read_nvfp4(row + k0 / 64 * 36, k0, level, out);
    default:
      return;
  }
}

__device__ inline bool is_float_type(GgmlType type) {
  return type == GgmlType::F32 || type == GgmlType::F16 || type == GgmlType::BF16;
}
__device__ inline float float_element(GgmlType type, const uint8_t* row, int k) {
  if (type == GgmlType::F32) return reinterpret_cast<const float*>(row)[k];
  const unsigned short bits = reinterpret_cast<const unsigned short*>(row)[k];
  return type == GgmlType::F16 ? __half2float(__ushort_as_half(bits))
                               : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// y[0 .. 32) = elements from k0 on of a row of k elements; zeros after its end.
__device__ inline void read_values(GgmlType type, const uint8_t* row, int k0, int k, float* y) {
  if (is_float_type(type)) {
    for (int i = 0; i < 32; ++i) y[i] = k0 + i < k ? float_element(type, row, k0 + i) : 0.0f;
    return;
  }
  Codes codes;
  read_codes(type, row, k0, codes);
  for (int i = 0; i < 32; ++i)
    y[i] = __fsub_rn(__fmul_rn(codes.scale[i / 16], static_cast<float>(codes.code[i])), codes.min);
}

}  // namespace braid::cuda
