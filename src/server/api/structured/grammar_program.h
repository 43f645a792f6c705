// grammar_program.h -- a compiled grammar: a schema or a list of tools as a program over bytes.
// Regular parts (words, numbers, patterns, blanks) are automata and dictionaries, nesting is a
// call, bounds are counted. A GrammarMatcher runs it. Every place can be completed: parts without a
// finite sentence are removed at compilation. Immutable after finish(), except the thread-safe
// ReachStore; any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/api/structured/byte_automaton.h"
#include "server/api/structured/token_trie.h"

namespace braid::server {

// A trie of words, one of which comes next. `once`: each at most once, in any order.
class WordSet {
 public:
  static constexpr int32_t kNone = -1;
  // Ranks: positions in byte order.
  struct Ranks {
    int32_t begin, end;
    bool empty() const { return begin == end; }
  };

  // `words` must be unique. `required`: indices of words, if `once`.
  WordSet(const std::vector<std::string>& words, bool once, const std::vector<int32_t>& required,
          GrammarBudget& budget);

  int32_t size() const { return static_cast<int32_t>(required_.size()); }
  bool once() const { return once_; }
  int32_t required_count() const { return required_count_; }
  bool required(int32_t rank) const { return required_[static_cast<size_t>(rank)]; }
  int32_t root() const { return 0; }
  int32_t nodes() const { return static_cast<int32_t>(nodes_.size()); }
  int32_t child(int32_t node, uint8_t byte) const;
  // The index of the word that ends at a node, or kNone.
  int32_t word(int32_t node) const { return nodes_[static_cast<size_t>(node)].word; }
  int32_t rank(int32_t node) const { return nodes_[static_cast<size_t>(node)].begin; }
  // The words that continue from a node.
  Ranks below(int32_t node) const {
    const Node& at = nodes_[static_cast<size_t>(node)];
    return {at.begin + (at.word == kNone ? 0 : 1), at.end};
  }

 private:
  struct Node {
    uint32_t edge = 0, edges = 0;
    int32_t begin = 0, end = 0;  // ranks of the words that end at or continue from this node
    int32_t word = kNone;
  };
  bool once_;
  int32_t required_count_;
  std::vector<bool> required_;  // by rank
  std::vector<Node> nodes_;
  std::vector<uint8_t> edge_bytes_;
  std::vector<int32_t> edge_nodes_;
};

struct Instruction {
  enum class Op : uint8_t {
    // These read bytes:
    literal,    // a: first byte in text, b: bytes
    words,      // a: word set; continues at target[word]; `once`: the register has the read members
    automaton,  // a: automaton; b: 1 if the answer may end inside
    other_name,  // b: automaton of names; a name not in word set a
    characters,  // of a JSON string, and its closing quote; a: bounds; counted in the register
    end,         // end of the sentence
    // These do not:
    fork,      // a: first of b places in forks
    jump,      // a: place
    call,      // a: place; saves the register, which is 0 inside
    back,      // returns from a call
    count,     // increments the register, up to a
    set,       // sets the register to a
    at_least,  // continues if the register is at least a
    below,     // ... below a
    finished,  // ... if all required words of set a were read
    left,      // ... if a word of set a was not read
  };
  Op op;
  int32_t a = 0, b = 0;
};

// The packed state of an other_name thread: the automaton's, and the word node of its prefix.
struct OtherName {
  static constexpr int32_t kStates = 2048, kNodes = (1 << 20) - 2;
  int32_t state, node;  // node: kNone if the name is not a prefix of a word
  static OtherName of(int32_t packed) { return {packed % kStates, packed / kStates - 1}; }
  int32_t packed() const { return (node + 1) * kStates + state; }
};

// The effect of every token from one state of an automaton.
struct Reach {
  std::vector<uint64_t> bits;  // tokens accepted whole; if few, `ids` instead
  std::vector<int32_t> ids;
  std::vector<uint32_t> exits;  // trie nodes where it has accepted and tokens continue

