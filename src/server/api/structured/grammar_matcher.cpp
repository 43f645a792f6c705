// grammar_matcher.cpp -- see grammar_matcher.h.
#include "server/api/structured/grammar_matcher.h"

#include <algorithm>

#include "server/api/structured/grammar_parts.h"

namespace braid::server {

using Op = Instruction::Op;

namespace {

constexpr size_t kMaxCompared = 64;  // threads and frames of one step searched for duplicates
constexpr int kMaxNesting = 64;      // nested forks; forks of a program are flat

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const GrammarProgram> program)
    : program_(std::move(program)) {
  marks_.push_back({0, held()});
  since_ = held();
  enter(program_->start(), 0, -1, 0);
}

void GrammarMatcher::keep(const Thread& thread, size_t since) {
  const size_t made = threads_.size() - since;
  steps_ += static_cast<int64_t>(std::min(made, kMaxCompared)) / 16;
  if (made >= kMaxThreads) {
    dropped_ = true;
    return;
  }
  const auto begin = threads_.end() - static_cast<ptrdiff_t>(std::min(made, kMaxCompared));
  if (std::find(begin, threads_.end(), thread) == threads_.end()) threads_.push_back(thread);
}

void GrammarMatcher::give_back(const Held& held) {
  frames_.resize(held.frames);
  sets_.rewind_to(held.sets);
}

bool GrammarMatcher::goes_on(const WordSet& words, int32_t node, int32_t reg) const {
  const WordSet::Ranks below = words.below(node);
  return !below.empty() &&
         (!words.once() || !sets_.has_all(reg, below.begin, below.end, words.size()));
}

int32_t GrammarMatcher::push(const Frame& frame) {
  const size_t made = frames_.size() - since_.frames;
  for (size_t i = frames_.size() - std::min(made, kMaxCompared); i < frames_.size(); ++i)
    if (frames_[i] == frame) return static_cast<int32_t>(i);
  frames_.push_back(frame);
  return static_cast<int32_t>(frames_.size() - 1);
}

// Follows the program from `place` to instructions that read bytes.
void GrammarMatcher::enter(int32_t place, int32_t reg, int32_t frame, size_t since) {
  if (++depth_ > kMaxNesting) {
    --depth_;
    return;
  }
  for (bool more = true; more && !over();) {
    if (threads_.size() - since >= kMaxThreads) {
      dropped_ = true;
      break;
    }
    const Instruction& at = program_->code(place);
    ++steps_;
    ++place;
    switch (at.op) {
      case Op::literal:
      case Op::end:
      case Op::characters:
        keep({place - 1, 0, reg, frame}, since);
        more = false;
        break;
      case Op::words:
        if (goes_on(program_->words(at.a), 0, reg)) keep({place - 1, 0, reg, frame}, since);
        more = false;
        break;
      case Op::other_name:
        keep({place - 1, OtherName{0, program_->words(at.a).root()}.packed(), reg, frame}, since);
        more = false;
        break;
      case Op::automaton:
        if (const Automaton& automaton = program_->automaton(at.a); true) {
          if (!automaton.last(0)) keep({place - 1, 0, reg, frame}, since);
          more = automaton.accepts(0);
        }
        break;
      case Op::fork:
        for (int32_t i = 0; i < at.b && threads_.size() - since < kMaxThreads && !over(); ++i)
          enter(program_->forks()[static_cast<size_t>(at.a + i)], reg, frame, since);
        dropped_ = dropped_ || threads_.size() - since >= kMaxThreads;
        more = false;
        break;
      case Op::jump:
        place = at.a;
        break;
      case Op::call:
        // A call in tail position returns to the outer caller, so that lists do not grow the stack.
        if (program_->code(place).op != Op::back) {
          more = frames_.size() < kMaxHeld;
          if (more) frame = push({place, reg, frame});
        }
        place = at.a;
        reg = 0;
        break;
      case Op::back:
        if (const Frame& to = frames_[static_cast<size_t>(frame)]; true) {
          place = to.back;
          reg = to.reg;
          frame = to.frame;
        }
        break;
      case Op::count:
        reg = std::min(reg + 1, at.a);
        break;
      case Op::set:
        reg = at.a;
        break;
      case Op::at_least:
        more = reg >= at.a;
        break;
      case Op::below:
        more = reg < at.a;
        break;
      case Op::finished:
        more = sets_.required(reg) == program_->words(at.a).required_count();
        break;
      case Op::left:
        more = sets_.count(reg) < program_->words(at.a).size();
        break;
    }
  }
  --depth_;
}

void GrammarMatcher::step_words(const Thread& t, uint8_t byte, size_t since) {
  const int32_t index = program_->code(t.place).a;
  const WordSet& words = program_->words(index);
  const int32_t node = words.child(t.state, byte);
  if (node == WordSet::kNone) return;
  const int32_t word = words.word(node);
  if (goes_on(words, node, t.reg)) keep({t.place, node, t.reg, t.frame}, since);
  if (word == WordSet::kNone) return;
  int32_t reg = t.reg;
  if (words.once()) {
    const int32_t rank = words.rank(node);
    if (sets_.has_all(reg, rank, rank + 1, words.size()) ||
        std::max(sets_.mark().nodes, sets_.mark().sets) >= kMaxHeld)
      return;
    reg = sets_.with(reg, rank, words.required(rank), words.size(), since_.sets);
  }
  enter(program_->word_target(index, word), reg, t.frame, since);
}

void GrammarMatcher::step_other_name(const Thread& t, uint8_t byte, size_t since) {
  const Instruction& at = program_->code(t.place);
  const Automaton& names = program_->automaton(at.b);
  const WordSet& words = program_->words(at.a);
  OtherName now = OtherName::of(t.state);
  now.state = names.next(now.state, byte);
  if (now.state == Automaton::kDead) return;
  if (now.node != WordSet::kNone) now.node = words.child(now.node, byte);
  const bool is_word = now.node != WordSet::kNone && words.word(now.node) != WordSet::kNone;
  if (!names.last(now.state)) keep({t.place, now.packed(), t.reg, t.frame}, since);
  if (names.accepts(now.state) && !is_word) enter(t.place + 1, t.reg, t.frame, since);
}

void GrammarMatcher::step_characters(const Thread& t, uint8_t byte, size_t since) {
  const GrammarProgram::Bounds& bounds = program_->bounds(program_->code(t.place).a);
  if (t.state == 0 && byte == '"') {
    if (t.reg >= bounds.least) enter(t.place + 1, 0, t.frame, since);
    return;
  }
  if (t.state == 0 && bounds.most >= 0 && t.reg >= bounds.most) return;
  const Automaton& character = json_character();
  const int32_t to = character.next(t.state, byte);
  if (to == Automaton::kDead) return;
  Thread next = t;
  next.state = to;
  if (character.accepts(to)) {
    next.state = 0;
    const int64_t counted = bounds.most < 0 ? bounds.least : bounds.most;
    next.reg = static_cast<int32_t>(std::min<int64_t>(counted, int64_t{t.reg} + 1));
  }
  keep(next, since);
}

GrammarMatcher::Span GrammarMatcher::step(Span from, uint8_t byte) {
  const size_t since = threads_.size();
  since_ = held();
  for (size_t i = from.begin; i < from.end && !over(); ++i) {
    const Thread t = threads_[i];
    const Instruction& at = program_->code(t.place);
    ++steps_;
    switch (at.op) {
      case Op::literal:
        if (static_cast<uint8_t>(program_->text()[static_cast<size_t>(at.a + t.state)]) != byte)
          break;
        if (t.state + 1 < at.b)
          keep({t.place, t.state + 1, t.reg, t.frame}, since);
        else
          enter(t.place + 1, t.reg, t.frame, since);
        break;
      case Op::words:
        step_words(t, byte, since);
        break;
      case Op::other_name:
        step_other_name(t, byte, since);
        break;
      case Op::automaton: {
        const Automaton& automaton = program_->automaton(at.a);
        const int32_t to = automaton.next(t.state, byte);
        if (to == Automaton::kDead) break;
        if (!automaton.last(to)) keep({t.place, to, t.reg, t.frame}, since);
        if (automaton.accepts(to)) enter(t.place + 1, t.reg, t.frame, since);
        break;
      }
      case Op::characters:
        step_characters(t, byte, since);
        break;
      default:
        break;
    }
  }
  return {since, threads_.size()};
}

GrammarMatcher::Span GrammarMatcher::run(Span from, std::string_view bytes) {
  const size_t begin = threads_.size();
  Span now = from;
  for (const char c : bytes) {
    const Span next = step(now, static_cast<uint8_t>(c));
    threads_.erase(threads_.begin() + static_cast<ptrdiff_t>(begin),
                   threads_.begin() + static_cast<ptrdiff_t>(next.begin));
    now = {begin, threads_.size()};
    if (now.begin == now.end || over()) return now;
  }
  for (size_t i = now.begin; bytes.empty() && i < now.end; ++i)
    threads_.push_back(Thread(threads_[i]));
  return {begin, threads_.size()};
}

GrammarMatcher::Outcome GrammarMatcher::advance(std::string_view bytes, int64_t steps) {
  begin(steps);
  const Mark mark{threads_.size(), held()};
  const Span now{marks_.back().threads, threads_.size()};
  Span next = run(now, bytes);
  // Dropped threads may be the matching ones: retries without those examined separately.
  if (next.begin == next.end && dropped_ && !over()) {
    const bool apart = this->apart(now);
    next = run(copy_together(now, apart), bytes);
    for (size_t i = now.begin; i < now.end && next.begin == next.end && apart && !over(); ++i)
      if (is_wide(threads_[i])) next = run({i, i + 1}, bytes);
    threads_.erase(threads_.begin() + static_cast<ptrdiff_t>(mark.threads),
                   threads_.begin() + static_cast<ptrdiff_t>(next.begin));
  }
  if (over() || threads_.size() == mark.threads) {
    threads_.resize(mark.threads);
    give_back(mark.held);
    return over() ? Outcome::over : Outcome::no;
  }
  marks_.push_back(mark);
  forget_old_marks();
  return Outcome::yes;
}

void GrammarMatcher::forget_old_marks() {
  if (marks_.size() <= 2 * kMaxTakenBack) return;
  const size_t gone = marks_.size() - kMaxTakenBack - 1, threads = marks_[gone].threads;
  threads_.erase(threads_.begin(), threads_.begin() + static_cast<ptrdiff_t>(threads));
  marks_.erase(marks_.begin(), marks_.begin() + static_cast<ptrdiff_t>(gone));
  for (Mark& mark : marks_) mark.threads -= threads;
  forgotten_ += gone;
}

void GrammarMatcher::rewind_to(size_t depth) {
  if (depth >= this->depth()) return;
  BRAID_CHECK(depth >= forgotten_);
  const Mark& mark = marks_[depth - forgotten_ + 1];
  threads_.resize(mark.threads);
  give_back(mark.held);
  marks_.resize(depth - forgotten_ + 1);
}

bool GrammarMatcher::accepts() const {
  return std::any_of(threads_.begin() + static_cast<ptrdiff_t>(marks_.back().threads),
                     threads_.end(), [&](const Thread& t) {
                       const Instruction& at = program_->code(t.place);
                       return at.op == Op::end || (at.op == Op::automaton && at.b == 1);
                     });
}

void GrammarMatcher::walk(uint32_t begin, uint32_t end, size_t depth, Span from, bool roots_only,
                          std::span<uint64_t> bits) {
  const auto nodes = program_->trie().nodes();
  levels_.clear();
  levels_.push_back({from, held()});
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    if (over() || (!roots_only && steps_ > walk_steps_)) break;
    ++steps_;
    levels_.resize(node.depth - depth);
    const Level above = levels_.back();
    threads_.resize(std::max(above.threads.end, from.end));
    give_back(above.held);
    const Span next = step(above.threads, node.byte);
    if (next.begin == next.end) {
      i = node.end;
      continue;
    }
    program_->trie().set_tokens(node, bits);
    if (roots_only) {
      i = node.end;
      continue;
    }
    levels_.push_back({next, held()});
    ++i;
  }
  threads_.resize(from.end);
  give_back(levels_.front().held);
}

