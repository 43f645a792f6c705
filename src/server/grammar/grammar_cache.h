// grammar_cache.h -- the compiled forms of one model: what its requests ask for again and again is compiled
// once.
//
// Thread-safe. What compiles runs on the caller's thread without the lock; two that ask for the same new form
// at once may both compile it. Refusals are kept as well, so that a schema beyond the budget costs its work
// once.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/api/api_error.h"
#include "server/api/grammar_stats.h"
#include "server/grammar/grammar_program.h"
#include "server/grammar/mask_workers.h"

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

  // What `description`, all that `make` depends on, was compiled to.
  Made find(const std::string& description, const std::function<Made()>& make);

  // An empty one, to be filled.
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
  // What is remembered of tokens, for all forms together; at most ReachMemory::kMaxBytes.
  int64_t remembered_bytes() const { return shared_->memory()->bytes; }
  void make_room();

  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<SharedAutomata> shared_;
  std::shared_ptr<MaskWorkers> workers_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last first
  std::map<std::string, std::list<Entry>::iterator> index_;
  GrammarStats stats_;  // of them, those that are counted
};

}  // namespace braid::server
