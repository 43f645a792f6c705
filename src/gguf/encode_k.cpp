// encode_k.cpp -- q4_K, q5_K and q6_K: least-squares searches for the scales of a block's groups.
// The reference sums sequentially, one chain of additions per group. Here each lane does exactly
// that for one of four groups, so chains overlap. Results of a lane whose group has left the search
// are discarded, divisions by zero included. Codes are floats with integer values.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/block_layouts.h"
#include "gguf/encode.h"
#include "gguf/half.h"

namespace braid {

namespace {

using Lanes = float __attribute__((vector_size(16)));
using Mask = int32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;

inline Lanes all(float v) { return Lanes{v, v, v, v}; }
inline Lanes select(Mask m, Lanes yes, Lanes no) {
  return reinterpret_cast<Lanes>((m & reinterpret_cast<Mask>(yes)) |
                                 (~m & reinterpret_cast<Mask>(no)));
}
inline Lanes smaller(Lanes a, Lanes b) { return select(a < b, a, b); }
inline Lanes larger(Lanes a, Lanes b) { return select(a > b, a, b); }
inline Lanes magnitude(Lanes v) {
  return reinterpret_cast<Lanes>(reinterpret_cast<Mask>(v) & 0x7fffffff);
}

// Rounds to nearest even, then clamps; a NaN becomes `low`.
inline Lanes round_clamp(Lanes v, Lanes low, Lanes high) {
  constexpr float kShift = 12582912.0f;  // as round_even
  return (smaller(larger(v, low), high) + kShift) - kShift;
}

// x[i] = element i of groups first .. first + 3, each Size elements long.
template <int Size>
void gather_groups(const float* block, int first, Lanes* x) {
  for (int i = 0; i < Size; ++i) {
    const float* at = block + Size * first + i;
    x[i] = Lanes{at[0], at[Size], at[2 * Size], at[3 * Size]};
  }
}

// ---- q4_K, q5_K: x ~ scale * code - min, codes 0..most ----

struct SearchRange {
  float most;   // largest code
  float start;  // first offset added to `most` when trying scales
  float step;
  int steps;
};
constexpr SearchRange kSearchQ4 = {15.0f, -1.0f, 0.1f, 20};
constexpr SearchRange kSearchQ5 = {31.0f, -0.5f, 0.1f, 15};

struct ScaleMin {
  Lanes scale;
  Lanes min;
};

ScaleMin search_scale_min(const Lanes* x, const SearchRange& range, Lanes* codes) {
  const Lanes zero = all(0.0f);
  const Lanes most = all(range.most);
  Lanes square_sum = zero;
  for (int i = 0; i < 32; ++i) square_sum += x[i] * x[i];
  Lanes typical;
  for (int g = 0; g < kLanes; ++g) typical[g] = std::sqrt(square_sum[g] / 32.0f);

  Lanes weights[32];
  Lanes low = x[0];
  Lanes high = x[0];
  Lanes sum_w = zero;
  Lanes sum_x = zero;
  for (int i = 0; i < 32; ++i) {
    weights[i] = typical + magnitude(x[i]);
    low = smaller(low, x[i]);
    high = larger(high, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  low = select(low > zero, zero, low);
  const Mask flat = high == low;
  const Lanes flat_min = -low;

  Lanes inverse = most / (high - low);
  Lanes scale = 1.0f / inverse;
  Lanes best = zero;
  for (int i = 0; i < 32; ++i) {
    codes[i] = round_clamp(inverse * (x[i] - low), zero, most);
    const Lanes off = scale * codes[i] + low - x[i];
    best += weights[i] * (off * off);
  }
  for (int s = 0; s <= range.steps; ++s) {
    inverse = all(range.start + range.step * static_cast<float>(s) + range.most) / (high - low);
    Lanes trial[32];
    Lanes sum_l = zero;
    Lanes sum_l2 = zero;
    Lanes sum_xl = zero;
    for (int i = 0; i < 32; ++i) {
      trial[i] = round_clamp(inverse * (x[i] - low), zero, most);
      const Lanes weighted = weights[i] * trial[i];
      sum_l += weighted;
      sum_l2 += weighted * trial[i];
      sum_xl += weighted * x[i];
    }
    const Lanes determinant = sum_w * sum_l2 - sum_l * sum_l;
    Lanes trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    Lanes trial_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    const Mask positive = trial_low > zero;
    trial_low = select(positive, zero, trial_low);
    trial_scale = select(positive, sum_xl / sum_l2, trial_scale);
    Lanes error = zero;
    for (int i = 0; i < 32; ++i) {
      const Lanes off = trial_scale * trial[i] + trial_low - x[i];
      error += weights[i] * (off * off);
    }
    const Mask better = (determinant > zero) & (error < best);
    best = select(better, error, best);
    scale = select(better, trial_scale, scale);
    low = select(better, trial_low, low);
    for (int i = 0; i < 32; ++i) codes[i] = select(better, trial[i], codes[i]);
  }
  for (int i = 0; i < 32; ++i) codes[i] = select(flat, zero, codes[i]);
  return {select(flat, zero, scale), select(flat, flat_min, -low)};
}

void pack_scale_min(const uint8_t* scales, const uint8_t* mins, uint8_t* packed) {
  for (int g = 0; g < 4; ++g) {
    packed[g] = static_cast<uint8_t>(scales[g] | scales[g + 4] >> 4 << 6);
    packed[g + 4] = static_cast<uint8_t>(mins[g] | mins[g + 4] >> 4 << 6);
    packed[g + 8] = static_cast<uint8_t>((scales[g + 4] & 15) | (mins[g + 4] & 15) << 4);
  }
}

// Fills d, dmin and the packed scales (16 bytes) of a q4_K or q5_K block, and the 256 final codes.
void fit_block(const float* x, const SearchRange& range, uint8_t* b, uint8_t* codes) {
  Lanes gathered[2][32];
  Lanes found[2][32];
  float scale[8];
  float min[8];
  for (int half = 0; half < 2; ++half) {
    gather_groups<32>(x, kLanes * half, gathered[half]);
    const ScaleMin fit = search_scale_min(gathered[half], range, found[half]);
    std::memcpy(scale + kLanes * half, &fit.scale, sizeof(Lanes));
    std::memcpy(min + kLanes * half, &fit.min, sizeof(Lanes));
  }
  float max_scale = 0.0f;
  float max_min = 0.0f;
  for (int g = 0; g < 8; ++g) {
    if (scale[g] > max_scale) max_scale = scale[g];
    if (min[g] > max_min) max_min = min[g];
  }
  const float inverse_scale = max_scale > 0.0f ? 63.0f / max_scale : 0.0f;
  const float inverse_min = max_min > 0.0f ? 63.0f / max_min : 0.0f;
  uint8_t scales6[8];
  uint8_t mins6[8];
  for (int g = 0; g < 8; ++g) {
    scales6[g] =
        static_cast<uint8_t>(std::clamp(to_int(round_even(inverse_scale * scale[g])), 0, 63));
    mins6[g] = static_cast<uint8_t>(std::clamp(to_int(round_even(inverse_min * min[g])), 0, 63));
  }
  const uint16_t d = f32_to_f16(max_scale / 63.0f);
  const uint16_t dmin = f32_to_f16(max_min / 63.0f);
  store(b, d);
  store(b + 2, dmin);
  pack_scale_min(scales6, mins6, b + 4);

  // Codes again, for the rounded scales.
  for (int half = 0; half < 2; ++half) {
    Lanes step;
    Lanes shift;
    for (int g = 0; g < kLanes; ++g) {
      step[g] = f16_to_f32(d) * static_cast<float>(scales6[kLanes * half + g]);
      shift[g] = f16_to_f32(dmin) * static_cast<float>(mins6[kLanes * half + g]);
    }
    const Mask no_step = step == all(0.0f);
    for (int i = 0; i < 32; ++i) {
      const Lanes exact =
          round_clamp((gathered[half][i] + shift) / step, all(0.0f), all(range.most));
      const Lanes code = select(no_step, found[half][i], exact);
      for (int g = 0; g < kLanes; ++g)
        codes[32 * (kLanes * half + g) + i] = static_cast<uint8_t>(code[g]);
    }
  }
}

void pack_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int l = 0; l < 32; ++l) {
      qs[32 * pair + l] =
          static_cast<uint8_t>((codes[64 * pair + l] & 15) | (codes[64 * pair + 32 + l] & 15) << 4);
    }
  }
}

// ---- q6_K: x ~ scale * (code - 32), codes 0..63 ----

// Best signed scale of four groups of 16, each element weighted by its square. Returned codes have
// 32 added; groups of (nearly) zeros get scale 0 and code 0.
Lanes search_scale(const Lanes* x, Lanes* codes) {
  const Lanes zero = all(0.0f);
  const Lanes lowest = all(-32.0f);
  const Lanes highest = all(31.0f);
  Lanes most = zero;
  Lanes extreme = zero;
  Lanes squares[16];
  Lanes cubes[16];
  for (int i = 0; i < 16; ++i) {
    const Mask more = magnitude(x[i]) > most;
    most = select(more, magnitude(x[i]), most);
    extreme = select(more, x[i], extreme);
    squares[i] = x[i] * x[i];
    cubes[i] = squares[i] * x[i];
  }
  const Mask none = most < all(1e-15f);

  Lanes trial[16];
  Lanes along;
  Lanes square;
  const auto fit = [&](Lanes inverse) {
    along = zero;
    square = zero;
    for (int i = 0; i < 16; ++i) {
      trial[i] = round_clamp(inverse * x[i], lowest, highest);
      along += cubes[i] * trial[i];
      square += squares[i] * trial[i] * trial[i];
    }
  };
  fit(all(-32.0f) / extreme);
  for (int i = 0; i < 16; ++i) codes[i] = trial[i];
  Lanes scale = select(square != zero, along / square, zero);
  Lanes best = scale * along;
  for (int s = -9; s <= 9; ++s) {
    if (s == 0) continue;
    fit(all(-(32.0f + 0.1f * static_cast<float>(s))) / extreme);
    const Mask better = (square > zero) & (along * along > best * square);
    for (int i = 0; i < 16; ++i) codes[i] = select(better, trial[i], codes[i]);
    scale = select(better, along / square, scale);
    best = select(better, scale * along, best);
  }
  for (int i = 0; i < 16; ++i) codes[i] = select(none, zero, codes[i] + 32.0f);
  return select(none, zero, scale);
}

}  // namespace

