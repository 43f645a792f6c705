// byte_automaton.h -- regular languages of bytes as deterministic automata. Immutable; any thread.
// Every state can reach an accepting state, so any prefix that was not refused can be completed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "server/api/structured/grammar_budget.h"

namespace braid::server {

class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  bool empty() const { return accepts_.empty(); }
  // State 0 is the start.
  int32_t next(int32_t state, uint8_t byte) const {
    return next_[static_cast<size_t>(state) * classes_ + class_of_[byte]];
  }
  bool accepts(int32_t state) const { return accepts_[static_cast<size_t>(state)] != 0; }
  // No byte can follow.
  bool last(int32_t state) const { return last_[static_cast<size_t>(state)] != 0; }
  int32_t states() const { return static_cast<int32_t>(accepts_.size()); }
  // Some state accepts many different bytes, so thousands of tokens may follow it.
  bool wide() const { return wide_; }
  int64_t bytes() const { return static_cast<int64_t>(next_.size() * 4 + accepts_.size() * 2); }

  bool takes(std::string_view text) const;
  // Its sentences in quotes. No sentence may contain an unescaped quote.
  Automaton quoted() const;

  // From 256 columns per state (kDead: refused), start first. Empty if beyond the budget.
  static std::optional<Automaton> from_table(const std::vector<std::array<int32_t, 256>>& next,
                                             const std::vector<uint8_t>& accepts,
                                             GrammarBudget& budget);

 private:
  friend class Nfa;
  friend std::optional<Automaton> with_length(const Automaton& content, const Automaton& character,
                                              int64_t least, int64_t most, GrammarBudget& budget);
  friend std::optional<Automaton> combined(const Automaton& a, const Automaton& b, bool without,
                                           GrammarBudget& budget);
  // Byte classes that neither table distinguishes. Returns the first byte of each.
  std::vector<uint8_t> join_classes(const Automaton& a, const Automaton& b);
  bool trim(GrammarBudget& budget);
  void look();  // sets last_ and wide_

  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 1;
  std::vector<int32_t> next_;  // [states * classes]
  std::vector<uint8_t> accepts_, last_;
  bool wide_ = false;
};

class Nfa {
 public:
  explicit Nfa(GrammarBudget& budget) : budget_(budget) {}

  int32_t add();
  void edge(int32_t from, uint8_t low, uint8_t high, int32_t to);
  void jump(int32_t from, int32_t to);  // an edge without a byte
  void embed(const Automaton& automaton, int32_t from, int32_t to);

  // Empty if beyond the budget.
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

// Sentences with least..most characters (most < 0: no limit), of which `character` reads one.
std::optional<Automaton> with_length(const Automaton& content, const Automaton& character,
                                     int64_t least, int64_t most, GrammarBudget& budget);

// Sentences of `a` that are in `b`, or with `without` are not in `b`. Empty if beyond the budget.
std::optional<Automaton> combined(const Automaton& a, const Automaton& b, bool without,
                                  GrammarBudget& budget);

}  // namespace braid::server
