// token_grammar.cpp -- see token_grammar.h.
#include "server/token_grammar.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace braid::server {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : vocabulary_(tokenizer.size()) {
  ids_.resize(static_cast<size_t>(vocabulary_));
  std::iota(ids_.begin(), ids_.end(), 0);
  std::erase_if(ids_, [&](int32_t id) {
    const size_t bytes = tokenizer.piece(id).size();
    return bytes == 0 || bytes > 1000;
  });
  std::sort(ids_.begin(), ids_.end(),
            [&](int32_t a, int32_t b) { return tokenizer.piece(a) < tokenizer.piece(b); });
  std::vector<uint32_t> open;  // nodes on the way to the current token
  std::string_view before;
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    const std::string_view piece = tokenizer.piece(ids_[i]);
    if (i > 0 && piece == before) {
      ++nodes_[open.back()].count;
      continue;
    }
    const size_t common = static_cast<size_t>(
        std::mismatch(piece.begin(), piece.end(), before.begin(), before.end()).first - piece.begin());
    for (; open.size() > common; open.pop_back())
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    for (size_t depth = common; depth < piece.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, 0, static_cast<uint16_t>(depth + 1), 0, static_cast<uint8_t>(piece[depth])});
    }
    nodes_[open.back()].first_id = i;
    nodes_[open.back()].count = 1;
    before = piece;
  }
  for (; !open.empty(); open.pop_back()) nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
}

// ---- Rules -----------------------------------------------------------------------------------------------

ByteGrammar::Rule ByteGrammar::add_rule() {
  rules_.emplace_back();
  return static_cast<Rule>(rules_.size() - 1);
}

void ByteGrammar::add(Rule rule, Sequence sequence) {
  rules_.at(static_cast<size_t>(rule)).push_back(static_cast<uint32_t>(symbols_.size()));
  symbols_.insert(symbols_.end(), sequence.begin(), sequence.end());
  symbols_.push_back({Symbol::Kind::end, 0});
}

// A rule has one when all rules of one of its sequences do. Each sequence waits for so many rules, and each
// rule that is found tells the sequences that it stands in: time in proportion to the grammar.
bool ByteGrammar::have_sentences(std::span<const Rule> wanted) const {
  struct Waiting {
    size_t rule;
    int rules;  // of the sequence that are not found yet
  };
  std::vector<Waiting> waiting;
  std::vector<std::vector<size_t>> stands_in(rules_.size());  // indices into waiting, once per occurrence
  std::vector<bool> found(rules_.size());
  std::vector<size_t> fresh;
  const auto find = [&](size_t r) {
    if (!found[r]) fresh.push_back(r);
    found[r] = true;
  };
  for (size_t r = 0; r < rules_.size(); ++r)
    for (const uint32_t begin : rules_[r]) {
      Waiting sequence{r, 0};
      for (uint32_t at = begin; symbols_[at].kind != Symbol::Kind::end; ++at) {
        if (symbols_[at].kind != Symbol::Kind::rule) continue;
        ++sequence.rules;
        stands_in[static_cast<size_t>(symbols_[at].index)].push_back(waiting.size());
      }
      if (sequence.rules == 0) find(r);
      waiting.push_back(sequence);
    }
  while (!fresh.empty()) {
    const size_t r = fresh.back();
    fresh.pop_back();
    for (const size_t w : stands_in[r])
      if (--waiting[w].rules == 0) find(waiting[w].rule);
  }
  return std::all_of(wanted.begin(), wanted.end(), [&](Rule r) { return found[static_cast<size_t>(r)]; });
}

ByteGrammar::Symbol ByteGrammar::bytes(const ByteSet& set) {
  const auto [found, added] = set_index_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return {Symbol::Kind::bytes, found->second};
}

ByteGrammar::Symbol ByteGrammar::range(uint8_t low, uint8_t high) {
  ByteSet set;
  for (int byte = low; byte <= high; ++byte) set.set(static_cast<size_t>(byte));
  return bytes(set);
}

void ByteGrammar::literal(Sequence& out, std::string_view text) {
  for (const char c : text) out.push_back(byte(static_cast<uint8_t>(c)));
}

// ---- States ----------------------------------------------------------------------------------------------

TokenGrammar::TokenGrammar(ByteGrammar grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)) {
  std::vector<int32_t> frames;
  bool accepts = false;
  for (const uint32_t start : grammar_.rules_.at(static_cast<size_t>(grammar_.root_))) {
    close(start, -1, 0, frames, accepts);
  }
  start_ = state_of(std::move(frames), accepts);
}

int32_t TokenGrammar::frame(uint32_t symbol, int32_t parent) const {
  const uint64_t key = uint64_t{symbol} << 32 | static_cast<uint32_t>(parent);
  const auto [found, added] = frame_index_.emplace(key, static_cast<int32_t>(frames_.size()));
  if (added) frames_.push_back({symbol, parent});
  return found->second;
}

