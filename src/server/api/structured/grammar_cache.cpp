// grammar_cache.cpp -- see grammar_cache.h.
#include "server/api/structured/grammar_cache.h"

#include <openssl/evp.h>

#include <array>
#include <chrono>

namespace braid::server {

namespace {

// Clients choose the hashed text, so collisions must be hard to find.
std::string sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  BRAID_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) ==
              1);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

}  // namespace

GrammarCache::Made GrammarCache::find(const std::string& description,
                                      const std::function<Made()>& make) {
  std::string key = sha256(description);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      ++stats_.hits;
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->made;
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  Made made = make();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  int64_t bytes = 1024;
  if (!made.ok()) bytes += static_cast<int64_t>(made.error().message.size());
  if (made.ok() && *made != nullptr) bytes += (*made)->bytes();
  const std::lock_guard lock(mutex_);
  ++stats_.compiled;
  stats_.refused += made.ok() ? 0 : 1;
  stats_.compile_s += took.count();
  if (index_.contains(key)) return made;
  entries_.push_front({key, made, bytes});
  index_[std::move(key)] = entries_.begin();
  stats_.bytes += bytes;
  make_room();
  return made;
}

// Evicts the least recently used grammars, or only their cached token sets.
void GrammarCache::make_room() {
  while ((stats_.bytes > kMaxBytes || entries_.size() > kMaxEntries) && entries_.size() > 1) {
    stats_.bytes -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  for (auto i = entries_.rbegin();
       i != entries_.rend() && remembered_bytes() > ReachMemory::kMaxBytes / 2; ++i)
    if (i->made.ok() && *i->made != nullptr) (*i->made)->forget_reach();
}

GrammarStats GrammarCache::stats() const {
  const std::lock_guard lock(mutex_);
  GrammarStats out = stats_;
  out.entries = entries_.size();
  out.remembered_bytes = remembered_bytes();
  out.mask_jobs = workers_->jobs();
  return out;
}

}  // namespace braid::server
