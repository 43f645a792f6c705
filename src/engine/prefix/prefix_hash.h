// prefix_hash.h -- names of token prefixes: a chain of SHA-256, one hash per full block.
//
//   h(-1) = HMAC-SHA256(secret, text)     text: model, formats, tenant salt
//   h(i)  = SHA-256(h(i-1), tokens of block i)
// Collisions cannot be constructed, and without the secret hashes cannot be guessed. The secret
// belongs to a process or a shared directory (disk_store.h). Thread-safe. Throws std::bad_alloc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ops/batch.h"

namespace braid {

struct PrefixHash {
  std::array<uint64_t, 4> words{};
  bool operator==(const PrefixHash&) const = default;
};

using PrefixSecret = std::array<std::byte, 32>;

// Aborts if the system has no random source.
PrefixSecret random_secret();

PrefixHash seed_hash(std::string_view text, const PrefixSecret& secret = {});

// `parent` followed by `tokens`: one full block, or the tail after the last one.
PrefixHash chain_hash(const PrefixHash& parent, std::span<const int32_t> tokens);

struct PrefixHashKey {
  size_t operator()(const PrefixHash& h) const { return static_cast<size_t>(h.words[0]); }
};

}  // namespace braid
