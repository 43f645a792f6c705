// channel.cpp -- c6, c5, c4, c3: a scale and a zero for each channel over the 32 cells of a block.
//
//   x[t][d] = r[t] * (s[d] * code[t][d] + z[d])
//
// Channels of keys differ in mean and width, but k_norm makes rows equally long, so scales per
// channel fit better than scales per row; r of K is 1. A long row of V would widen all channels of
// its block, so r of V is the row's root mean square.
// Planes: codes, the channel planes (channel_planes.h), and for V r f16 [32].
#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"
#include "ops/kv/rotation.h"

namespace braid::kv {

namespace {

constexpr ChannelShares kShares;

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
  encode_channels<bits>(scaled.data(), head_dim, kShares.part, unit,
                        channel_planes(planes, head_dim));
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
  c.by_block = true;
  c.head_dim_unit = 64;
  c.unit_bytes = channel_unit_bytes<bits>;
  c.encode = channel_encode<bits>;
  c.decode = channel_decode<bits>;
  return c;
}

}  // namespace

const KvCodec kC6 = channel_codec<6>("c6");
const KvCodec kC5 = channel_codec<5>("c5");
const KvCodec kC4 = channel_codec<4>("c4");
const KvCodec kC3 = channel_codec<3>("c3");

}  // namespace braid::kv
