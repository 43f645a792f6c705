// grammar_cache.cpp -- see grammar_cache.h.
#include "server/grammar/grammar_cache.h"

#include <openssl/evp.h>

#include <array>

namespace braid::server {

namespace {

// Clients choose what is hashed, so that it has to be hard to find two of one hash.
std::string sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  BRAID_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

}  // namespace

GrammarCache::Made GrammarCache::find(const std::string& description, const std::function<Made()>& make) {
  std::string key = sha256(description);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->made;
    }
  }
  Made made = make();
  int64_t bytes = 1024;
  if (!made.ok()) bytes += static_cast<int64_t>(made.error().message.size());
  if (made.ok() && *made != nullptr) bytes += (*made)->bytes();
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return made;
  entries_.push_front({key, made, bytes});
  index_[std::move(key)] = entries_.begin();
  bytes_ += bytes;
  // Forms that were used long ago leave what they remember of tokens to those that are used now.
  const auto full = [&] {
    return bytes_ > kMaxBytes || entries_.size() > kMaxEntries ||
           remembered_bytes() > ReachMemory::kMaxBytes / 2;
  };
  while (full() && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return made;
}

int64_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t GrammarCache::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace braid::server
