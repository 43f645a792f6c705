// grammar_matcher.h -- where one answer stands in its form, and which tokens may come next.
//
// A place in the program with its register and the calls around it is a thread; an answer stands at all
// threads that its bytes admit (a handful; at most kMaxThreads). Calls are frames that threads share, and the
// members of an object that have come are sets that they share.
//
// The work of a call is counted, not timed. What ever the form, advance() costs at most kMaxThreads steps a
// byte, and allowed() kMaxSteps and a walk over the tree of tokens for each of a few automata whose state
// nobody has been in before. Beyond that, single bytes are looked at first and then as many tokens as fit, in
// a fixed order: the answer still keeps the form and can still be completed, it has fewer ways to be spelled.
//
// One object per answer; the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "server/grammar/grammar_program.h"
#include "server/grammar/member_sets.h"

namespace braid::server {

class GrammarMatcher {
 public:
  static constexpr size_t kMaxThreads = 512;
  static constexpr int64_t kMaxSteps = 100'000;
  static constexpr size_t kMaxWide = 4;

  explicit GrammarMatcher(std::shared_ptr<const GrammarProgram> program);

  // False: the form admits no such text; then it stays where it was.
  bool advance(std::string_view bytes);
  // How many calls of advance() went well, and back to where so many had.
  size_t depth() const { return marks_.size() - 1; }
  void rewind_to(size_t depth);

  // The text so far is a whole sentence.
  bool accepts() const;
  // Sets the bits of tokens that may follow.
  void allowed(std::span<uint64_t> bits);

  // Of the last call of allowed() or advance(): what it cost.
  int64_t steps() const { return steps_; }
  size_t threads() const { return threads_.size() - marks_.back().threads; }

 private:
  struct Thread {
    int32_t place;
    int32_t state;  // of the automaton, the words, the literal
    int32_t reg;    // register: counted elements, or the set of members that have come
    int32_t frame;  // of the call that it is in; -1: none
    bool operator==(const Thread&) const = default;
  };
  struct Frame {
    int32_t back, reg, frame;
    bool operator==(const Frame&) const = default;
  };
  // What was there of what threads refer to.
  struct Held {
    size_t frames;
    MemberSets::Mark sets;
  };
  struct Mark {
    size_t threads;  // its threads begin here
    Held held;       // before it
  };
  struct Span {
    size_t begin, end;
  };

  void enter(int32_t place, int32_t reg, int32_t frame, size_t since);
  void keep(const Thread& thread, size_t since);
  Held held() const { return {frames_.size(), sets_.mark()}; }
  void give_back(const Held& held);
  // Some word below the node has not come.
  bool goes_on(const WordSet& words, int32_t node, int32_t reg) const;
  int32_t push(const Frame& frame);
  // Appends to threads_ what `from` becomes behind `byte`.
  Span step(Span from, uint8_t byte);
  void step_words(const Thread& t, uint8_t byte, size_t since);
  void step_other_name(const Thread& t, uint8_t byte, size_t since);
  void step_characters(const Thread& t, uint8_t byte, size_t since);
  // Sets the tokens of nodes [begin, end) that `from`, standing `depth` bytes deep in the tree, admits.
  void walk(uint32_t begin, uint32_t end, size_t depth, Span from, bool roots_only, std::span<uint64_t> bits);
  bool is_wide(const Thread& t) const;
  void wide_automaton(const Thread& t, std::span<uint64_t> bits);
  void wide_characters(const Thread& t, std::span<uint64_t> bits);
  void wide_other_name(const Thread& t, std::span<uint64_t> bits);
  std::vector<uint32_t> word_ends(const WordSet& words, int32_t node);
  void beyond(const Thread& t, std::span<const uint32_t> exits, std::span<uint64_t> bits);

  std::shared_ptr<const GrammarProgram> program_;
  std::vector<Thread> threads_;  // of all marks, one after the other; what a walk needs comes behind
  std::vector<Frame> frames_;
  std::vector<Mark> marks_;
  MemberSets sets_;
  Held since_{};  // what the current step has made, which may be shared, lies behind
  int64_t steps_ = 0;
  int depth_ = 0;
  struct Level {
    Span threads;
    Held held;
  };
  std::vector<Level> levels_;
};

}  // namespace braid::server
