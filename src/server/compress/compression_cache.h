// compression_cache.h -- what long texts were shortened to, so that a text is shortened once.
// Least recently used entries go when the bytes are used up. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace braid::server {

// SHA-256 of all that the entry depends on, and of whose it is: no one else finds it.
using CompressionKey = std::array<unsigned char, 32>;

// A key that continues `before` by a text and a byte that tells kinds of texts apart.
CompressionKey next_key(const CompressionKey& before, unsigned char kind, std::string_view text);

class CompressionCache {
 public:
  explicit CompressionCache(size_t most_bytes) : most_bytes_(most_bytes) {}

  std::optional<std::string> find(const CompressionKey& key);
  // Replaces an older entry. A text that is larger than the cache is not kept.
  void put(const CompressionKey& key, std::string text);

  size_t bytes() const;
  size_t entries() const;

 private:
  struct Entry {
    CompressionKey key;
    std::string text;
  };
  static size_t bytes_of(const Entry& entry);

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;                                     // guarded by mutex_; newest first
  std::map<CompressionKey, std::list<Entry>::iterator> by_key_;  // guarded by mutex_
  size_t bytes_ = 0;                                             // guarded by mutex_
};

}  // namespace braid::server
