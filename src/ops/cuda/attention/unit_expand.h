// unit_expand.h -- expands a unit to 32 f16 rows, as the codecs of ops/kv decode it, rounded to
// f16. A thread has two neighboring channels and 16 of the cells, so that warps write whole lines.
#pragma once

#include "ops/cuda/attention/unit_rotation.h"
#include "ops/cuda/attention/unit_seal.h"

namespace braid::cuda {

BRAID_BOTH inline uint16_t half_bits_at(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}
BRAID_BOTH inline uint16_t saturated_half(float x) {
  return half_of(within(x, -65504.0f, 65504.0f));
}

template <int kBits>
struct PlaneWords {
  uint32_t word[kBits];
  BRAID_BOTH void load(const uint8_t* plane, int channel) {
    const auto* from = reinterpret_cast<const uint32_t*>(plane) + kBits * channel;
    BRAID_UNROLL
    for (int w = 0; w < kBits; ++w) word[w] = from[w];
  }
  BRAID_BOTH uint32_t of(int t) const {
    if constexpr (kBits == 1) return word[0] >> t & 1;
    const int byte = t % (4 * kBits), part = t / (4 * kBits);
    return word[byte / 4] >> (byte % 4 * 8 + part * kBits) & ((1u << kBits) - 1);
  }
};

template <int kBits>
struct ChannelCodes {
  static constexpr int kLow = low_bits_of(kBits);
  PlaneWords<kLow> low;
  PlaneWords<1> high;
  BRAID_BOTH void load(const uint8_t* unit, int width, int channel) {
    low.load(unit, channel);
    if constexpr (kBits > kLow) high.load(unit + code_plane_bytes(kLow, width), channel);
  }
  BRAID_BOTH int of(int t) const {
    uint32_t code = low.of(t);
    if constexpr (kBits > kLow) code |= high.of(t) << kLow;
    return static_cast<int>(code);
  }
};

// Values of one channel of a unit, in the stored (rotated) domain.
template <UnitKind kKind>
struct ChannelReader {
  static constexpr int kBits = bits_of_kind(kKind);
  ChannelCodes<kBits> codes;
  const uint8_t* factors;  // of this channel's group: of rows, or of V
  int minima;              // bytes from scales to minima
  float scale, zero;       // of a channel

  BRAID_BOTH void load(const uint8_t* unit, int width, bool value, int channel) {
    codes.load(unit, width, channel);
    const uint8_t* planes = unit + code_plane_bytes(kBits, width);
    minima = 0;
    scale = zero = 0.0f;
    if constexpr (family_of(kKind) == UnitFamily::classic) {
      factors = planes + channel / 32 * 64;
      minima = width / 32 * 64;
    } else if constexpr (family_of(kKind) == UnitFamily::codebook) {
      factors = planes + channel / 128 * 64;
    } else {
      const uint8_t* head = planes + 2 * width;
      factors = value ? head + 16 : nullptr;
      scale = scale_of(planes[channel], static_cast<int8_t>(head[2]));
      const float middle = mul(static_cast<float>(static_cast<int8_t>(planes[width + channel])),
                               float_of_half(half_bits_at(head)));
      zero = sub(middle, mul(scale, 0.5f * static_cast<float>((1 << kBits) - 1)));
    }
  }
  BRAID_BOTH float of(int t) const {
    const int code = codes.of(t);
    const auto factor = [&] { return float_of_half(half_bits_at(factors + 2 * t)); };
    if constexpr (family_of(kKind) == UnitFamily::codebook) {
      return mul(codebook_level<kBits>(code), factor());
    } else if constexpr (family_of(kKind) == UnitFamily::channel) {
      const float x = add(mul(scale, static_cast<float>(code)), zero);
      return factors == nullptr ? x : mul(x, factor());
    } else if constexpr (has_minimum(kKind)) {
      return add(mul(static_cast<float>(code), factor()),
                 float_of_half(half_bits_at(factors + minima + 2 * t)));
    } else {
      return mul(static_cast<float>(code - (1 << (kBits - 1))), factor());
    }
  }
};

template <UnitKind kKind>
BRAID_BOTH float number_of(const uint8_t* unit, int i) {
  if constexpr (kKind == UnitKind::f32) return reinterpret_cast<const float*>(unit)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(unit)[i];
  return kKind == UnitKind::f16 ? float_of_half(bits) : float_of_bf16(bits);
}

// put(t, d, x, y): values of cell t at d and d + 1, each once, d even.
template <UnitKind kKind, typename Put>
BRAID_BOTH void read_unit(int thread, int threads, int width, bool value, const uint8_t* unit,
                          Put put) {
  const int pairs = width / 2;
  if constexpr (family_of(kKind) == UnitFamily::number) {
    for (int i = thread; i < kBlockTokens * pairs; i += threads)
      put(i / pairs, i % pairs * 2, number_of<kKind>(unit, 2 * i),
          number_of<kKind>(unit, 2 * i + 1));
  } else {
    for (int task = thread; task < 2 * pairs; task += threads) {
      const int d = task % pairs * 2;
      ChannelReader<kKind> first, second;
      first.load(unit, width, value, d);
      second.load(unit, width, value, d + 1);
      const auto cells = [&](int begin) {
        BRAID_UNROLL
        for (int t = 0; t < kBlockTokens / 2; ++t)
          put(begin + t, d, first.of(begin + t), second.of(begin + t));
      };
      if (task < pairs) {
        cells(0);
      } else {
        cells(kBlockTokens / 2);
      }
    }
  }
}

// out: f16 [32][width], 4-byte aligned. `rows`: for rotated kinds only.
template <typename Block>
BRAID_BOTH void expand_unit(Block& block, UnitRows* rows, UnitKind kind, int width, bool value,
                            const uint8_t* unit, uint16_t* out) {
  const auto write = [&](int t, int d, float x, float y) {
    reinterpret_cast<uint32_t*>(out)[(t * width + d) / 2] =
        saturated_half(x) | static_cast<uint32_t>(saturated_half(y)) << 16;
  };
  with_kind(kind, [&]<UnitKind kKind>() {
    block.each([&](int thread) {
      if constexpr (!is_rotated(kKind)) {
        read_unit<kKind>(thread, Block::kSize, width, value, unit, write);
      } else {
        read_unit<kKind>(thread, Block::kSize, width, value, unit,
                         [&](int t, int d, float x, float y) {
                           rows->at[t][d] = x;
                           rows->at[t][d + 1] = y;
                         });
      }
    });
  });
  if (!is_rotated(kind)) return;
  rotate_rows(block, *rows, width, true);
  block.each([&](int thread) {
    for (int t = thread / 32; t < kBlockTokens; t += Block::kSize / 32)
      for (int d = thread % 32 * 2; d < width; d += 64)
        write(t, d, rows->at[t][d], rows->at[t][d + 1]);
  });
}

}  // namespace braid::cuda
