// channel.cpp -- c5, c4: a scale and a zero for each channel over the 32 cells of a block.
//
//   x[t][d] = r[t] * (s[d] * code[t][d] + z[d])
//
// Channels of keys differ in mean and width, but k_norm makes rows equally long, so scales per
// channel fit better than scales per row; r of K is 1. A long row of V would widen all channels of
// its block, so r of V is the row's root mean square.
// Planes: codes, the channel planes (channel_planes.h), and for V r f16 [32].
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"
#include "ops/kv/rotation.h"

namespace braid::kv {

namespace {

constexpr ChannelShares kShares;

// Divides a row by its factor, which is stored.
void divide_row(float* row, int32_t head_dim, float factor, uint8_t* stored) {
  store_half(stored, factor);
  const float by = load_half(stored);
  for (int32_t d = 0; d < head_dim; ++d) row[d] /= by;
}
void multiply_rows(float* rows, int32_t head_dim, const uint8_t* factors) {
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    const float by = load_half(factors + 2 * t);
    for (int32_t d = 0; d < head_dim; ++d) rows[int64_t{t} * head_dim + d] *= by;
  }
}

// Ties to even.
uint8_t affine_code(float y, float middle, float s, int most_code) {
  const auto most = static_cast<float>(most_code);
  return static_cast<uint8_t>(
      std::clamp(std::nearbyint((y - middle) / s + 0.5f * most), 0.0f, most));
}

// rows [32][head_dim]. Several parts of a channel's range are tried for its scale; the first with
// the least squared error is kept.
template <int bits>
void encode_channels(const float* rows, int32_t head_dim, uint8_t* codes,
                     const ChannelPlanes<uint8_t>& planes) {
  constexpr int kMost = (1 << bits) - 1;
  std::vector<float> middles(static_cast<size_t>(head_dim));
  std::vector<float> halves(static_cast<size_t>(head_dim));
  float farthest = 0;
  float widest = 0;
  for (int32_t d = 0; d < head_dim; ++d) {
    float low = rows[d];
    float high = rows[d];
    for (int32_t t = 1; t < kBlockTokens; ++t) {
      low = std::min(low, rows[int64_t{t} * head_dim + d]);
      high = std::max(high, rows[int64_t{t} * head_dim + d]);
    }
    const auto i = static_cast<size_t>(d);
    middles[i] = (low + high) * 0.5f;
    halves[i] = (high - low) * 0.5f;
    farthest = std::max(farthest, std::fabs(middles[i]));
    widest = std::max(widest, halves[i]);
  }
  const auto step_of = [](float share, float half) {
    return std::max(2.0f * share * half / static_cast<float>(kMost), kLeastScale);
  };
  const uint16_t zstep_bits = f32_to_f16(farthest / kMostMiddle);
  const float zstep = f16_to_f32(zstep_bits);
  const int e0 = grid_base(step_of(kShares.part[0], widest));
  store_head(planes.head, zstep_bits, e0);
  for (int32_t d = 0; d < head_dim; ++d) {
    const auto i = static_cast<size_t>(d);
    const float m = zstep == 0.0f
                        ? 0.0f
                        : std::clamp(std::nearbyint(middles[i] / zstep), -kMostMiddle, kMostMiddle);
    planes.m[d] = static_cast<uint8_t>(static_cast<int8_t>(m));
    float least = INFINITY;
    uint8_t best[kBlockTokens] = {};
    for (const float share : kShares.part) {
      const uint8_t byte = grid_byte(step_of(share, halves[i]), e0);
      const float s = grid_scale(byte, e0);
      const float z = m * zstep - s * (0.5f * static_cast<float>(kMost));
      uint8_t tried[kBlockTokens];
      float error = 0;
      for (int32_t t = 0; t < kBlockTokens; ++t) {
        const float y = rows[int64_t{t} * head_dim + d];
        tried[t] = affine_code(y, m * zstep, s, kMost);
        const float off = y - (s * static_cast<float>(tried[t]) + z);
        error += off * off;
      }
      if (!(error < least)) continue;
      least = error;
      planes.s[d] = byte;
      std::copy_n(tried, kBlockTokens, best);
    }
    put_codes<bits>(codes, head_dim, d, best);
  }
}

template <int bits>
void decode_channels(const uint8_t* codes, const ChannelPlanes<const uint8_t>& planes,
                     int32_t head_dim, float* rows) {
  for (int32_t d = 0; d < head_dim; ++d) {
    const ChannelScale c = planes.scale(d, (1 << bits) - 1);
    uint8_t channel[kBlockTokens];
    get_codes<bits>(codes, head_dim, d, channel);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      rows[int64_t{t} * head_dim + d] = c.s * static_cast<float>(channel[t]) + c.z;
  }
}

template <int bits>
int64_t channel_unit_bytes(int32_t head_dim, KvSide side) {
  return code_bytes(bits, head_dim) + channel_plane_bytes(head_dim) +
         (side == KvSide::v ? kFactorBytes : 0);
}

template <int bits>
void channel_encode(const float* rows, int32_t head_dim, KvSide side, uint8_t* unit) {
  uint8_t* planes = unit + code_bytes(bits, head_dim);
  std::vector<float> scaled(rows, rows + int64_t{kBlockTokens} * head_dim);
  if (side == KvSide::v) {
    uint8_t* factors = planes + channel_plane_bytes(head_dim);
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      float* row = scaled.data() + int64_t{t} * head_dim;
      const float squares = ordered_sum(head_dim, [&](int32_t d) { return row[d] * row[d]; });
      const float root = std::sqrt(squares / static_cast<float>(head_dim)) + kRootBias;
      divide_row(row, head_dim, root, factors + 2 * t);
    }
  }
  encode_channels<bits>(scaled.data(), head_dim, unit, channel_planes(planes, head_dim));
}

template <int bits>
void channel_decode(const uint8_t* unit, int32_t head_dim, KvSide side, float* rows) {
  const uint8_t* planes = unit + code_bytes(bits, head_dim);
  decode_channels<bits>(unit, channel_planes(planes, head_dim), head_dim, rows);
  if (side == KvSide::v) multiply_rows(rows, head_dim, planes + channel_plane_bytes(head_dim));
}

template <int bits>
constexpr KvCodec channel_codec(std::string_view name) {
  KvCodec c;
  c.name = name;
  c.head_dim_unit = 64;
  c.unit_bytes = channel_unit_bytes<bits>;
  c.encode = channel_encode<bits>;
  c.decode = channel_decode<bits>;
  return c;
}

}  // namespace

const KvCodec kC5 = channel_codec<5>("c5");
const KvCodec kC4 = channel_codec<4>("c4");

}  // namespace braid::kv
