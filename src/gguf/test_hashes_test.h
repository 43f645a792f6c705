// test_hashes_test.h -- simple CRC-32 and SHA-256 for tests.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace braid {

inline uint32_t crc32(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < size; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320 & (0u - (crc & 1)));
  }
  return ~crc;
}

// The fraction's first 32 bits of the Root-th root of the first primes: the SHA-256 constants.
inline std::vector<uint32_t> prime_root_bits(int count, int root) {
  std::vector<uint32_t> out;
  for (unsigned candidate = 2; static_cast<int>(out.size()) < count; ++candidate) {
    bool prime = true;
    for (unsigned d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (!prime) continue;
    unsigned __int128 low = 0;
    unsigned __int128 high = static_cast<unsigned __int128>(1) << 37;
    while (high - low > 1) {
      const unsigned __int128 middle = (low + high) / 2;
      const unsigned __int128 square = root == 2 ? middle : middle * middle;
      bool fits;
      if (root == 2) {
        fits = middle * middle <= static_cast<unsigned __int128>(candidate) << 64;
      } else {
        fits = square * middle <= static_cast<unsigned __int128>(candidate) << 96;
      }
      (fits ? low : high) = middle;
    }
    out.push_back(static_cast<uint32_t>(low));
  }
  return out;
}

inline std::string sha256_hex(const void* data, size_t size) {
  static const std::vector<uint32_t> rounds = prime_root_bits(64, 3);
  static const std::vector<uint32_t> start = prime_root_bits(8, 2);
  std::vector<uint32_t> h = start;
  std::vector<uint8_t> message(static_cast<const uint8_t*>(data),
                               static_cast<const uint8_t*>(data) + size);
  message.push_back(0x80);
  while (message.size() % 64 != 56) message.push_back(0);
  for (int i = 7; i >= 0; --i)
    message.push_back(static_cast<uint8_t>(static_cast<uint64_t>(size) * 8 >> 8 * i));
  for (size_t at = 0; at < message.size(); at += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i) {
      for (size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | message[at + 4 * i + k];
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15];
      const uint32_t b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::vector<uint32_t> v = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + rounds[i] + w[i];
      const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string out;
  for (const uint32_t word : h) {
    for (int i = 7; i >= 0; --i) out += "0123456789abcdef"[word >> 4 * i & 15];
  }
  return out;
}

}  // namespace braid
