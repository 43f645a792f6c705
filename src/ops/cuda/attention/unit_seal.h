// unit_seal.h -- seals 32 f16 rows of a head: bit for bit the codecs of ops/kv, by a thread block.
#pragma once

#include "ops/cuda/attention/unit_rotation.h"

namespace braid::cuda {

BRAID_BOTH inline uint16_t finite(uint16_t half) {
  return (half & 0x7fff) == 0x7c00 ? half - 1 : half;
}
BRAID_BOTH inline uint16_t finite_half_of(float x) { return finite(half_of(x)); }
BRAID_BOTH inline void put_half(uint8_t* at, uint16_t half) {
  *reinterpret_cast<uint16_t*>(at) = half;
}
BRAID_BOTH inline int truncated(float x) {
  return x > -2147483648.0f && x < 2147483648.0f ? static_cast<int>(x) : INT32_MIN;
}

template <int kBits>
BRAID_BOTH void pack_plane(uint32_t* to, const UnitRows& rows, int channel, int shift) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (int w = 0; w < kBits; ++w) {
    uint32_t word = 0;
    if constexpr (kBits == 1) {
      for (int t = 0; t < kBlockTokens; ++t)
        word |= (static_cast<uint32_t>(rows.at[t][channel]) >> shift & 1) << t;
    } else {
      for (int b = 0; b < 4; ++b) {
        for (int i = 0; i < 8 / kBits; ++i) {
          const auto code = static_cast<uint32_t>(rows.at[4 * w + b + i * 4 * kBits][channel]);
          word |= (code >> shift & kMask) << (8 * b + i * kBits);
        }
      }
    }
    to[w] = word;
  }
}

template <UnitKind kKind, typename Block>
BRAID_BOTH void pack_codes(Block& block, const UnitRows& rows, int width, uint8_t* unit) {
  constexpr int kBits = bits_of_kind(kKind);
  constexpr int kLow = low_bits_of(kBits);
  block.each([&](int channel) {
    if (channel >= width) return;
    pack_plane<kLow>(reinterpret_cast<uint32_t*>(unit) + kLow * channel, rows, channel, 0);
    if constexpr (kBits > kLow) {
      auto* high = reinterpret_cast<uint32_t*>(unit + code_plane_bytes(kLow, width));
      pack_plane<1>(high + channel, rows, channel, kLow);
    }
  });
}

// 32 values become codes, in place; scale and minimum as f16.
struct ClassicFactors {
  uint16_t scale, minimum;
};
template <UnitKind kKind>
BRAID_BOTH ClassicFactors encode_classic(float* x) {
  constexpr int kBits = bits_of_kind(kKind);
  constexpr int kMost = (1 << kBits) - 1;
  float d, low = x[0], extreme = 0.0f, most = 0.0f, high = x[0];
  for (int i = 0; i < 32; ++i) {
    const float size = magnitude(x[i]);
    if (size > most) {
      most = size;
      extreme = x[i];
    }
    if (x[i] < low) low = x[i];
    if (!(x[i] < high)) high = x[i];
  }
  if constexpr (kBits == 8) {
    d = quotient(most, 127.0f);
  } else if constexpr (has_minimum(kKind)) {
    d = quotient(sub(high, low), static_cast<float>(kMost));
  } else {
    d = quotient(extreme, static_cast<float>(-(1 << (kBits - 1))));
  }
  const float inverse = d != 0.0f ? quotient(1.0f, d) : 0.0f;
  for (int i = 0; i < 32; ++i) {
    int code;
    if constexpr (kBits == 8) {
      code = static_cast<int8_t>(truncated(away_from_zero(mul(x[i], inverse)))) + 128;
    } else if constexpr (kKind == UnitKind::q5_1) {
      code = truncated(add(mul(sub(x[i], low), inverse), 0.5f)) & kMost;
    } else if constexpr (kKind == UnitKind::q4_1) {
      code = lesser(15, static_cast<int>(static_cast<int8_t>(
                            truncated(add(mul(sub(x[i], low), inverse), 0.5f)))));
    } else {
      const float middle = static_cast<float>(1 << (kBits - 1)) + 0.5f;
      code = lesser(
          kMost, static_cast<int>(static_cast<int8_t>(truncated(add(mul(x[i], inverse), middle)))));
    }
    x[i] = static_cast<float>(code & kMost);
  }
  return {finite_half_of(d), finite_half_of(low)};
}