bool GrammarMatcher::goes_alike(const Thread& a, const Thread& b) const {
  const Instruction &at = program_->code(a.place), &other = program_->code(b.place);
  if (at.op != other.op || at.a != other.a || a.state != b.state) return false;
  if (at.op == Op::characters) return a.reg == b.reg;
  return at.op == Op::automaton || at.b == other.b;  // an automaton's b does not matter here
}

bool GrammarMatcher::leads(size_t i, Span now) const {
  for (size_t earlier = now.begin; earlier < i; ++earlier)
    if (goes_alike(threads_[earlier], threads_[i])) return false;
  return true;
}

bool GrammarMatcher::apart(Span now) {
  size_t ways = 0;
  for (size_t i = now.begin; i < now.end && ways <= kMaxWide; ++i) {
    steps_ += static_cast<int64_t>(i - now.begin) / 16;
    ways += is_wide(threads_[i]) && leads(i, now) ? 1 : 0;
  }
  return ways <= kMaxWide;
}

GrammarMatcher::Span GrammarMatcher::copy_together(Span now, bool apart) {
  const size_t begin = threads_.size();
  for (size_t i = now.begin; i < now.end; ++i)
    if (!apart || !is_wide(threads_[i])) threads_.push_back(Thread(threads_[i]));
  return {begin, threads_.size()};
}

