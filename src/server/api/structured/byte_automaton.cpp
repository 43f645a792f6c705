// byte_automaton.cpp -- see byte_automaton.h.
#include "server/api/structured/byte_automaton.h"

#include <algorithm>
#include <bitset>
#include <compare>
#include <map>
#include <string>
#include <utility>

namespace braid::server {

namespace {

constexpr int kWideBytes = 16;

}  // namespace

bool Automaton::trim(GrammarBudget& budget) {
  const size_t count = accepts_.size();
  if (!budget.spend(static_cast<int64_t>(next_.size()))) return false;
  // Reversed edges as one list: the predecessors of state s are from[begin[s], begin[s + 1]).
  std::vector<uint32_t> begin(count + 1);
  for (const int32_t to : next_)
    if (to >= 0) ++begin[static_cast<size_t>(to) + 1];
  for (size_t s = 0; s < count; ++s) begin[s + 1] += begin[s];
  std::vector<uint32_t> from(begin.back()), at = begin;
  for (size_t i = 0; i < next_.size(); ++i)
    if (next_[i] >= 0)
      from[at[static_cast<size_t>(next_[i])]++] = static_cast<uint32_t>(i / classes_);
  std::vector<uint8_t> ends(count);
  std::vector<uint32_t> open;
  for (size_t s = 0; s < count; ++s)
    if (accepts_[s] != 0) ends[s] = 1, open.push_back(static_cast<uint32_t>(s));
  while (!open.empty()) {
    const uint32_t s = open.back();
    open.pop_back();
    for (uint32_t i = begin[s]; i < begin[s + 1]; ++i)
      if (ends[from[i]] == 0) ends[from[i]] = 1, open.push_back(from[i]);
  }
  Automaton out;
  out.class_of_ = class_of_;
  out.classes_ = classes_;
  if (count > 0 && ends[0] != 0) {
    std::vector<int32_t> number(count, kDead);
    std::vector<uint32_t> order{0};
    number[0] = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      for (size_t c = 0; c < classes_; ++c) {
        const int32_t to = next_[order[k] * classes_ + c];
        if (to < 0 || ends[static_cast<size_t>(to)] == 0) {
          out.next_.push_back(kDead);
          continue;
        }
        int32_t& named = number[static_cast<size_t>(to)];
        if (named < 0)
          named = static_cast<int32_t>(order.size()), order.push_back(static_cast<uint32_t>(to));
        out.next_.push_back(named);
      }
      out.accepts_.push_back(accepts_[order[k]]);
    }
  }
  *this = std::move(out);
  look();
  return budget.spend(0, bytes());
}

void Automaton::look() {
  std::array<int, 256> width{};
  for (const uint8_t c : class_of_) ++width[c];
  last_.assign(accepts_.size(), 1);
  wide_ = false;
  for (size_t s = 0; s < accepts_.size(); ++s) {
    int bytes = 0;
    for (size_t c = 0; c < classes_; ++c)
      if (next_[s * classes_ + c] >= 0) bytes += width[c];
    last_[s] = bytes == 0 ? 1 : 0;
    wide_ = wide_ || bytes >= kWideBytes;
  }
}

bool Automaton::takes(std::string_view text) const {
  int32_t state = empty() ? kDead : 0;
  for (size_t i = 0; i < text.size() && state >= 0; ++i)
    state = next(state, static_cast<uint8_t>(text[i]));
  return state >= 0 && accepts(state);
}

Automaton Automaton::quoted() const {
  Automaton out;
  if (empty()) return out;
  const size_t old = classes_, quote = classes_;  // the quote gets a class of its own
  out.class_of_ = class_of_;
  out.class_of_['"'] = static_cast<uint8_t>(quote);
  out.classes_ = old + 1;
  const auto end = static_cast<int32_t>(accepts_.size() + 1);
  out.next_.assign(out.classes_, kDead);
  out.next_[quote] = 1;
  for (size_t s = 0; s < accepts_.size(); ++s) {
    for (size_t c = 0; c < old; ++c) {
      const int32_t to = next_[s * old + c];
      out.next_.push_back(to < 0 ? kDead : to + 1);
    }
    const int32_t escaped = next_[s * old + class_of_['"']];
    out.next_.push_back(accepts_[s] != 0 ? end : escaped < 0 ? kDead : escaped + 1);
  }
  out.next_.resize(out.next_.size() + out.classes_, kDead);
  out.accepts_.assign(static_cast<size_t>(end) + 1, 0);
  out.accepts_.back() = 1;
  out.look();
  return out;
}

