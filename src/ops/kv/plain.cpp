// plain.cpp -- f32, f16, bf16: unchanged rows, [32 cells][head_dim].
#include <cstring>

#include "ops/kv/code_planes.h"
#include "ops/kv/formats.h"

namespace braid::kv {

namespace {

struct WideNumber {
  static constexpr int64_t kBytes = 4;
  static void put(uint8_t* at, float x) { std::memcpy(at, &x, sizeof x); }
  static float get(const uint8_t* at) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
};
struct HalfNumber {
  static constexpr int64_t kBytes = 2;
  static void put(uint8_t* at, float x) { store_half(at, x); }
  static float get(const uint8_t* at) { return load_half(at); }
};
struct BrainNumber {
  static constexpr int64_t kBytes = 2;
  static void put(uint8_t* at, float x) { store_u16(at, f32_to_bf16(x)); }
  static float get(const uint8_t* at) { return bf16_to_f32(load_u16(at)); }
};

template <typename Number>
constexpr KvCodec plain_codec(std::string_view name) {
  KvCodec c;
  c.name = name;
  c.head_dim_unit = 8;
  c.unit_bytes = [](int32_t head_dim, KvSide) { return kBlockTokens * head_dim * Number::kBytes; };
  c.encode = [](const float* rows, int32_t head_dim, KvSide, uint8_t* unit) {
    for (int64_t i = 0; i < int64_t{kBlockTokens} * head_dim; ++i)
      Number::put(unit + i * Number::kBytes, rows[i]);
  };
  c.decode = [](const uint8_t* unit, int32_t head_dim, KvSide, float* rows) {
    for (int64_t i = 0; i < int64_t{kBlockTokens} * head_dim; ++i)
      rows[i] = Number::get(unit + i * Number::kBytes);
  };
  return c;
}

}  // namespace

const KvCodec kF32 = plain_codec<WideNumber>("f32");
const KvCodec kF16 = plain_codec<HalfNumber>("f16");
const KvCodec kBf16 = plain_codec<BrainNumber>("bf16");

}  // namespace braid::kv
