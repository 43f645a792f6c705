// grammar_matcher.h -- where one answer stands in its form, and which tokens may come next.
//
// A place in the program with its register and the calls around it is a thread; an answer stands at all
// threads that its bytes admit (a handful; at most kMaxThreads). Calls are frames that threads share, and the
// members of an object that have come are sets that they share.
//
// The work of a call is counted, not timed: a step is a place of the program looked at, a node of the tree of
// tokens, or as much work of another kind. A call that would take more steps than its caller allows is given
// up and changes nothing. Whatever the form, allowed() takes at most kMostSteps: it follows tokens one by one
// for kMaxSteps for what is no automaton, and again for each of a few automata; threads at the same state of
// one, in whatever calls, are looked at together. Beyond that, single bytes are looked at first and then as
// many tokens as fit, in a fixed order: the answer still keeps the form and can still be completed, it has
// fewer ways to be spelled.
//
// One object per answer; one thread at a time.
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
  // Of allowed(), beside the nodes of the tree for each automaton: 256 bytes of all threads are one by one.
  static constexpr int64_t kMostSteps = kMaxSteps * (kMaxWide + 2) + 256 * kMaxThreads * 4;
  // Calls of advance() that can be taken back.
  static constexpr size_t kMaxTakenBack = 1024;
  // Frames, sets, and nodes of sets, that one answer can have. A thread that would need more ends, so that memory is
  // bounded too; no honest answer comes near.
  static constexpr size_t kMaxHeld = 1'000'000;
  static constexpr int64_t kAnySteps = INT64_MAX / 2;

  explicit GrammarMatcher(std::shared_ptr<const GrammarProgram> program);

  enum class Outcome : uint8_t { yes, no, over };
  // no: the form admits no such text; over: it takes more than `steps`. Then it stays where it was.
  Outcome advance(std::string_view bytes, int64_t steps);
  bool advance(std::string_view bytes) { return advance(bytes, kAnySteps) == Outcome::yes; }
  // How many calls of advance() went well, and back to where so many had: the last kMaxTakenBack at most.
  size_t depth() const { return forgotten_ + marks_.size() - 1; }
  void rewind_to(size_t depth);

  // The text so far is a whole sentence.
  bool accepts() const;
  // Sets the bits of tokens that may follow. False: it takes more than `steps`; then bits are of no use.
  bool allowed(std::span<uint64_t> bits, int64_t steps = kAnySteps);

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
  bool over() const { return steps_ > most_steps_; }
  void begin(int64_t steps) {
    steps_ = 0;
    most_steps_ = steps;
    dropped_ = false;
  }
  Held held() const { return {frames_.size(), sets_.mark()}; }
  void give_back(const Held& held);
  // Some word below the node has not come.
  bool goes_on(const WordSet& words, int32_t node, int32_t reg) const;
  int32_t push(const Frame& frame);
  void forget_old_marks();
  // Appends to threads_ what `from` becomes behind `byte`.
  Span step(Span from, uint8_t byte);
  // Appends what `from` becomes behind `bytes`, and nothing else.
  Span run(Span from, std::string_view bytes);
  // Appends a copy of those threads of `now` that allowed() looks at together.
  Span copy_together(Span now, bool apart);
  void step_words(const Thread& t, uint8_t byte, size_t since);
  void step_other_name(const Thread& t, uint8_t byte, size_t since);
  void step_characters(const Thread& t, uint8_t byte, size_t since);
  // Sets the tokens of nodes [begin, end) that `from`, standing `depth` bytes deep in the tree, admits.
  void walk(uint32_t begin, uint32_t end, size_t depth, Span from, bool roots_only, std::span<uint64_t> bits);
  bool is_wide(const Thread& t) const;
  // Inside the regular part that both are in, the same happens to both.
  bool goes_alike(const Thread& a, const Thread& b) const;
  // The first of those in `now` that go alike with it.
  bool leads(size_t i, Span now) const;
  // allowed() looks at wide threads by themselves; not if too many go their own ways.
  bool apart(Span now);
  // Of `t` and all in `now` that go alike with it.
  void wide_automaton(const Thread& t, Span now, std::span<uint64_t> bits);
  void wide_characters(const Thread& t, Span now, std::span<uint64_t> bits);
  void wide_other_name(const Thread& t, Span now, std::span<uint64_t> bits);
  std::vector<uint32_t> word_ends(const WordSet& words, int32_t node);
  void beyond(const Thread& t, Span now, std::span<const uint32_t> exits, std::span<uint64_t> bits);

  std::shared_ptr<const GrammarProgram> program_;
  std::vector<Thread> threads_;  // of all marks, one after the other; what a walk needs comes behind
  std::vector<Frame> frames_;
  std::vector<Mark> marks_;
  MemberSets sets_;
  Held since_{};          // what the current step has made, which may be shared, lies behind
  size_t forgotten_ = 0;  // marks before those that are there
  int64_t steps_ = 0, most_steps_ = kAnySteps;
  int64_t walk_steps_ = 0;  // steps_ at which a walk takes what it has
  bool dropped_ = false;    // a thread, as there were too many
  int depth_ = 0;
  struct Level {
    Span threads;
    Held held;
  };
  std::vector<Level> levels_;
};

}  // namespace braid::server