bool GrammarMatcher::is_wide(const Thread& t) const {
  const Instruction& at = program_->code(t.place);
  return at.op == Op::characters || at.op == Op::other_name ||
         (at.op == Op::automaton && program_->automaton(at.a).wide());
}

// Tokens that continue after the regular part, which has ended at each of `exits`.
void GrammarMatcher::beyond(const Thread& t, Span now, std::span<const uint32_t> exits,
                            std::span<uint64_t> bits) {
  if (exits.empty()) return;
  const auto nodes = program_->trie().nodes();
  const size_t threads = threads_.size();
  const Held before = since_ = held();
  for (size_t i = now.begin; i < now.end; ++i) {
    const Thread one = threads_[i];
    if (!goes_alike(one, t)) continue;
    enter(one.place + 1, program_->code(one.place).op == Op::characters ? 0 : one.reg, one.frame,
          threads);
  }
  const Span after{threads, threads_.size()};
  for (const uint32_t exit : exits)
    walk(exit + 1, nodes[exit].end, nodes[exit].depth, after, false, bits);
  threads_.resize(threads);
  give_back(before);
}

void GrammarMatcher::wide_automaton(const Thread& t, Span now, std::span<uint64_t> bits) {
  const std::shared_ptr<const Reach> reach =
      program_->reach(program_->code(t.place).a, t.state, steps_, most_steps_);
  if (reach == nullptr) return;
  steps_ += reach->set_tokens(bits);
  beyond(t, now, reach->exits, bits);
}