// Follows rules from `symbol` until byte sets are reached.
void TokenGrammar::close(uint32_t symbol, int32_t parent, int depth, std::vector<int32_t>& out,
                         bool& accepts) const {
  using Kind = ByteGrammar::Symbol::Kind;
  if (depth > kMaxClosureDepth) return;
  while (grammar_.symbols_[symbol].kind == Kind::end) {
    if (parent < 0) {
      accepts = true;
      return;
    }
    symbol = frames_[static_cast<size_t>(parent)].symbol;
    parent = frames_[static_cast<size_t>(parent)].parent;
  }
  if (!visited_.insert(uint64_t{symbol} << 32 | static_cast<uint32_t>(parent)).second) return;
  const ByteGrammar::Symbol at = grammar_.symbols_[symbol];
  if (at.kind == Kind::bytes) {
    out.push_back(frame(symbol, parent));
    return;
  }
  // What follows a rule at the end of a sequence is what follows the sequence: lists do not grow the stack.
  const bool last = grammar_.symbols_[symbol + 1].kind == Kind::end;
  const int32_t after = last ? parent : frame(symbol + 1, parent);
  for (const uint32_t start : grammar_.rules_[static_cast<size_t>(at.index)]) {
    close(start, after, depth + 1, out, accepts);
  }
}

TokenGrammar::State TokenGrammar::state_of(std::vector<int32_t> frames, bool accepts) const {
  if (frames.empty() && !accepts) return kDead;
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  std::string key(reinterpret_cast<const char*>(frames.data()), frames.size() * sizeof(int32_t));
  key += accepts ? '1' : '0';
  const auto found = state_index_.find(key);
  if (found != state_index_.end()) return found->second;
  if (states_.size() >= kMaxStates) return kDead;
  const auto state = static_cast<State>(states_.size());
  StateData data;
  data.frames = std::move(frames);
  data.accepts = accepts;
  states_.push_back(std::move(data));
  state_index_.emplace(std::move(key), state);
  return state;
}

TokenGrammar::State TokenGrammar::step(State state, uint8_t byte) const {
  std::vector<int32_t> frames;
  bool accepts = false;
  visited_.clear();
  const std::vector<int32_t> from = states_[static_cast<size_t>(state)].frames;
  for (const int32_t index : from) {
    const Frame at = frames_[static_cast<size_t>(index)];
    const ByteGrammar::Symbol symbol = grammar_.symbols_[at.symbol];
    if (grammar_.sets_[static_cast<size_t>(symbol.index)].test(byte)) {
      close(at.symbol + 1, at.parent, 0, frames, accepts);
    }
  }
  return state_of(std::move(frames), accepts);
}

TokenGrammar::State TokenGrammar::next(State state, uint8_t byte) const {
  if (state == kDead) return kDead;
  auto& table = states_[static_cast<size_t>(state)].next;
  if (table == nullptr) {
    table = std::make_unique<std::array<State, 256>>();
    table->fill(kUnknown);
  }
  if ((*table)[byte] == kUnknown) {
    const State found = step(state, byte);  // may move states_
    (*states_[static_cast<size_t>(state)].next)[byte] = found;
    return found;
  }
  return (*table)[byte];
}

TokenGrammar::State TokenGrammar::next(State state, std::string_view bytes) const {
  for (const char c : bytes) state = next(state, static_cast<uint8_t>(c));
  return state;
}

bool TokenGrammar::accepts(State state) const {
  return state != kDead && states_[static_cast<size_t>(state)].accepts;
}

void TokenGrammar::allowed(State state, std::span<uint64_t> bits) const {
  if (state == kDead) return;
  auto cached = masks_.find(state);
  if (cached == masks_.end()) {
    if (masks_.size() >= kMaxMasks) masks_.clear();
    std::vector<uint64_t> mask((static_cast<size_t>(trie_->vocabulary()) + 63) / 64);
    std::vector<State> path{state};  // state after each byte of the current token
    const auto nodes = trie_->nodes();
    for (uint32_t i = 0; i < nodes.size();) {
      const TokenTrie::Node& node = nodes[i];
      path.resize(node.depth);
      const State after = next(path.back(), node.byte);
      if (after == kDead) {
        i = node.end;
        continue;
      }
      for (uint32_t k = 0; k < node.count; ++k) {
        const auto id = static_cast<uint32_t>(trie_->ids()[node.first_id + k]);
        mask[id / 64] |= uint64_t{1} << (id % 64);
      }
      path.push_back(after);
      ++i;
    }
    cached = masks_.emplace(state, std::move(mask)).first;
  }
  const size_t words = std::min(bits.size(), cached->second.size());
  for (size_t i = 0; i < words; ++i) bits[i] |= cached->second[i];
}

}  // namespace braid::server
