// compression_cache.cpp -- see compression_cache.h.
#include "server/compress/compression_cache.h"

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace braid::server {
namespace {

// Of list, map and allocator, about.
constexpr size_t kEntryBytes = 256;

}  // namespace

CompressionKey next_key(const CompressionKey& before, unsigned char kind, std::string_view text) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
  const uint64_t size = text.size();
  CompressionKey key;
  const bool made = hash != nullptr && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1 &&
                    EVP_DigestUpdate(hash.get(), before.data(), before.size()) == 1 &&
                    EVP_DigestUpdate(hash.get(), &kind, 1) == 1 &&
                    EVP_DigestUpdate(hash.get(), &size, sizeof size) == 1 &&
                    EVP_DigestUpdate(hash.get(), text.data(), text.size()) == 1 &&
                    EVP_DigestFinal_ex(hash.get(), key.data(), nullptr) == 1;
  BRAID_CHECK(made);
  return key;
}

size_t CompressionCache::bytes_of(const Entry& entry) {
  return kEntryBytes + entry.text.capacity();
}

std::optional<std::string> CompressionCache::find(const CompressionKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->text;
}

void CompressionCache::put(const CompressionKey& key, std::string text) {
  text.shrink_to_fit();
  std::list<Entry> added;
  added.push_back({key, std::move(text)});
  const size_t bytes = bytes_of(added.front());
  const std::lock_guard lock(mutex_);
  if (bytes > most_bytes_) return;
  const auto [place, is_new] = by_key_.try_emplace(key, added.begin());
  if (!is_new) {
    bytes_ -= bytes_of(*place->second);
    entries_.erase(place->second);
    place->second = added.begin();
  }
  entries_.splice(entries_.begin(), added);
  bytes_ += bytes;
  while (bytes_ > most_bytes_) {
    bytes_ -= bytes_of(entries_.back());
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

size_t CompressionCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t CompressionCache::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace braid::server
