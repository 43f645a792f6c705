// grammar_program.h -- a form as a program over bytes: what a schema or a list of tools is compiled to.
//
// The regular parts (words, numbers, patterns, blanks) are automata and dictionaries; what nests is a call;
// bounds are counted. A GrammarMatcher runs the program over an answer's tokens. Every place of a program can
// be completed: what has no finite sentence was left out when it was compiled.
//
// Immutable after finish(), but for what is remembered of tokens (ReachStore, which guards itself); any
// thread.
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
#include "server/automata/byte_automaton.h"
#include "server/grammar/token_trie.h"

namespace braid::server {

// Words of which one comes next, as a tree. Of members (`once`) each comes at most once, in any order.
class WordSet {
 public:
  static constexpr int32_t kNone = -1;
  // Words by their rank: their place in the order of their bytes.
  struct Ranks {
    int32_t begin, end;
    bool empty() const { return begin == end; }
  };

  // Without duplicates. `required`: indices of words; only of members.
  WordSet(const std::vector<std::string>& words, bool once, const std::vector<int32_t>& required,
          GrammarBudget& budget);

  int32_t size() const { return static_cast<int32_t>(required_.size()); }
  bool once() const { return once_; }
  int32_t required_count() const { return required_count_; }
  bool required(int32_t rank) const { return required_[static_cast<size_t>(rank)]; }
  int32_t root() const { return 0; }
  int32_t nodes() const { return static_cast<int32_t>(nodes_.size()); }
  // The node behind `byte`, or kNone.
  int32_t child(int32_t node, uint8_t byte) const;
  // The index of the word that ends at a node, or kNone; its rank.
  int32_t word(int32_t node) const { return nodes_[static_cast<size_t>(node)].word; }
  int32_t rank(int32_t node) const { return nodes_[static_cast<size_t>(node)].begin; }
  // The words that go on from a node.
  Ranks below(int32_t node) const {
    const Node& at = nodes_[static_cast<size_t>(node)];
    return {at.begin + (at.word == kNone ? 0 : 1), at.end};
  }

 private:
  struct Node {
    uint32_t edge = 0, edges = 0;
    int32_t begin = 0, end = 0;  // ranks of the words that end here or go on from here
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
    // Places that wait for bytes:
    literal,     // a: first byte in text, b: bytes
    words,       // a: word set; goes on at target[word]; of members the register has those that came
    automaton,   // a: automaton; b: 1 if the whole answer may end inside it
    other_name,  // b: automaton of names; one that is no word of set a
    characters,  // of a JSON string and the quote behind them; a: bounds; counted in the register
    end,         // the whole sentence is there
    // Steps without bytes:
    fork,      // a: first of b places in forks
    jump,      // a: place
    call,      // a: place; the register is kept and 0 inside
    back,      // from a call
    count,     // the register, up to a
    set,       // the register to a
    at_least,  // goes on if the register is at least a
    below,     // ... below a
    finished,  // ... if all required words of set a have come
    left,      // ... if some word of set a has not come
  };
  Op op;
  int32_t a = 0, b = 0;
};

// The state of a thread that reads such a name: of the automaton, and the node of the words as long as it is
// written like the beginning of one.
struct OtherName {
  static constexpr int32_t kStates = 2048, kNodes = (1 << 20) - 2;
  int32_t state, node;  // node: kNone beside all words
  static OtherName of(int32_t packed) { return {packed % kStates, packed / kStates - 1}; }
  int32_t packed() const { return (node + 1) * kStates + state; }
};

// What one token can do from a state of an automaton.
struct Reach {
  std::vector<uint64_t> bits;  // tokens that it takes whole; or, if they are few:
  std::vector<int32_t> ids;
  std::vector<uint32_t> exits;  // nodes behind which it has accepted and tokens go on

