// kvarn.cpp -- kvarn4, kvarn3: rotated, both axes balanced by iterations, codes along one of them.
//
// KVarN as published, but in blocks of 32 cells instead of tiles of 128, with channel planes of a
// byte:
//   K  x[t][d] = T[t] * (S[d] * code + Z[d])     scale and zero per channel, a factor per row
//   V  x[t][d] = C[d] * (S[t] * code + Z[t])     scale and zero per row, a factor per channel
// after H of the whole head. The factors come from 16 rounds that divide columns, then rows by
// their standard deviation; the round with the least imbalance is kept. For comparison: the c
// formats are better on normed keys.
// Planes: codes; K: the channel planes, T f16 [32]; V: C u8 [head_dim] on the grid of scales, head
// 16 bytes (e0), S f16 [32], Z f16 [32].
#include <array>

#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"
#include "ops/kv/rotation.h"

namespace braid::kv {

namespace {

constexpr int kRounds = 16;
constexpr float kLeastDeviation = 1e-3f;
constexpr float kMostDeviation = 1e3f;
// exp of the published limits of a log scale, -0.3 and 10.
constexpr float kLeastFactor = 0.74081822f;
constexpr float kMostFactor = 22026.465f;

struct Factors {
  std::vector<float> cells;
  std::vector<float> channels;
};

template <typename Value>
float deviation(int32_t n, Value value) {
  const float mean = ordered_sum(n, value) / static_cast<float>(n);
  const float squares = ordered_sum(n, [&](int32_t i) {
    const float off = value(i) - mean;
    return off * off;
  });
  return std::clamp(std::sqrt(squares / static_cast<float>(n - 1)), kLeastDeviation,
                    kMostDeviation);
}

// Standard deviations of channels over the cells, or of cells over the channels, without factors.
std::vector<float> deviations(const float* rows, int32_t head_dim, const Factors& f,
                              bool of_channels) {
  const auto value = [&](int32_t t, int32_t d) {
    return rows[int64_t{t} * head_dim + d] /
           (f.cells[static_cast<size_t>(t)] * f.channels[static_cast<size_t>(d)]);
  };
  std::vector<float> out(static_cast<size_t>(of_channels ? head_dim : kBlockTokens));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    out[i] = of_channels ? deviation(kBlockTokens, [&](int32_t t) { return value(t, at); })
                         : deviation(head_dim, [&](int32_t d) { return value(at, d); });
  }
  return out;
}

float imbalance(const std::vector<float>& deviations) {
  const auto [least, most] = std::minmax_element(deviations.begin(), deviations.end());
  return *most / *least;
}

void multiply(std::vector<float>& factors, const std::vector<float>& by) {
  for (size_t i = 0; i < factors.size(); ++i)
    factors[i] = std::clamp(factors[i] * by[i], kLeastFactor, kMostFactor);
}

// Columns, the first axis of a round, are cells of K and channels of V.
Factors balance(const float* rows, int32_t head_dim, KvSide side) {
  const bool columns_are_channels = side == KvSide::v;
  Factors now{std::vector<float>(kBlockTokens, 1.0f),
              std::vector<float>(static_cast<size_t>(head_dim), 1.0f)};
  Factors best;
  float least = INFINITY;
  for (int round = 0; round <= kRounds; ++round) {
    const auto columns = deviations(rows, head_dim, now, columns_are_channels);
    const float total =
        imbalance(columns) + imbalance(deviations(rows, head_dim, now, !columns_are_channels));
    if (total <= least) {
      least = total;
      best = now;
    }
    multiply(columns_are_channels ? now.channels : now.cells, columns);
    const auto lines = deviations(rows, head_dim, now, !columns_are_channels);
    multiply(columns_are_channels ? now.cells : now.channels, lines);
  }
  return best;
}

template <int bits>
int64_t kvarn_unit_bytes(int32_t head_dim, KvSide side) {
  return code_bytes(bits, head_dim) + (side == KvSide::k
                                           ? channel_plane_bytes(head_dim) + kFactorBytes
                                           : head_dim + kHeadBytes + 2 * kFactorBytes);
}

template <int bits>
void encode_keys(std::vector<float>& rows, const Factors& f, int32_t head_dim, uint8_t* unit) {
  uint8_t* planes = unit + code_bytes(bits, head_dim);
  uint8_t* cells = planes + channel_plane_bytes(head_dim);
  for (int32_t t = 0; t < kBlockTokens; ++t)
    divide_row(rows.data() + int64_t{t} * head_dim, head_dim, f.cells[static_cast<size_t>(t)],
               cells + 2 * t);
  constexpr std::array<float, 1> kWhole = {1.0f};
  encode_channels<bits>(rows.data(), head_dim, kWhole, unit, channel_planes(planes, head_dim));
}

template <int bits>
void encode_values(std::vector<float>& rows, const Factors& f, int32_t head_dim, uint8_t* unit) {
  constexpr int kMost = (1 << bits) - 1;
  uint8_t* channels = unit + code_bytes(bits, head_dim);
  uint8_t* head = channels + head_dim;
  uint8_t* scales = head + kHeadBytes;
  uint8_t* zeros = scales + kFactorBytes;
  const int e0 = grid_base(*std::max_element(f.channels.begin(), f.channels.end()));
  store_head(head, 0, e0);
  for (int32_t d = 0; d < head_dim; ++d) {
    channels[d] = grid_byte(f.channels[static_cast<size_t>(d)], e0);
    const float factor = grid_scale(channels[d], e0);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      rows[static_cast<size_t>(t * head_dim + d)] /= factor;
  }
  std::vector<uint8_t> codes(rows.size());
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    const float* row = rows.data() + int64_t{t} * head_dim;
    const auto [low, high] = std::minmax_element(row, row + head_dim);
    // Not subnormal. Equal values of a row decode exactly with any scale.
    store_half(scales + 2 * t, std::max((*high - *low) / static_cast<float>(kMost), 0x1p-14f));
    store_half(zeros + 2 * t, *low);
    const float s = load_half(scales + 2 * t);
    const float z = load_half(zeros + 2 * t);
    for (int32_t d = 0; d < head_dim; ++d)
      codes[static_cast<size_t>(d * kBlockTokens + t)] =
          affine_code(row[d], z + s * (0.5f * kMost), s, kMost);
  }
  for (int32_t d = 0; d < head_dim; ++d)
    put_codes<bits>(unit, head_dim, d, codes.data() + int64_t{d} * kBlockTokens);
}