template <UnitKind kKind, typename Block>
BRAID_BOTH void seal_classic(Block& block, UnitScratch& sh, int width, uint8_t* unit) {
  const int groups = width / 32;
  uint8_t* factors = unit + code_plane_bytes(bits_of_kind(kKind), width);
  block.each([&](int thread) {
    for (int task = thread; task < kBlockTokens * groups; task += Block::kSize) {
      const int t = task % kBlockTokens, group = task / kBlockTokens;
      const ClassicFactors f = encode_classic<kKind>(sh.rows.at[t] + 32 * group);
      put_half(factors + 64 * group + 2 * t, f.scale);
      if (has_minimum(kKind)) put_half(factors + 64 * (groups + group) + 2 * t, f.minimum);
    }
  });
  pack_codes<kKind>(block, sh.rows, width, unit);
}

// sums[r][0]: ordered_sum() of value(row, i), i < length, over part r / 32 of row r % 32.
template <typename Block, typename Value>
BRAID_BOTH void sum_rows(Block& block, UnitScratch& sh, int parts, int length, Value value) {
  block.each([&](int thread) {
    for (int i = thread; i < parts * kBlockTokens * 32; i += Block::kSize) {
      const int r = i / 32;
      const float* row = sh.rows.at[r % kBlockTokens] + r / kBlockTokens * length;
      float sum = 0.0f;
      for (int d = i % 32; d < length; d += 32) sum = add(sum, value(row[d]));
      sh.sums[r][i % 32] = sum;
    }
  });
  block.each([&](int thread) {
    for (int r = thread; r < parts * kBlockTokens; r += Block::kSize) {
      for (int h = 16; h > 0; h /= 2) {
        for (int i = 0; i < h; ++i) sh.sums[r][i] = add(sh.sums[r][i], sh.sums[r][i + h]);
      }
    }
  });
}

template <int kBits>
BRAID_BOTH float codebook_level(int code) {
  constexpr kv::Codebook<kBits> kBook;
  constexpr int kHalf = 1 << (kBits - 1);
  const bool positive = code >= kHalf;
  const int index = positive ? code - kHalf : kHalf - 1 - code;
  float level = kBook.levels[0];
  // Selections instead of a table in memory.
  BRAID_UNROLL
  for (int i = 1; i < kHalf; ++i) level = index == i ? kBook.levels[i] : level;
  return positive ? level : -level;
}
template <int kBits>
BRAID_BOTH int codebook_code(float y) {
  constexpr kv::Codebook<kBits> kBook;
  int code = y >= 0.0f ? 1 : 0;
  BRAID_UNROLL
  for (int i = 0; i < (1 << (kBits - 1)) - 1; ++i)
    code += (y >= kBook.limits[i] ? 1 : 0) + (y >= -kBook.limits[i] ? 1 : 0);
  return code;
}

template <UnitKind kKind, typename Block>
BRAID_BOTH void seal_codebook(Block& block, UnitScratch& sh, int width, uint8_t* unit) {
  constexpr int kBits = bits_of_kind(kKind);
  const int groups = width / 128;
  sum_rows(block, sh, groups, 128, [](float x) { return mul(x, x); });
  block.each([&](int thread) {
    for (int r = thread; r < groups * kBlockTokens; r += Block::kSize)
      sh.norm[r] = root(sh.sums[r][0]);
  });
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * width; i += Block::kSize) {
      const int t = i / width, d = i % width;
      const float norm = sh.norm[d / 128 * kBlockTokens + t];
      sh.rows.at[t][d] = mul(sh.rows.at[t][d], norm > kv::kTinyNorm ? quotient(1.0f, norm) : 0.0f);
    }
  });
  rotate_rows(block, sh.rows, width, false);
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * width; i += Block::kSize) {
      float& x = sh.rows.at[i / width][i % width];
      x = static_cast<float>(codebook_code<kBits>(x));
    }
  });
  sum_rows(block, sh, groups, 128, [](float code) {
    const float level = codebook_level<kBits>(static_cast<int>(code));
    return mul(level, level);
  });
  uint8_t* norms = unit + code_plane_bytes(kBits, width);
  block.each([&](int thread) {
    for (int r = thread; r < groups * kBlockTokens; r += Block::kSize) {
      const float length = root(sh.sums[r][0]);
      const float norm = length > kv::kTinyNorm ? quotient(sh.norm[r], length) : sh.norm[r];
      put_half(norms + 64 * (r / kBlockTokens) + 2 * (r % kBlockTokens), finite_half_of(norm));
    }
  });
  pack_codes<kKind>(block, sh.rows, width, unit);
}

