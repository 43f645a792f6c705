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
#include "server/grammar/grammar_program.h"

namespace braid::server {

class GrammarCache {
 public:
  static constexpr int64_t kMaxBytes = int64_t{128} << 20;
  static constexpr size_t kMaxEntries = 4096;

  using Made = ApiResult<std::shared_ptr<const GrammarProgram>>;

  explicit GrammarCache(const Tokenizer& tokenizer)
      : trie_(std::make_shared<const TokenTrie>(tokenizer)), shared_(std::make_shared<SharedAutomata>()) {}

  // What `description`, all that `make` depends on, was compiled to.
  Made find(const std::string& description, const std::function<Made()>& make);

  // An empty one, to be filled.
  GrammarProgram program() const { return {trie_, shared_}; }
  const TokenTrie& trie() const { return *trie_; }

  int64_t bytes() const;
  // What is remembered of tokens, for all forms together; at most ReachMemory::kMaxBytes.
  int64_t remembered_bytes() const { return shared_->memory()->bytes; }
  size_t entries() const;

 private:
  struct Entry {
    std::string key;
    Made made;
    int64_t bytes;
  };
  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<SharedAutomata> shared_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last first
  std::map<std::string, std::list<Entry>::iterator> index_;
  int64_t bytes_ = 0;
};

}  // namespace braid::server
