// byte_automaton.h -- regular languages of bytes as deterministic automata.
//
// An Automaton is trimmed: from every state some accepting state can be reached, so a text that it has not
// refused can be completed. Immutable after it was made; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "server/automata/grammar_budget.h"

namespace braid::server {

class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  // No state at all: nothing is accepted.
  bool empty() const { return accepts_.empty(); }
  // The start is state 0.
  int32_t next(int32_t state, uint8_t byte) const {
    return next_[static_cast<size_t>(state) * classes_ + class_of_[byte]];
  }
  bool accepts(int32_t state) const { return accepts_[static_cast<size_t>(state)] != 0; }
  // No byte leads on.
  bool last(int32_t state) const { return last_[static_cast<size_t>(state)] != 0; }
  int32_t states() const { return static_cast<int32_t>(accepts_.size()); }
  // Some state takes many different bytes, so that tokens by the thousand may follow it.
  bool wide() const { return wide_; }
  int64_t bytes() const { return static_cast<int64_t>(next_.size() * 4 + accepts_.size() * 2); }

  // Whether `text` is one of its sentences.
  bool takes(std::string_view text) const;
  // Its sentences between quotes; no sentence may hold a quote that is not escaped.
  Automaton quoted() const;

  // A table of 256 columns per state (kDead: refused), state 0 first. Trims it. Empty: beyond the budget.
  static std::optional<Automaton> from_table(const std::vector<std::array<int32_t, 256>>& next,
                                             const std::vector<uint8_t>& accepts, GrammarBudget& budget);

 private:
  friend class Nfa;
  friend std::optional<Automaton> with_length(const Automaton& content, const Automaton& character,
                                              int64_t least, int64_t most, GrammarBudget& budget);
  friend std::optional<Automaton> combined(const Automaton& a, const Automaton& b, bool without,
                                           GrammarBudget& budget);
  // Classes that neither table tells apart; the first byte of each.
  std::vector<uint8_t> join_classes(const Automaton& a, const Automaton& b);
  // Keeps what is reached from the start and leads to an accepting state.
  bool trim(GrammarBudget& budget);
  void look();  // at last_ and wide_

  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 1;
  std::vector<int32_t> next_;  // [states * classes]
  std::vector<uint8_t> accepts_, last_;
  bool wide_ = false;
};

// Positions and edges that are being collected, with one start and one end.
class Nfa {
 public:
  explicit Nfa(GrammarBudget& budget) : budget_(budget) {}

  int32_t add();
  void edge(int32_t from, uint8_t low, uint8_t high, int32_t to);
  void jump(int32_t from, int32_t to);  // without a byte
  // Reads sentences of `automaton` from `from`; ends at `to`.
  void embed(const Automaton& automaton, int32_t from, int32_t to);

  // Empty: beyond the budget.
  std::optional<Automaton> determinise(int32_t start, int32_t end);

  GrammarBudget& budget() { return budget_; }

 private:
  struct Edge {
    uint8_t low, high;
    int32_t to, next;
  };
  struct Jump {
    int32_t to, next;
  };
  struct Node {
    int32_t edge = -1, jump = -1;
  };
  struct Subsets;
  void close(std::vector<int32_t>& set, std::vector<uint32_t>& stamps, uint32_t stamp);

  GrammarBudget& budget_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<Jump> jumps_;
};

// Those sentences of `content` that have least..most characters (most < 0: any number), where `character`
// accepts exactly one as it is written. Empty: beyond the budget.
std::optional<Automaton> with_length(const Automaton& content, const Automaton& character, int64_t least,
                                     int64_t most, GrammarBudget& budget);

// Sentences of `a` that are also sentences of `b`, or (`without`) that are none. At most the product of both
// in states. Empty: beyond the budget.
std::optional<Automaton> combined(const Automaton& a, const Automaton& b, bool without,
                                  GrammarBudget& budget);

}  // namespace braid::server