std::optional<Automaton> Automaton::from_table(const std::vector<std::array<int32_t, 256>>& next,
                                               const std::vector<uint8_t>& accepts,
                                               GrammarBudget& budget) {
  Automaton out;
  std::map<std::string, uint8_t> columns;
  std::vector<uint8_t> first;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string column;
    for (const auto& row : next)
      column.append(reinterpret_cast<const char*>(&row[byte]), sizeof(int32_t));
    const auto [found, added] =
        columns.emplace(std::move(column), static_cast<uint8_t>(columns.size()));
    out.class_of_[byte] = found->second;
    if (added) first.push_back(static_cast<uint8_t>(byte));
  }
  out.classes_ = first.size();
  for (const auto& row : next)
    for (const uint8_t byte : first) out.next_.push_back(row[byte]);
  out.accepts_ = accepts;
  if (!out.trim(budget)) return std::nullopt;
  return out;
}

int32_t Nfa::add() {
  budget_.spend(4);
  if (!budget_.used_up() || nodes_.empty()) nodes_.emplace_back();
  return static_cast<int32_t>(nodes_.size() - 1);
}

void Nfa::edge(int32_t from, uint8_t low, uint8_t high, int32_t to) {
  if (!budget_.spend(4)) return;
  edges_.push_back({low, high, to, nodes_[static_cast<size_t>(from)].edge});
  nodes_[static_cast<size_t>(from)].edge = static_cast<int32_t>(edges_.size() - 1);
}

void Nfa::jump(int32_t from, int32_t to) {
  if (!budget_.spend(2)) return;
  jumps_.push_back({to, nodes_[static_cast<size_t>(from)].jump});
  nodes_[static_cast<size_t>(from)].jump = static_cast<int32_t>(jumps_.size() - 1);
}

void Nfa::embed(const Automaton& automaton, int32_t from, int32_t to) {
  std::vector<int32_t> at;
  for (int32_t s = 0; s < automaton.states() && !budget_.used_up(); ++s) at.push_back(add());
  if (budget_.used_up() || at.empty()) return;
  jump(from, at[0]);
  for (int32_t s = 0; s < automaton.states(); ++s) {
    for (int byte = 0; byte < 256;) {
      const int32_t target = automaton.next(s, static_cast<uint8_t>(byte));
      int end = byte + 1;
      while (end < 256 && automaton.next(s, static_cast<uint8_t>(end)) == target) ++end;
      if (target >= 0)
        edge(at[static_cast<size_t>(s)], static_cast<uint8_t>(byte), static_cast<uint8_t>(end - 1),
             at[static_cast<size_t>(target)]);
      byte = end;
    }
    if (automaton.accepts(s)) jump(at[static_cast<size_t>(s)], to);
  }
}

void Nfa::close(std::vector<int32_t>& set, std::vector<uint32_t>& stamps, uint32_t stamp) {
  size_t kept = 0;
  for (const int32_t n : set) {  // each state once
    if (stamps[static_cast<size_t>(n)] == stamp) continue;
    stamps[static_cast<size_t>(n)] = stamp;
    set[kept++] = n;
  }
  set.resize(kept);
  for (size_t i = 0; i < set.size(); ++i) {
    for (int32_t j = nodes_[static_cast<size_t>(set[i])].jump; j >= 0;
         j = jumps_[static_cast<size_t>(j)].next) {
      const int32_t to = jumps_[static_cast<size_t>(j)].to;
      budget_.spend(1);
      if (stamps[static_cast<size_t>(to)] == stamp) continue;
      stamps[static_cast<size_t>(to)] = stamp;
      set.push_back(to);
    }
    if (budget_.used_up()) return;
  }
  budget_.spend(static_cast<int64_t>(set.size()) * 2);
  std::sort(set.begin(), set.end());
}

std::optional<Automaton> Nfa::determinise(int32_t start, int32_t end) {
  if (budget_.used_up()) return std::nullopt;
  std::bitset<257> cuts;
  for (const Edge& e : edges_) cuts.set(e.low).set(static_cast<size_t>(e.high) + 1);
  Automaton out;
  uint8_t last = 0;
  for (size_t byte = 1; byte < 256; ++byte) {
    if (cuts.test(byte)) ++last;
    out.class_of_[byte] = last;
  }
  out.classes_ = size_t{last} + 1;

  std::vector<uint32_t> stamps(nodes_.size());
  uint32_t stamp = 0;
  std::map<std::string, int32_t> known;
  std::vector<std::vector<int32_t>> sets;
  const auto state_of = [&](std::vector<int32_t>& set) {
    close(set, stamps, ++stamp);
    std::string key(reinterpret_cast<const char*>(set.data()), set.size() * sizeof(int32_t));
    const auto [found, added] = known.emplace(std::move(key), static_cast<int32_t>(sets.size()));
    if (added) {
      budget_.spend(static_cast<int64_t>(out.classes_));
      sets.push_back(set);
    }
    return found->second;
  };
  std::vector<int32_t> first{start};
  state_of(first);
  std::vector<std::vector<int32_t>> targets(out.classes_);
  for (size_t s = 0; s < sets.size(); ++s) {
    for (auto& list : targets) list.clear();
    for (const int32_t n : sets[s]) {
      for (int32_t e = nodes_[static_cast<size_t>(n)].edge; e >= 0;
           e = edges_[static_cast<size_t>(e)].next) {
        const Edge& edge = edges_[static_cast<size_t>(e)];
        const size_t low = out.class_of_[edge.low], high = out.class_of_[edge.high];
        budget_.spend(static_cast<int64_t>(high - low) + 1);
        for (size_t c = low; c <= high; ++c) targets[c].push_back(edge.to);
      }
      if (budget_.used_up()) return std::nullopt;
    }
    int32_t before = Automaton::kDead;
    for (size_t c = 0; c < out.classes_; ++c) {
      int32_t to = Automaton::kDead;
      if (!targets[c].empty()) {
        std::vector<int32_t> set = targets[c];
        to = c > 0 && targets[c] == targets[c - 1] ? before : state_of(set);
      }
      before = to;
      out.next_.push_back(to);
      if (budget_.used_up()) return std::nullopt;
    }
    out.accepts_.push_back(std::binary_search(sets[s].begin(), sets[s].end(), end) ? 1 : 0);
  }
  if (!out.trim(budget_)) return std::nullopt;
  return out;
}

