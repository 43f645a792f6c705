// needle_random.h -- random numbers that are the same on every platform and with every library:
// xoshiro256**, seeded by SplitMix64.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace braid::cli {

// The next state of SplitMix64 is `state`; its output is a good hash of the state before.
inline uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class NeedleRandom {
 public:
  // Streams of one seed are independent.
  explicit NeedleRandom(uint64_t seed, uint64_t stream = 0) {
    uint64_t mixed = seed;
    mixed = split_mix(mixed) ^ stream;
    for (uint64_t& word : state_) word = split_mix(mixed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9, shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, n). REQUIRES: n > 0.
  uint64_t below(uint64_t n) {
    const uint64_t unfair = (0 - n) % n;  // 2^64 mod n values would come once too often
    for (;;) {
      const uint64_t drawn = next();
      if (drawn >= unfair) return drawn % n;
    }
  }
  bool one_in(uint64_t n) { return below(n) == 0; }

  template <typename List>
  const auto& pick(const List& list) {
    return list[static_cast<size_t>(below(std::size(list)))];
  }

  // The first digit is not 0.
  std::string digits(int count) {
    std::string out(1, static_cast<char>('1' + below(9)));
    while (--count > 0) out += static_cast<char>('0' + below(10));
    return out;
  }
  std::string hex(int count) {
    std::string out;
    while (count-- > 0) out += "0123456789abcdef"[below(16)];
    return out;
  }

 private:
  std::array<uint64_t, 4> state_{};
};

}  // namespace braid::cli