BRAID_BOTH inline int32_t scale_index(float s) {
  return static_cast<int32_t>((bits_of(s) + (1u << 18)) >> 19);
}
BRAID_BOTH inline int scale_base(float largest) {
  return within((scale_index(largest) >> 4) - 127 - 15, kv::kLeastExponent, 0);
}
BRAID_BOTH inline int scale_byte(float s, int base) {
  return within(scale_index(s) - ((base + 127) << 4), 0, 255);
}
BRAID_BOTH inline float scale_of(int byte, int base) {
  return float_of_half(static_cast<uint16_t>((byte << 6) + ((base + 15) << 10)));
}

BRAID_BOTH inline float affine_code_of(float y, float middle, float s, int most) {
  const float code = to_even(add(quotient(sub(y, middle), s), mul(0.5f, static_cast<float>(most))));
  return within(code, 0.0f, static_cast<float>(most));
}

template <typename Block>
BRAID_BOTH void divide_rows(Block& block, UnitScratch& sh, int width, uint8_t* factors) {
  sum_rows(block, sh, 1, width, [](float x) { return mul(x, x); });
  block.each([&](int t) {
    if (t >= kBlockTokens) return;
    const float mean = quotient(sh.sums[t][0], static_cast<float>(width));
    const uint16_t factor = finite_half_of(add(root(mean), kv::kRootBias));
    put_half(factors + 2 * t, factor);
    sh.norm[t] = float_of_half(factor);
  });
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * width; i += Block::kSize) {
      float& x = sh.rows.at[i / width][i % width];
      x = quotient(x, sh.norm[i / width]);
    }
  });
}

// Finds a channel's best scale, and replaces its values by their codes.
template <int kBits>
BRAID_BOTH int encode_channel(UnitRows& rows, int channel, float half, float centre, int base) {
  constexpr kv::ChannelShares kShares;
  constexpr int kMost = (1 << kBits) - 1;
  float least = INFINITY;
  int best = -1;
  BRAID_UNROLL
  for (int i = 0; i < kv::kChannelShares; ++i) {
    const float share = kShares.part[i];
    const float step = quotient(mul(mul(2.0f, share), half), static_cast<float>(kMost));
    const int byte = scale_byte(greater(step, kv::kLeastScale), base);
    const float s = scale_of(byte, base);
    const float z = sub(centre, mul(s, 0.5f * static_cast<float>(kMost)));
    float error = 0.0f;
    for (int t = 0; t < kBlockTokens; ++t) {
      const float y = rows.at[t][channel];
      const float off = sub(y, add(mul(s, affine_code_of(y, centre, s, kMost)), z));
      error = add(error, mul(off, off));
    }
    if (!(error < least)) continue;
    least = error;
    best = byte;
  }
  const float s = scale_of(best, base);
  for (int t = 0; t < kBlockTokens; ++t) {
    float& y = rows.at[t][channel];
    y = best < 0 ? 0.0f : affine_code_of(y, centre, s, kMost);
  }
  return best;
}