// Trie nodes where a word that was read up to `node` ends, in trie order.
std::vector<uint32_t> GrammarMatcher::word_ends(const WordSet& words, int32_t node) {
  std::vector<uint32_t> ends;
  const auto nodes = program_->trie().nodes();
  std::vector<int32_t> path{node};
  for (uint32_t i = 0; i < nodes.size() && !over();) {
    ++steps_;
    path.resize(nodes[i].depth);
    const int32_t to = words.child(path.back(), nodes[i].byte);
    if (to != WordSet::kNone && words.word(to) != WordSet::kNone) ends.push_back(i);
    if (to == WordSet::kNone) {
      i = nodes[i].end;
      continue;
    }
    path.push_back(to);
    ++i;
  }
  return ends;
}

void GrammarMatcher::wide_other_name(const Thread& t, Span now, std::span<uint64_t> bits) {
  const Instruction& at = program_->code(t.place);
  const OtherName name = OtherName::of(t.state);
  const std::shared_ptr<const Reach> reach = program_->reach(at.b, name.state, steps_, most_steps_);
  if (reach == nullptr) return;
  if (name.node == WordSet::kNone) {
    steps_ += reach->set_tokens(bits);
    return beyond(t, now, reach->exits, bits);
  }
  std::vector<uint64_t> names(bits.size());
  steps_ += 2 * reach->set_tokens(names);
  std::vector<uint32_t> exits = reach->exits;
  const TokenTrie& trie = program_->trie();
  for (const uint32_t end : word_ends(program_->words(at.a), name.node)) {
    steps_ += trie.clear_tokens(end, names);
    std::erase_if(exits,
                  [&](uint32_t exit) { return exit >= end && exit < trie.nodes()[end].end; });
  }
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= names[i];
  beyond(t, now, exits, bits);
}

