// token_grammar.h -- a language of bytes, followed token by token.
//
// A grammar is rules over sets of bytes (byte_grammar.h compiles schemas to them). What is known of the text
// so far is a set of stacks of positions in the rules; equal sets are one state with a number, and where a
// byte leads from a state is found out once and remembered. Which tokens a state allows comes from one walk
// over the tree of all tokens, remembered too; inside a JSON string, say, every token costs a look-up.
//
// Not thread-safe: after it was made, one thread (the engine's) uses a TokenGrammar, for any number of
// answers.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizer.h"

namespace braid::server {

// All tokens of a vocabulary as a tree of their bytes, in depth-first order. Immutable.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);

  struct Node {
    uint32_t end;       // index behind the last node of its subtree
    uint32_t first_id;  // its tokens are ids()[first_id, first_id + count)
    uint16_t depth;     // bytes, from 1
    uint16_t count;
    uint8_t byte;
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> ids() const { return ids_; }
  int32_t vocabulary() const { return vocabulary_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
  int32_t vocabulary_ = 0;
};

using ByteSet = std::bitset<256>;

// Rules that refer to each other. Every rule is a choice of sequences; a sequence is of byte sets and rules.
class ByteGrammar {
 public:
  using Rule = int32_t;
  struct Symbol {
    enum class Kind : uint8_t { bytes, rule, end } kind;
    int32_t index;  // of the set or the rule
  };
  using Sequence = std::vector<Symbol>;

  Rule add_rule();
  // A rule without sequences matches nothing.
  void add(Rule rule, Sequence sequence);

  static Symbol ref(Rule rule) { return {Symbol::Kind::rule, rule}; }
  Symbol bytes(const ByteSet& set);
  Symbol byte(uint8_t byte) { return bytes(ByteSet().set(byte)); }
  Symbol range(uint8_t low, uint8_t high);
  void literal(Sequence& out, std::string_view text);

  // Whether each of these rules has some finite sentence: not so if it cannot but refer to itself.
  bool have_sentences(std::span<const Rule> wanted) const;

  void set_root(Rule root) { root_ = root; }
  Rule root() const { return root_; }
  // What has been added so far, as a measure of size.
  size_t symbols() const { return symbols_.size(); }

 private:
  friend class TokenGrammar;
  std::vector<std::vector<uint32_t>> rules_;  // starts of sequences in symbols_
  std::vector<Symbol> symbols_;               // sequences, each closed by `end`
  std::vector<ByteSet> sets_;
  std::unordered_map<std::bitset<256>, int32_t> set_index_;
  Rule root_ = 0;
};

class TokenGrammar {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;

  TokenGrammar(ByteGrammar grammar, std::shared_ptr<const TokenTrie> trie);

  State start() const { return start_; }
  State next(State state, uint8_t byte) const;
  State next(State state, std::string_view bytes) const;
  // The text so far is a whole sentence of the language.
  bool accepts(State state) const;
  // Sets the bits of allowed tokens.
  void allowed(State state, std::span<uint64_t> bits) const;

  // States made so far; bounded.
  size_t states() const { return states_.size(); }

  // Rules inside rules before a byte is reached.
  static constexpr int kMaxClosureDepth = 5000;
  static constexpr size_t kMaxStates = 50'000;
  static constexpr size_t kMaxMasks = 512;

 private:
  struct Frame {  // a position to go on from, and what follows it
    uint32_t symbol;
    int32_t parent;  // index of a frame; -1: nothing follows
  };
  struct StateData {
    std::vector<int32_t> frames;  // sorted; each stands at a byte set
    bool accepts = false;
    std::unique_ptr<std::array<State, 256>> next;  // kUnknown until asked for
  };
  static constexpr State kUnknown = -2;

  int32_t frame(uint32_t symbol, int32_t parent) const;
  void close(uint32_t symbol, int32_t parent, int depth, std::vector<int32_t>& out, bool& accepts) const;
  State state_of(std::vector<int32_t> frames, bool accepts) const;
  State step(State state, uint8_t byte) const;

  ByteGrammar grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  mutable std::vector<Frame> frames_;
  mutable std::unordered_map<uint64_t, int32_t> frame_index_;
  mutable std::unordered_set<uint64_t> visited_;  // positions of one closure: rules may refer to themselves
  mutable std::vector<StateData> states_;
  mutable std::unordered_map<std::string, State> state_index_;
  mutable std::unordered_map<State, std::vector<uint64_t>> masks_;
  State start_ = kDead;
};

}  // namespace braid::server