template <int bits>
void kvarn_encode(const float* rows, int32_t head_dim, KvSide side, uint8_t* unit) {
  std::vector<float> rotated(rows, rows + int64_t{kBlockTokens} * head_dim);
  for (int32_t t = 0; t < kBlockTokens; ++t)
    hadamard(rotated.data() + int64_t{t} * head_dim, head_dim);
  const Factors f = balance(rotated.data(), head_dim, side);
  side == KvSide::k ? encode_keys<bits>(rotated, f, head_dim, unit)
                    : encode_values<bits>(rotated, f, head_dim, unit);
}

template <int bits>
void kvarn_decode(const uint8_t* unit, int32_t head_dim, KvSide side, float* rows) {
  const uint8_t* planes = unit + code_bytes(bits, head_dim);
  if (side == KvSide::k) {
    decode_channels<bits>(unit, channel_planes(planes, head_dim), head_dim, rows);
    multiply_rows(rows, head_dim, planes + channel_plane_bytes(head_dim));
    return;
  }
  const uint8_t* head = planes + head_dim;
  const uint8_t* scales = head + kHeadBytes;
  const uint8_t* zeros = scales + kFactorBytes;
  for (int32_t d = 0; d < head_dim; ++d) {
    const float factor = grid_scale(planes[d], load_base(head));
    uint8_t codes[kBlockTokens];
    get_codes<bits>(unit, head_dim, d, codes);
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const float y =
          load_half(scales + 2 * t) * static_cast<float>(codes[t]) + load_half(zeros + 2 * t);
      rows[int64_t{t} * head_dim + d] = y * factor;
    }
  }
}

template <int bits>
constexpr KvCodec kvarn_codec(std::string_view name) {
  KvCodec c;
  c.name = name;
  c.rotation = KvRotation::head;
  c.by_block = true;
  c.head_dim_unit = 64;
  c.unit_bytes = kvarn_unit_bytes<bits>;
  c.encode = kvarn_encode<bits>;
  c.decode = kvarn_decode<bits>;
  return c;
}

}  // namespace

const KvCodec kKvarn4 = kvarn_codec<4>("kvarn4");
const KvCodec kKvarn3 = kvarn_codec<3>("kvarn3");

}  // namespace braid::kv
