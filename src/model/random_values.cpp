// random_values.cpp -- see random_values.h.
#include "model/random_values.h"

#include <algorithm>
#include <span>

#include "gguf/block_layouts.h"

namespace braid {
namespace {

// Xorshift: cheap, and the same on every machine.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  // About normal, deviation 1, without library functions, whose results vary.
  float normal() { return uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1); }

 private:
  uint64_t state_;
};

constexpr uint64_t kPoolPieces = 512;
constexpr uint64_t kPieceElements = 256;

}  // namespace

const RandomPools::Pool& RandomPools::get(GgmlType type, float deviation) {
  Pool& pool = pools_[{static_cast<uint32_t>(type), deviation}];
  if (!pool.bytes.empty()) return pool;
  pool.piece_bytes = kPieceElements / block_elems(type) * block_bytes(type);
  pool.bytes.resize(pool.piece_bytes * kPoolPieces);
  Noise noise(static_cast<uint64_t>(type) + 77);
  std::array<float, kPieceElements> values;
  for (uint64_t i = 0; i < kPoolPieces; ++i) {
    for (float& v : values) v = deviation * noise.normal();
    encode_row(type, values.data(), pool.bytes.data() + i * pool.piece_bytes, kPieceElements);
  }
  return pool;
}

Status write_random_matrix(const RandomTensor& tensor, GgmlType type, uint64_t seed,
                           RandomPools& pools, const ByteSink& sink) {
  const RandomPools::Pool& pool = pools.get(type, tensor.deviation);
  uint64_t left_bytes = *row_bytes(type, tensor.ne[0]) * tensor.ne[1] * tensor.ne[2];
  Noise noise(seed);
  std::vector<std::byte> buffer;
  constexpr size_t kBufferBytes = 1 << 20;
  buffer.reserve(kBufferBytes + pool.piece_bytes);
  while (left_bytes > 0) {
    buffer.clear();
    while (buffer.size() < kBufferBytes && buffer.size() < left_bytes) {
      const std::byte* piece = pool.bytes.data() + noise.bits() % kPoolPieces * pool.piece_bytes;
      buffer.insert(buffer.end(), piece, piece + pool.piece_bytes);
    }
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), left_bytes);
    BRAID_TRY(sink(std::span(buffer).first(bytes)));
    left_bytes -= bytes;
  }
  return {};
}

Status write_random_vector(const RandomTensor& tensor, uint64_t seed, const ByteSink& sink) {
  Noise noise(seed);
  std::vector<float> values(tensor.ne[0] * tensor.ne[1] * tensor.ne[2]);
  for (float& v : values) v = noise.uniform(tensor.low, tensor.high);
  return sink(std::as_bytes(std::span<const float>(values)));
}

}  // namespace braid