template <UnitKind kKind, typename Block>
BRAID_BOTH void seal_channels(Block& block, UnitScratch& sh, int width, bool value, uint8_t* unit) {
  constexpr int kBits = bits_of_kind(kKind);
  constexpr int kMost = (1 << kBits) - 1;
  uint8_t* scales = unit + code_plane_bytes(kBits, width);
  uint8_t* middles = scales + width;
  uint8_t* head = middles + width;
  if (value) divide_rows(block, sh, width, head + 16);
  block.each([&](int channel) {
    if (channel >= width) return;
    float low = sh.rows.at[0][channel], high = low;
    for (int t = 1; t < kBlockTokens; ++t) {
      low = lesser(low, sh.rows.at[t][channel]);
      high = greater(high, sh.rows.at[t][channel]);
    }
    sh.middle[channel] = mul(add(low, high), 0.5f);
    sh.half[channel] = mul(sub(high, low), 0.5f);
  });
  block.each([&](int thread) {
    if (thread >= 32) return;
    float farthest = 0.0f, widest = 0.0f;
    for (int d = thread; d < width; d += 32) {
      farthest = greater(farthest, magnitude(sh.middle[d]));
      widest = greater(widest, sh.half[d]);
    }
    sh.farthest[thread] = farthest;
    sh.widest[thread] = widest;
  });
  block.each([&](int channel) {
    if (channel >= width) return;
    float farthest = 0.0f, widest = 0.0f;
    for (int i = 0; i < 32; ++i) {
      farthest = greater(farthest, sh.farthest[i]);
      widest = greater(widest, sh.widest[i]);
    }
    constexpr float kWhole = kv::ChannelShares{}.part[0];
    const uint16_t zstep_bits = half_of(quotient(farthest, kv::kMostMiddle));
    const float zstep = float_of_half(zstep_bits);
    const float largest = quotient(mul(mul(2.0f, kWhole), widest), static_cast<float>(kMost));
    const int base = scale_base(greater(largest, kv::kLeastScale));
    const float m = zstep == 0.0f ? 0.0f
                                  : within(to_even(quotient(sh.middle[channel], zstep)),
                                           -kv::kMostMiddle, kv::kMostMiddle);
    middles[channel] = static_cast<uint8_t>(static_cast<int8_t>(m));
    scales[channel] = static_cast<uint8_t>(
        encode_channel<kBits>(sh.rows, channel, sh.half[channel], mul(m, zstep), base));
    if (channel >= 16) return;
    const int8_t bytes[3] = {static_cast<int8_t>(zstep_bits & 0xff),
                             static_cast<int8_t>(zstep_bits >> 8), static_cast<int8_t>(base)};
    head[channel] = channel == 0   ? static_cast<uint8_t>(bytes[0])
                    : channel == 1 ? static_cast<uint8_t>(bytes[1])
                    : channel == 2 ? static_cast<uint8_t>(bytes[2])
                                   : uint8_t{0};
  });
  pack_codes<kKind>(block, sh.rows, width, unit);
}

template <UnitKind kKind, typename Block>
BRAID_BOTH void seal_numbers(Block& block, const UnitRows& rows, int width, uint8_t* unit) {
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * width; i += Block::kSize) {
      const float x = rows.at[i / width][i % width];
      if constexpr (kKind == UnitKind::f32) {
        reinterpret_cast<float*>(unit)[i] = x;
      } else {
        reinterpret_cast<uint16_t*>(unit)[i] =
            kKind == UnitKind::f16 ? finite_half_of(x) : bf16_of(x);
      }
    }
  });
}

// rows: f16 [32][width]. The unit is zeros if a number is NaN; infinities become the largest
// number.
template <typename Block>
BRAID_BOTH void seal_unit(Block& block, UnitScratch& sh, UnitKind kind, int width, bool value,
                          const uint16_t* rows, uint8_t* unit) {
  block.each([&](int thread) {
    if (thread == 0) sh.refused = 0;
  });
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * width; i += Block::kSize) {
      const uint16_t bits = rows[i];
      if ((bits & 0x7fff) > 0x7c00) sh.refused = 1;
      sh.rows.at[i / width][i % width] = float_of_half(finite(bits));
    }
  });
  if (sh.refused != 0) {
    block.each([&](int thread) {
      const int words = unit_bytes_of(kind, width, value) / 4;
      for (int i = thread; i < words; i += Block::kSize) reinterpret_cast<uint32_t*>(unit)[i] = 0;
    });
    return;
  }
  with_kind(kind, [&]<UnitKind kKind>() {
    if constexpr (family_of(kKind) == UnitFamily::number) {
      seal_numbers<kKind>(block, sh.rows, width, unit);
    } else if constexpr (family_of(kKind) == UnitFamily::classic) {
      seal_classic<kKind>(block, sh, width, unit);
    } else if constexpr (family_of(kKind) == UnitFamily::codebook) {
      seal_codebook<kKind>(block, sh, width, unit);
    } else {
      seal_channels<kKind>(block, sh, width, value, unit);
    }
  });
}

}  // namespace braid::cuda
