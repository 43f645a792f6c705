// prefix_hash.h -- names of token prefixes: a chain of 128-bit hashes, one per full block.
//
//   h(-1) = xxh3_128(seed text)         everything that must not be mixed: model, formats, tenant salt
//   h(i)  = xxh3_128(h(i-1), tokens of block i)
// so the hash of a block names the whole prefix that ends with it. Whoever finds a block by its hash also
// compares the token ids (block_pool.h): an accidental or made collision costs a miss, never a wrong answer.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>

#include "ops/batch.h"

namespace braid {

struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PrefixHash&) const = default;
};

inline PrefixHash hash_bytes(const void* data, size_t size_bytes) {
  const XXH128_hash_t h = XXH3_128bits(data, size_bytes);
  return {h.low64, h.high64};
}

// The empty prefix of everything that shares `text`.
inline PrefixHash seed_hash(std::string_view text) { return hash_bytes(text.data(), text.size()); }

// The prefix `parent` followed by one full block.
inline PrefixHash chain_hash(const PrefixHash& parent, const int32_t* tokens) {
  unsigned char bytes[sizeof(PrefixHash) + kBlockTokens * sizeof(int32_t)];
  std::memcpy(bytes, &parent, sizeof parent);
  std::memcpy(bytes + sizeof parent, tokens, kBlockTokens * sizeof(int32_t));
  return hash_bytes(bytes, sizeof bytes);
}

struct PrefixHashKey {
  size_t operator()(const PrefixHash& h) const { return static_cast<size_t>(h.low ^ h.high); }
};

}  // namespace braid