std::vector<uint8_t> Automaton::join_classes(const Automaton& a, const Automaton& b) {
  std::map<uint32_t, uint8_t> pairs;
  std::vector<uint8_t> first;
  for (size_t byte = 0; byte < 256; ++byte) {
    const uint32_t pair = uint32_t{a.class_of_[byte]} << 8 | b.class_of_[byte];
    const auto [found, added] = pairs.emplace(pair, static_cast<uint8_t>(pairs.size()));
    class_of_[byte] = found->second;
    if (added) first.push_back(static_cast<uint8_t>(byte));
  }
  classes_ = first.size();
  return first;
}

std::optional<Automaton> combined(const Automaton& a, const Automaton& b, bool without,
                                  GrammarBudget& budget) {
  if (a.empty() || (without && b.empty())) return a;
  if (b.empty()) return b;
  Automaton out;
  const std::vector<uint8_t> first = out.join_classes(a, b);
  std::map<uint64_t, int32_t> known{{0, 0}};
  std::vector<std::pair<int32_t, int32_t>> places{{0, 0}};  // the second state may be dead
  for (size_t s = 0; s < places.size(); ++s) {
    const auto [in_a, in_b] = places[s];
    if (!budget.spend(static_cast<int64_t>(out.classes_) * 2)) return std::nullopt;
    const bool also = in_b >= 0 && b.accepts(in_b);
    out.accepts_.push_back(a.accepts(in_a) && also != without ? 1 : 0);
    for (const uint8_t byte : first) {
      const int32_t to_a = a.next(in_a, byte);
      const int32_t to_b = in_b < 0 ? Automaton::kDead : b.next(in_b, byte);
      if (to_a < 0 || (to_b < 0 && !without)) {
        out.next_.push_back(Automaton::kDead);
        continue;
      }
      const uint64_t key =
          uint64_t{static_cast<uint32_t>(to_a)} << 32 | static_cast<uint32_t>(to_b);
      const auto [found, added] = known.emplace(key, static_cast<int32_t>(places.size()));
      if (added) places.emplace_back(to_a, to_b);
      out.next_.push_back(found->second);
    }
  }
  if (!out.trim(budget)) return std::nullopt;
  return out;
}

std::optional<Automaton> with_length(const Automaton& content, const Automaton& character,
                                     int64_t least, int64_t most, GrammarBudget& budget) {
  if (content.empty()) return content;
  struct Place {
    int32_t content, character;
    int64_t count;
    auto operator<=>(const Place&) const = default;
  };
  Automaton out;
  const std::vector<uint8_t> first = out.join_classes(content, character);
  std::map<Place, int32_t> known;
  std::vector<Place> places{{0, 0, 0}};
  known.emplace(places[0], 0);
  for (size_t s = 0; s < places.size(); ++s) {
    const Place at = places[s];
    if (!budget.spend(static_cast<int64_t>(out.classes_) * 2)) return std::nullopt;
    const bool between = at.character == 0;
    out.accepts_.push_back(between && content.accepts(at.content) && at.count >= least ? 1 : 0);
    for (const uint8_t byte : first) {
      int32_t to = Automaton::kDead;
      const int32_t c = content.next(at.content, byte), k = character.next(at.character, byte);
      if (c >= 0 && k >= 0 && (!between || most < 0 || at.count < most)) {
        Place then{c, k, at.count};
        if (character.accepts(k)) {
          then.character = 0;
          then.count = most < 0 ? std::min(at.count + 1, least) : at.count + 1;
        }
        const auto [found, added] = known.emplace(then, static_cast<int32_t>(places.size()));
        if (added) places.push_back(then);
        to = found->second;
      }
      out.next_.push_back(to);
    }
  }
  if (!out.trim(budget)) return std::nullopt;
  return out;
}

}  // namespace braid::server
