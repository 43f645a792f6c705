// grammar_program.cpp -- see grammar_program.h.
#include "server/api/structured/grammar_program.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace braid::server {

WordSet::WordSet(const std::vector<std::string>& words, bool once,
                 const std::vector<int32_t>& required, GrammarBudget& budget)
    : once_(once), required_count_(static_cast<int32_t>(required.size())), required_(words.size()) {
  std::vector<int32_t> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return words[static_cast<size_t>(a)] < words[static_cast<size_t>(b)];
  });
  std::vector<bool> wanted(words.size());
  for (const int32_t word : required) wanted[static_cast<size_t>(word)] = true;
  for (size_t rank = 0; rank < order.size(); ++rank)
    required_[rank] = wanted[static_cast<size_t>(order[rank])];
  // Breadth-first, so that the edges of a node are adjacent. A node is a span of the sorted words.
  struct Span {
    size_t begin, end, depth;
  };
  std::vector<Span> spans{{0, words.size(), 0}};
  nodes_.emplace_back();
  for (size_t n = 0; n < spans.size(); ++n) {
    auto [begin, end, depth] = spans[n];
    const auto word = [&](size_t i) -> const std::string& {
      return words[static_cast<size_t>(order[i])];
    };
    nodes_[n].begin = static_cast<int32_t>(begin);
    nodes_[n].end = static_cast<int32_t>(end);
    if (begin < end && word(begin).size() == depth) nodes_[n].word = order[begin++];
    nodes_[n].edge = static_cast<uint32_t>(edge_bytes_.size());
    if (!budget.spend(1 + static_cast<int64_t>(end - begin), sizeof(Node) + 5)) return;
    while (begin < end) {
      const char byte = word(begin)[depth];
      size_t stop = begin + 1;
      while (stop < end && word(stop)[depth] == byte) ++stop;
      edge_bytes_.push_back(static_cast<uint8_t>(byte));
      edge_nodes_.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.emplace_back();
      spans.push_back({begin, stop, depth + 1});
      begin = stop;
    }
    nodes_[n].edges = static_cast<uint32_t>(edge_bytes_.size()) - nodes_[n].edge;
  }
}

int32_t WordSet::child(int32_t node, uint8_t byte) const {
  const Node& at = nodes_[static_cast<size_t>(node)];
  const auto begin = edge_bytes_.begin() + at.edge, end = begin + at.edges;
  const auto found = std::lower_bound(begin, end, byte);
  return found == end || *found != byte
             ? kNone
             : edge_nodes_[static_cast<size_t>(found - edge_bytes_.begin())];
}

namespace {

std::shared_ptr<const Reach> find_reach(const Automaton& automaton, int32_t state,
                                        const TokenTrie& trie, int64_t& steps, int64_t most) {
  auto made = std::make_shared<Reach>();
  Reach& out = *made;
  const auto nodes = trie.nodes();
  std::vector<uint64_t> bits(trie.words());
  std::vector<int32_t> path{state};
  size_t tokens = 0;
  for (uint32_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    if (++steps > most) return nullptr;
    path.resize(node.depth);
    const int32_t to = automaton.next(path.back(), node.byte);
    if (to == Automaton::kDead) {
      i = node.end;
      continue;
    }
    trie.set_tokens(node, bits);
    tokens += node.count;
    if (automaton.accepts(to) && node.end > i + 1) out.exits.push_back(i);
    path.push_back(to);
    ++i;
  }
  if (tokens * 4 >= bits.size() * 8) {
    out.bits = std::move(bits);
    return made;
  }
  for (size_t w = 0; w < bits.size(); ++w) {
    for (uint64_t left = bits[w]; left != 0; left &= left - 1)
      out.ids.push_back(static_cast<int32_t>(w * 64) + __builtin_ctzll(left));
  }
  return made;
}

}  // namespace

std::shared_ptr<const Reach> ReachStore::known(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : found->second;
}

std::shared_ptr<const Reach> ReachStore::of(const Automaton& automaton, int32_t state,
                                            const TokenTrie& trie, int64_t& steps, int64_t most) {
  if (auto reach = known({&automaton, state}); reach != nullptr) return reach;
  auto made = find_reach(automaton, state, trie, steps, most);
  if (made != nullptr && !keep({&automaton, state}, made)) {
    forget();  // recent needs are likelier to recur than old ones
    keep({&automaton, state}, made);
  }
  return made;
}

void ReachStore::prepare(const Automaton& automaton, const TokenTrie& trie, int64_t nodes) {
  int64_t walked = 0;
  for (int32_t state = 0; state < automaton.states() && walked < nodes; ++state) {
    if (known({&automaton, state}) != nullptr) continue;
    if (!keep({&automaton, state}, find_reach(automaton, state, trie, walked, INT64_MAX))) return;
  }
}

bool ReachStore::keep(const Key& key, std::shared_ptr<const Reach> reach) {
  const int64_t bytes = reach->bytes();
  const std::lock_guard lock(mutex_);
  if (known_.contains(key)) return true;
  if (bytes_ + bytes > kMaxBytes) return false;
  if (memory_->bytes.fetch_add(bytes) + bytes > ReachMemory::kMaxBytes) {
    memory_->bytes.fetch_sub(bytes);
    return false;
  }
  bytes_ += bytes;
  known_[key] = std::move(reach);
  return true;
}

void ReachStore::forget() {
  decltype(known_) old;  // freed outside the lock
  const std::lock_guard lock(mutex_);
  known_.swap(old);
  memory_->bytes.fetch_sub(std::exchange(bytes_, 0));
}

void GrammarProgram::literal(std::string_view text) {
  if (text.empty()) return;
  const auto [found, added] = literals_.emplace(text, static_cast<uint32_t>(text_.size()));
  if (added) text_ += text;
  add(Op::literal, static_cast<int32_t>(found->second), static_cast<int32_t>(text.size()));
}

void GrammarProgram::fork(const std::vector<int32_t>& places) {
  add(Op::fork, static_cast<int32_t>(forks_.size()), static_cast<int32_t>(places.size()));
  forks_.insert(forks_.end(), places.begin(), places.end());
}

GrammarProgram::Fork GrammarProgram::fork(size_t ways) {
  fork(std::vector<int32_t>(ways, -1));
  return {forks_.size() - ways, forks_.size()};
}

int32_t GrammarProgram::add_words(WordSet set, std::vector<int32_t> targets) {
  word_sets_.push_back(std::move(set));
  word_targets_.push_back(std::move(targets));
  return static_cast<int32_t>(word_sets_.size() - 1);
}

int32_t GrammarProgram::add_automaton(Automaton automaton) {
  automata_.push_back({std::make_shared<const Automaton>(std::move(automaton)), reach_.get()});
  return static_cast<int32_t>(automata_.size() - 1);
}

void GrammarProgram::finish() {
  literals_ = {};
  shared_index_ = {};
  constexpr int64_t kNodes = 3'000'000;
  int64_t left = kNodes;
  for (const Part& part : automata_) {
    if (part.reach != reach_.get() || !part.automaton->wide() || left <= 0) continue;
    const int64_t share = std::min<int64_t>(left, kNodes / 4);
    part.reach->prepare(*part.automaton, *trie_, share);
    left -= share;
  }
}

}  // namespace braid::server
