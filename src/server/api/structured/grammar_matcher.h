// grammar_matcher.h -- the position of one answer in its grammar, and the tokens that may follow.
// A thread is a place in the program with its register and call stack. The position is the set of
// all threads that match the bytes so far: usually a few, at most kMaxThreads. Threads share call
// frames and sets of object members.
// Cost is counted, not timed: a step is an instruction, a trie node, or similar work. A call that
// exceeds its caller's limit has no effect. allowed() takes at most kMostSteps for any grammar:
// kMaxSteps for tokens outside automata, and again for each of a few automata. Threads in equal
// automaton states are examined together. Beyond these limits, single bytes come first, then as
// many tokens as fit, in a fixed order. The answer still fits the grammar, with fewer possible
// tokenizations.
// One object per answer; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "server/api/structured/grammar_program.h"
#include "server/api/structured/member_sets.h"

namespace braid::server {

class GrammarMatcher {
 public:
  static constexpr size_t kMaxThreads = 512;
  static constexpr int64_t kMaxSteps = 100'000;
  static constexpr size_t kMaxWide = 4;
  // Of allowed(), without the trie nodes of automata. Includes 256 bytes for every thread.
  static constexpr int64_t kMostSteps = kMaxSteps * (kMaxWide + 2) + 256 * kMaxThreads * 4;
  // Calls of advance() that can be undone.
  static constexpr size_t kMaxTakenBack = 1024;
  // Frames, sets and set nodes of one answer. Threads beyond it are dropped, to bound memory.
  static constexpr size_t kMaxHeld = 1'000'000;
  static constexpr int64_t kAnySteps = INT64_MAX / 2;

  explicit GrammarMatcher(std::shared_ptr<const GrammarProgram> program);

  enum class Outcome : uint8_t { yes, no, over };
  // no: the text does not fit. over: more than `steps` needed. Neither changes the position.
  Outcome advance(std::string_view bytes, int64_t steps);
  bool advance(std::string_view bytes) { return advance(bytes, kAnySteps) == Outcome::yes; }
  // Successful calls of advance(). At most the last kMaxTakenBack can be undone.
  size_t depth() const { return forgotten_ + marks_.size() - 1; }
  void rewind_to(size_t depth);

  bool accepts() const;
  // Sets the bits of tokens that may follow. False if over `steps`; then ignore the bits.
  bool allowed(std::span<uint64_t> bits, int64_t steps = kAnySteps);

  // The cost of the last allowed() or advance().
  int64_t steps() const { return steps_; }
  size_t threads() const { return threads_.size() - marks_.back().threads; }

 private:
  struct Thread {
    int32_t place;
    int32_t state;  // in the automaton, words or literal
    int32_t reg;    // register: a count of elements, or a set of read members
    int32_t frame;  // enclosing call; -1: none
    bool operator==(const Thread&) const = default;
  };
  struct Frame {
    int32_t back, reg, frame;
    bool operator==(const Frame&) const = default;
  };
  // Sizes of the storage that threads refer to.
  struct Held {
    size_t frames;
    MemberSets::Mark sets;
  };
  struct Mark {
    size_t threads;  // where its threads begin
    Held held;       // before the mark
  };
  struct Span {
    size_t begin, end;
  };

  void enter(int32_t place, int32_t reg, int32_t frame, size_t since);
  void keep(const Thread& thread, size_t since);
  bool over() const { return steps_ > most_steps_; }
  void begin(int64_t steps) {
    steps_ = 0;
    most_steps_ = steps;
    dropped_ = false;
  }
  Held held() const { return {frames_.size(), sets_.mark()}; }
  void give_back(const Held& held);
  bool goes_on(const WordSet& words, int32_t node, int32_t reg) const;
  int32_t push(const Frame& frame);
  void forget_old_marks();
  // Appends the successors of `from` after `byte`.
  Span step(Span from, uint8_t byte);
  // Appends only the successors after all `bytes`.
  Span run(Span from, std::string_view bytes);
  // Appends copies of the threads that allowed() examines together.
  Span copy_together(Span now, bool apart);
  void step_words(const Thread& t, uint8_t byte, size_t since);
  void step_other_name(const Thread& t, uint8_t byte, size_t since);
  void step_characters(const Thread& t, uint8_t byte, size_t since);
  // Sets the tokens of nodes [begin, end) that `from`, at trie depth `depth`, allows.
  void walk(uint32_t begin, uint32_t end, size_t depth, Span from, bool roots_only,
            std::span<uint64_t> bits);
  bool is_wide(const Thread& t) const;
  // Both behave the same within the current regular part.
  bool goes_alike(const Thread& a, const Thread& b) const;
  // The first of the threads in `now` that behave alike.
  bool leads(size_t i, Span now) const;
  // Whether allowed() examines wide threads separately. False if too many differ.
  bool apart(Span now);
  // For `t` and all threads in `now` that behave like it.
  void wide_automaton(const Thread& t, Span now, std::span<uint64_t> bits);
  void wide_characters(const Thread& t, Span now, std::span<uint64_t> bits);
  void wide_other_name(const Thread& t, Span now, std::span<uint64_t> bits);
  std::vector<uint32_t> word_ends(const WordSet& words, int32_t node);
  void beyond(const Thread& t, Span now, std::span<const uint32_t> exits, std::span<uint64_t> bits);

  std::shared_ptr<const GrammarProgram> program_;
  std::vector<Thread> threads_;  // of all marks in order, then those of a walk
  std::vector<Frame> frames_;
  std::vector<Mark> marks_;
  MemberSets sets_;
  Held since_{};          // sizes before the current step; newer items may be shared
  size_t forgotten_ = 0;  // marks dropped from the front
  int64_t steps_ = 0, most_steps_ = kAnySteps;
  int64_t walk_steps_ = 0;  // value of steps_ at which a walk stops
  bool dropped_ = false;    // a thread was dropped at the limit
  int depth_ = 0;
  struct Level {
    Span threads;
    Held held;
  };
  std::vector<Level> levels_;
};

}  // namespace braid::server
