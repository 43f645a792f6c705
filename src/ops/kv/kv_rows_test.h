// kv_rows_test.h -- rows for tests of KV formats, and a round trip through a format.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gguf/half.h"
#include "ops/batch.h"
#include "ops/kv/kv_codec.h"

namespace braid::kv_test {

inline std::vector<uint16_t> halves_of(const std::vector<float>& x) {
  std::vector<uint16_t> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) bits[i] = f32_to_f16(x[i]);
  return bits;
}

inline std::vector<float> floats_of(const std::vector<uint16_t>& bits) {
  std::vector<float> x(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) x[i] = f16_to_f32(bits[i]);
  return x;
}

class Noise {
 public:
  explicit Noise(uint64_t seed) : bits_(seed) {}
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
  }
  double laplace() {
    const double u = uniform() - 0.5;
    return (u < 0 ? 1 : -1) * std::log(1 - 2 * std::fabs(u));
  }
  uint8_t byte() { return static_cast<uint8_t>(bits_() >> 32); }

 private:
  std::mt19937_64 bits_;
};

template <typename Value>
std::vector<uint16_t> unit_rows(int32_t head_dim, Value value) {
  std::vector<float> x(static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim));
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    for (int32_t d = 0; d < head_dim; ++d)
      x[static_cast<size_t>(t * head_dim + d)] = static_cast<float>(value(t, d));
  }
  return halves_of(x);
}

inline std::vector<uint8_t> encoded(const KvCodec& codec, int32_t head_dim, KvSide side,
                                    const std::vector<uint16_t>& rows,
                                    const uint16_t* k_mean = nullptr) {
  std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(head_dim, side)));
  EXPECT_TRUE(kv_encode(codec, head_dim, side, rows.data(), head_dim, k_mean, unit.data()))
      << codec.name;
  return unit;
}

inline std::vector<float> decoded(const KvCodec& codec, int32_t head_dim, KvSide side,
                                  const std::vector<uint8_t>& unit) {
  std::vector<float> rows(static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim));
  codec.decode(unit.data(), head_dim, side, rows.data());
  for (int32_t t = 0; t < kBlockTokens; ++t)
    kv_unrotate(codec, rows.data() + int64_t{t} * head_dim, head_dim);
  return rows;
}

inline std::vector<float> round_trip(const KvCodec& codec, int32_t head_dim, KvSide side,
                                     const std::vector<uint16_t>& rows) {
  return decoded(codec, head_dim, side, encoded(codec, head_dim, side, rows));
}

struct Error {
  double off = 0;
  double all = 0;
  void add(double is, double was) {
    off += (is - was) * (is - was);
    all += was * was;
  }
  double relative() const { return std::sqrt(off / all); }
};

}  // namespace braid::kv_test