void GrammarMatcher::wide_characters(const Thread& t, Span now, std::span<uint64_t> bits) {
  const GrammarProgram::Bounds& bounds = program_->bounds(program_->code(t.place).a);
  const TokenTrie& trie = program_->trie();
  const TokenTrie::InString& in = trie.in_string(t.state);
  // An unfinished character counts too.
  const int64_t have = int64_t{t.reg} + (t.state == 0 ? 0 : 1);
  const int64_t room = bounds.most < 0 ? INT64_MAX : bounds.most - have;
  if (room > 0 && !in.up_to.empty()) {
    const auto& dense = in.up_to[static_cast<size_t>(std::min<int64_t>(
                                     room, static_cast<int64_t>(in.up_to.size()))) -
                                 1];
    for (size_t i = 0; i < std::min(bits.size(), dense.size()); ++i) bits[i] |= dense[i];
    steps_ += static_cast<int64_t>(dense.size()) / 64;
  }
  steps_ += static_cast<int64_t>(in.tokens.size() + in.closings.size()) / 8;
  for (const auto& token : in.tokens) {
    if (int64_t{token.begun} > room) break;
    bits[static_cast<size_t>(token.id) / 64] |= uint64_t{1} << (token.id % 64);
  }
  std::vector<uint32_t> exits;
  for (const auto& closing : in.closings) {
    if (int64_t{closing.begun} > room || have + closing.begun < bounds.least) continue;
    const TokenTrie::Node& node = trie.nodes()[closing.node];
    trie.set_tokens(node, bits);
    if (node.end > closing.node + 1) exits.push_back(closing.node);
  }
  beyond(t, now, exits, bits);
}

bool GrammarMatcher::allowed(std::span<uint64_t> bits, int64_t steps) {
  begin(steps);
  const Span now{marks_.back().threads, threads_.size()};
  const Held before = held();
  const auto nodes = static_cast<uint32_t>(program_->trie().nodes().size());
  const bool apart = this->apart(now);
  if (const Span rest = copy_together(now, apart); rest.begin < rest.end) {
    walk_steps_ = steps_ + kMaxSteps;
    walk(0, nodes, 0, rest, false, bits);
    if (steps_ > walk_steps_) walk(0, nodes, 0, rest, true, bits);
  }
  for (size_t i = now.begin; i < now.end && apart && !over(); ++i) {
    const Thread t = threads_[i];
    if (!is_wide(t) || !leads(i, now)) continue;
    walk_steps_ = steps_ + kMaxSteps;  // a separate limit for each of the few paths
    const Op op = program_->code(t.place).op;
    if (op == Op::characters)
      wide_characters(t, now, bits);
    else if (op == Op::other_name)
      wide_other_name(t, now, bits);
    else
      wide_automaton(t, now, bits);
  }
  threads_.resize(now.end);
  give_back(before);
  return !over();
}

}  // namespace braid::server