void encode_q4_K(const float* x, uint8_t* b) {
  uint8_t codes[256];
  fit_block(x, kSearchQ4, b, codes);
  pack_nibbles(codes, b + 16);
}

void encode_q5_K(const float* x, uint8_t* b) {
  uint8_t codes[256];
  fit_block(x, kSearchQ5, b, codes);
  std::memset(b + 16, 0, 32);
  for (int i = 0; i < 256; ++i)
    b[16 + i % 32] = static_cast<uint8_t>(b[16 + i % 32] | codes[i] >> 4 << (i / 32));
  pack_nibbles(codes, b + 48);
}

void encode_q6_K(const float* x, uint8_t* b) {
  Lanes gathered[4][16];
  Lanes found[4][16];
  float scale[16];
  for (int quarter = 0; quarter < 4; ++quarter) {
    gather_groups<16>(x, kLanes * quarter, gathered[quarter]);
    const Lanes scales = search_scale(gathered[quarter], found[quarter]);
    std::memcpy(scale + kLanes * quarter, &scales, sizeof(Lanes));
  }
  float extreme = 0.0f;
  for (const float s : scale) {
    if (std::fabs(s) > std::fabs(extreme)) extreme = s;
  }
  std::memset(b, 0, 210);
  if (std::fabs(extreme) < 1e-15f) return;
  const float inverse = -128.0f / extreme;
  const uint16_t d = f32_to_f16(1.0f / inverse);
  store(b + 208, d);
  for (int g = 0; g < 16; ++g) {
    b[192 + g] = static_cast<uint8_t>(
        static_cast<int8_t>(std::clamp(to_int(round_even(inverse * scale[g])), -128, 127)));
  }
  uint8_t codes[256];
  for (int quarter = 0; quarter < 4; ++quarter) {
    Lanes step;
    for (int g = 0; g < kLanes; ++g) {
      step[g] =
          f16_to_f32(d) * static_cast<float>(static_cast<int8_t>(b[192 + kLanes * quarter + g]));
    }
    const Mask no_step = step == all(0.0f);
    for (int i = 0; i < 16; ++i) {
      const Lanes exact = round_clamp(gathered[quarter][i] / step, all(-32.0f), all(31.0f)) + 32.0f;
      const Lanes code = select(no_step, found[quarter][i], exact);
      for (int g = 0; g < kLanes; ++g)
        codes[16 * (kLanes * quarter + g) + i] = static_cast<uint8_t>(code[g]);
    }
  }
  for (int n = 0; n < 2; ++n) {
    for (int l = 0; l < 32; ++l) {
      const uint8_t* q = codes + 128 * n + l;
      b[64 * n + l] = static_cast<uint8_t>((q[0] & 15) | (q[64] & 15) << 4);
      b[64 * n + 32 + l] = static_cast<uint8_t>((q[32] & 15) | (q[96] & 15) << 4);
      b[128 + 32 * n + l] =
          static_cast<uint8_t>(q[0] >> 4 | q[32] >> 4 << 2 | q[64] >> 4 << 4 | q[96] >> 4 << 6);
    }
  }
}

}  // namespace braid
