// prefix_hash.h -- names of token prefixes: a chain of SHA-256, one hash per full block.
//
//   h(-1) = HMAC-SHA256(secret, text)           text: everything that must not be mixed: model, formats, tenant salt
//   h(i)  = SHA-256(h(i-1), tokens of block i)
// So the hash of a block names the whole prefix that ends with it, and equal hashes mean equal prefixes: nobody can make
// two that collide. The secret keeps names from being computed by who does not know it. It is a process's own, or a
// directory's that several processes share (disk_store.h).
//
// Thread-safe. What lacks memory throws std::bad_alloc.
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

// From the system's source of random bytes; stops the program without one.
PrefixSecret random_secret();

// The empty prefix of everything that shares `text`.
PrefixHash seed_hash(std::string_view text, const PrefixSecret& secret = {});

// The prefix `parent` followed by `tokens`: one full block, or fewer for what lies behind the last full one.
PrefixHash chain_hash(const PrefixHash& parent, std::span<const int32_t> tokens);

struct PrefixHashKey {
  size_t operator()(const PrefixHash& h) const { return static_cast<size_t>(h.words[0]); }
};

}  // namespace braid