  // Returns the cost in matcher steps.
  int64_t set_tokens(std::span<uint64_t> out) const {
    for (size_t i = 0; i < std::min(out.size(), bits.size()); ++i) out[i] |= bits[i];
    for (const int32_t id : ids) out[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    return static_cast<int64_t>(bits.size() / 64 + ids.size() / 8);
  }
  int64_t bytes() const {
    return static_cast<int64_t>(bits.size() * 8 + ids.size() * 4 + exits.size() * 4 + 128);
  }
};

// Bytes of all ReachStores of a vocabulary. Thread-safe.
struct ReachMemory {
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  std::atomic<int64_t> bytes{0};
};

// A cache of Reach within its own limit and that of ReachMemory. Thread-safe, with short locks.
class ReachStore {
 public:
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;
  explicit ReachStore(std::shared_ptr<ReachMemory> memory) : memory_(std::move(memory)) {}
  ~ReachStore() { forget(); }
  ReachStore(const ReachStore&) = delete;
  ReachStore& operator=(const ReachStore&) = delete;
  // Null if computing it takes `steps` (trie nodes) above `most`.
  std::shared_ptr<const Reach> of(const Automaton& automaton, int32_t state, const TokenTrie& trie,
                                  int64_t& steps, int64_t most);
  // Computes the first states, up to `nodes` trie nodes.
  void prepare(const Automaton& automaton, const TokenTrie& trie, int64_t nodes);
  void forget();

 private:
  using Key = std::pair<const Automaton*, int32_t>;
  std::shared_ptr<const Reach> known(const Key& key) const;
  bool keep(const Key& key, std::shared_ptr<const Reach> reach);

  std::shared_ptr<ReachMemory> memory_;
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Reach>> known_;
  int64_t bytes_ = 0;
};

// Automata shared by all grammars of a vocabulary, and their caches. Thread-safe.
class SharedAutomata {
 public:
  struct Entry {
    explicit Entry(std::shared_ptr<ReachMemory> memory) : reach(std::move(memory)) {}
    Automaton automaton;
    ReachStore reach;
  };
  // Also for automata that belong to one grammar.
  const std::shared_ptr<ReachMemory>& memory() const { return memory_; }
  // `make` must return the same automaton for the same name.
  template <typename Make>
  std::shared_ptr<Entry> find(const std::string& name, const TokenTrie& trie, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(name); found != known_.end()) return found->second;
    }
    // Slow, so done without the lock. The first of two concurrent results is kept.
    auto entry = std::make_shared<Entry>(memory_);
    entry->automaton = make();
    entry->reach.prepare(entry->automaton, trie, INT64_MAX);
    const std::lock_guard lock(mutex_);
    return known_.try_emplace(name, std::move(entry)).first->second;
  }

 private:
  const std::shared_ptr<ReachMemory> memory_ = std::make_shared<ReachMemory>();
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> known_;
};

class GrammarProgram {
 public:
  using Op = Instruction::Op;
  struct Bounds {
    int64_t least, most;  // most < 0: no limit
  };

  GrammarProgram(std::shared_ptr<const TokenTrie> trie, std::shared_ptr<SharedAutomata> shared)
      : trie_(std::move(trie)),
        shared_(std::move(shared)),
        reach_(std::make_unique<ReachStore>(shared_->memory())) {}

