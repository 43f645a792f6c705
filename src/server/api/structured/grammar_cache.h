// grammar_cache.h -- the compiled grammars of one model. Thread-safe.
// Compiling runs on the caller's thread without the lock. Two concurrent requests may both compile
// a new grammar. Refusals are cached too, so a schema beyond the budget costs its work once.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/api/api_error.h"
#include "server/api/grammar_stats.h"
#include "server/api/structured/grammar_program.h"
#include "server/api/structured/mask_workers.h"

namespace braid::server {

class GrammarCache {
 public:
  static constexpr int64_t kMaxBytes = int64_t{128} << 20;
  static constexpr size_t kMaxEntries = 4096;
  static constexpr int kMaskThreads = 2;

  using Made = ApiResult<std::shared_ptr<const GrammarProgram>>;

  explicit GrammarCache(const Tokenizer& tokenizer)
      : trie_(std::make_shared<const TokenTrie>(tokenizer)),
        shared_(std::make_shared<SharedAutomata>()),
        workers_(std::make_shared<MaskWorkers>(kMaskThreads)) {}

  // `description` must contain everything that `make` depends on.
  Made find(const std::string& description, const std::function<Made()>& make);

  GrammarProgram program() const { return {trie_, shared_}; }
  const TokenTrie& trie() const { return *trie_; }
  const std::shared_ptr<MaskWorkers>& workers() const { return workers_; }

  GrammarStats stats() const;
  const std::shared_ptr<ReachMemory>& remembered() const { return shared_->memory(); }

 private:
  struct Entry {
    std::string key;
    Made made;
    int64_t bytes;
  };
  // Token sets of all grammars; at most ReachMemory::kMaxBytes.
  int64_t remembered_bytes() const { return shared_->memory()->bytes; }
  void make_room();

  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<SharedAutomata> shared_;
  std::shared_ptr<MaskWorkers> workers_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::map<std::string, std::list<Entry>::iterator> index_;
  GrammarStats stats_;  // of them, those that are counted
};

}  // namespace braid::server