  // Returns what it costs in a matcher's steps.
  int64_t set_tokens(std::span<uint64_t> out) const {
    for (size_t i = 0; i < std::min(out.size(), bits.size()); ++i) out[i] |= bits[i];
    for (const int32_t id : ids) out[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    return static_cast<int64_t>(bits.size() / 64 + ids.size() / 8);
  }
  int64_t bytes() const {
    return static_cast<int64_t>(bits.size() * 8 + ids.size() * 4 + exits.size() * 4 + 128);
  }
};

// What all forms of one vocabulary remember together. Thread-safe.
struct ReachMemory {
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  std::atomic<int64_t> bytes{0};
};

// Remembers them, as far as its own bound and that of all forms allow; what is not remembered is found again.
// Thread-safe; no lock is held for longer than a look or a note takes.
class ReachStore {
 public:
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;
  explicit ReachStore(std::shared_ptr<ReachMemory> memory) : memory_(std::move(memory)) {}
  ~ReachStore() { forget(); }
  ReachStore(const ReachStore&) = delete;
  ReachStore& operator=(const ReachStore&) = delete;
  // Null: `steps`, which counts nodes of the tree, comes above `most` before it is found.
  std::shared_ptr<const Reach> of(const Automaton& automaton, int32_t state, const TokenTrie& trie,
                                  int64_t& steps, int64_t most);
  // Those of the first states, up to `nodes` nodes of the tree walked.
  void prepare(const Automaton& automaton, const TokenTrie& trie, int64_t nodes);
  // Gives back what it has.
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

// Automata that all forms of one vocabulary share, with what is remembered of them. Thread-safe.
class SharedAutomata {
 public:
  struct Entry {
    explicit Entry(std::shared_ptr<ReachMemory> memory) : reach(std::move(memory)) {}
    Automaton automaton;
    ReachStore reach;
  };
  // Of these automata and of those that forms have alone.
  const std::shared_ptr<ReachMemory>& memory() const { return memory_; }
  // Makes it if `name` is new; `make` must give the same every time.
  template <typename Make>
  std::shared_ptr<Entry> find(const std::string& name, const TokenTrie& trie, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(name); found != known_.end()) return found->second;
    }
    // Takes long, so nobody waits for it; of two that are made at once the first stays.
    auto entry = std::make_shared<Entry>(memory_);
    entry->automaton = make();
    entry->reach.prepare(entry->automaton, trie, INT64_MAX);
    const std::lock_guard lock(mutex_);
    return known_.try_emplace(name, std::move(entry)).first->second;
  }

 private:
  const std::shared_ptr<ReachMemory> memory_ = std::make_shared<ReachMemory>();
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> known_;  // a handful
};

class GrammarProgram {
 public:
  using Op = Instruction::Op;
  struct Bounds {
    int64_t least, most;  // most < 0: none
  };

  // What it was compiled for.
  GrammarProgram(std::shared_ptr<const TokenTrie> trie, std::shared_ptr<SharedAutomata> shared)
      : trie_(std::move(trie)),
        shared_(std::move(shared)),
        reach_(std::make_unique<ReachStore>(shared_->memory())) {}

  // ---- Making one ----
  int32_t here() const { return static_cast<int32_t>(code_.size()); }
  int32_t add(Op op, int32_t a = 0, int32_t b = 0) {
    code_.push_back({op, a, b});
    return here() - 1;
  }
  Instruction& at(int32_t place) { return code_[static_cast<size_t>(place)]; }
  void literal(std::string_view text);
  void fork(const std::vector<int32_t>& places);
  // A fork whose ways are told one after the other.
  struct Fork {
    size_t next, end;  // in forks_
  };
  Fork fork(size_t ways);
  // The next way begins here, or at `place`.
  void way(Fork& fork) { way(fork, here()); }
  void way(Fork& fork, int32_t place) {
    BRAID_CHECK(fork.next < fork.end);
    forks_[fork.next++] = place;
  }
  // A name of shared automaton `name` that is none of the words: bytes that words and names have in common
  // are read by both until one of them ends.
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
      automata_.push_back({std::shared_ptr<const Automaton>(entry, &entry->automaton), &entry->reach});
    }
    return found->second;
  }
  void set_start(int32_t place) { start_ = place; }
  // The last of making it. Looks at what tokens can do where automata begin, so that the first answer need
  // not. Charged to nobody.
  void finish();

  // ---- Running it ----
  int32_t start() const { return start_; }
  const Instruction& code(int32_t place) const { return code_[static_cast<size_t>(place)]; }
  std::string_view text() const { return text_; }
  std::span<const int32_t> forks() const { return forks_; }
  const WordSet& words(int32_t set) const { return word_sets_[static_cast<size_t>(set)]; }
  int32_t word_target(int32_t set, int32_t word) const {
    return word_targets_[static_cast<size_t>(set)][static_cast<size_t>(word)];
  }
  const Automaton& automaton(int32_t index) const { return *automata_[static_cast<size_t>(index)].automaton; }
  std::shared_ptr<const Reach> reach(int32_t automaton, int32_t state, int64_t& steps, int64_t most) const {
    const Part& part = automata_[static_cast<size_t>(automaton)];
    return part.reach->of(*part.automaton, state, *trie_, steps, most);
  }
  // What it alone remembers of tokens is given back, and found again when it is needed.
  void forget_reach() const { reach_->forget(); }
  const Bounds& bounds(int32_t index) const { return bounds_[static_cast<size_t>(index)]; }
  const TokenTrie& trie() const { return *trie_; }
  // Of memory that it keeps, without what is remembered of tokens.
  int64_t bytes() const { return bytes_; }
  void set_bytes(int64_t bytes) { bytes_ = bytes; }
  // Tools whose arguments follow their schema.
  const std::set<std::string, std::less<>>& held_tools() const { return held_tools_; }
  void hold_tool(std::string name) { held_tools_.insert(std::move(name)); }

 private:
  struct Part {
    std::shared_ptr<const Automaton> automaton;
    ReachStore* reach;  // lives as long as the automaton does
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