  int32_t here() const { return static_cast<int32_t>(code_.size()); }
  int32_t add(Op op, int32_t a = 0, int32_t b = 0) {
    code_.push_back({op, a, b});
    return here() - 1;
  }
  Instruction& at(int32_t place) { return code_[static_cast<size_t>(place)]; }
  void literal(std::string_view text);
  void fork(const std::vector<int32_t>& places);
  struct Fork {
    size_t next, end;  // in forks_
  };
  Fork fork(size_t ways);
  void way(Fork& fork) { way(fork, here()); }
  void way(Fork& fork, int32_t place) {
    BRAID_CHECK(fork.next < fork.end);
    forks_[fork.next++] = place;
  }
  // A name of shared automaton `name` that is not a listed word. Both read common prefixes.
  template <typename Make>
  void other_name(int32_t words, const std::string& name, const Make& make) {
    const int32_t automaton = add_shared(name, make);
    BRAID_CHECK(this->automaton(automaton).states() <= OtherName::kStates);
    BRAID_CHECK(this->words(words).nodes() < OtherName::kNodes);
    add(Op::other_name, words, automaton);
  }
  int32_t add_bounds(Bounds bounds) {
    return bounds_.push_back(bounds), static_cast<int32_t>(bounds_.size() - 1);
  }
  int32_t add_words(WordSet set, std::vector<int32_t> targets);
  void set_target(int32_t words, int32_t word, int32_t place) {
    word_targets_[static_cast<size_t>(words)][static_cast<size_t>(word)] = place;
  }
  int32_t add_automaton(Automaton automaton);
  template <typename Make>
  int32_t add_shared(const std::string& name, const Make& make) {
    const auto [found, added] = shared_index_.emplace(name, static_cast<int32_t>(automata_.size()));
    if (added) {
      auto entry = shared_->find(name, *trie_, make);
      automata_.push_back(
          {std::shared_ptr<const Automaton>(entry, &entry->automaton), &entry->reach});
    }
    return found->second;
  }
  void set_start(int32_t place) { start_ = place; }
  // Call last. Precomputes Reach where automata begin, outside the budget.
  void finish();

  int32_t start() const { return start_; }
  const Instruction& code(int32_t place) const { return code_[static_cast<size_t>(place)]; }
  std::string_view text() const { return text_; }
  std::span<const int32_t> forks() const { return forks_; }
  const WordSet& words(int32_t set) const { return word_sets_[static_cast<size_t>(set)]; }
  int32_t word_target(int32_t set, int32_t word) const {
    return word_targets_[static_cast<size_t>(set)][static_cast<size_t>(word)];
  }
  const Automaton& automaton(int32_t index) const {
    return *automata_[static_cast<size_t>(index)].automaton;
  }
  std::shared_ptr<const Reach> reach(int32_t automaton, int32_t state, int64_t& steps,
                                     int64_t most) const {
    const Part& part = automata_[static_cast<size_t>(automaton)];
    return part.reach->of(*part.automaton, state, *trie_, steps, most);
  }
  // Frees its own cached token sets. They are recomputed if needed.
  void forget_reach() const { reach_->forget(); }
  const Bounds& bounds(int32_t index) const { return bounds_[static_cast<size_t>(index)]; }
  const TokenTrie& trie() const { return *trie_; }
  // Memory without cached token sets.
  int64_t bytes() const { return bytes_; }
  void set_bytes(int64_t bytes) { bytes_ = bytes; }
  // Tools whose arguments must match their schema.
  const std::set<std::string, std::less<>>& held_tools() const { return held_tools_; }
  void hold_tool(std::string name) { held_tools_.insert(std::move(name)); }

 private:
  struct Part {
    std::shared_ptr<const Automaton> automaton;
    ReachStore* reach;  // lives as long as the automaton
  };
  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<SharedAutomata> shared_;
  std::unique_ptr<ReachStore> reach_;
  std::vector<Instruction> code_;
  std::string text_;
  std::vector<int32_t> forks_;
  std::vector<Bounds> bounds_;
  std::vector<WordSet> word_sets_;
  std::vector<std::vector<int32_t>> word_targets_;
  std::vector<Part> automata_;
  std::map<std::string, int32_t> shared_index_;
  std::map<std::string, uint32_t> literals_;
  int32_t start_ = 0;
  int64_t bytes_ = 0;
  std::set<std::string, std::less<>> held_tools_;
};

}  // namespace braid::server
