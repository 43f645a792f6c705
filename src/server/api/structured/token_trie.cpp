// token_trie.cpp -- see token_trie.h.
#include "server/api/structured/token_trie.h"

#include <algorithm>
#include <numeric>

#include "server/api/structured/grammar_parts.h"

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
  std::vector<uint32_t> open;  // path to the current token
  std::string_view before;
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    const std::string_view piece = tokenizer.piece(ids_[i]);
    if (i > 0 && piece == before) {
      ++nodes_[open.back()].count;
      continue;
    }
    const size_t common = static_cast<size_t>(
        std::mismatch(piece.begin(), piece.end(), before.begin(), before.end()).first -
        piece.begin());
    for (; open.size() > common; open.pop_back())
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    for (size_t depth = common; depth < piece.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {0, 0, static_cast<uint16_t>(depth + 1), 0, static_cast<uint8_t>(piece[depth])});
    }
    nodes_[open.back()].first_id = i;
    nodes_[open.back()].count = 1;
    before = piece;
  }
  for (; !open.empty(); open.pop_back())
    nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
  look_into_strings();
}

void TokenTrie::look_into_strings() {
  constexpr size_t kDense = 32;
  const Automaton& character = json_character();
  struct Place {
    int32_t state;
    uint32_t begun;
  };
  in_string_.resize(static_cast<size_t>(character.states()));
  for (int32_t from = 0; from < character.states(); ++from) {
    InString& out = in_string_[static_cast<size_t>(from)];
    std::vector<Place> path{{from, 0}};
    for (uint32_t i = 0; i < nodes_.size();) {
      const Node& node = nodes_[i];
      path.resize(node.depth);
      const Place at = path.back();
      if (at.state == 0 && node.byte == '"') {
        out.closings.push_back({i, at.begun});
        i = node.end;
        continue;
      }
      const int32_t to = character.next(at.state, node.byte);
      if (to == Automaton::kDead) {
        i = node.end;
        continue;
      }
      const Place then{character.accepts(to) ? 0 : to, at.begun + (at.state == 0 ? 1 : 0)};
      for (uint32_t k = 0; k < node.count; ++k)
        out.tokens.push_back({ids_[node.first_id + k], then.begun});
      path.push_back(then);
      ++i;
    }
    std::stable_sort(out.tokens.begin(), out.tokens.end(),
                     [](const auto& a, const auto& b) { return a.begun < b.begun; });
  }
  InString& between = in_string_[0];
  std::vector<uint64_t> bits(words());
  size_t next = 0;
  for (size_t k = 0; k < kDense; ++k) {
    for (; next < between.tokens.size() && between.tokens[next].begun <= k + 1; ++next) {
      const auto id = static_cast<uint32_t>(between.tokens[next].id);
      bits[id / 64] |= uint64_t{1} << (id % 64);
    }
    between.up_to.push_back(bits);
  }
  between.tokens.erase(between.tokens.begin(),
                       between.tokens.begin() + static_cast<ptrdiff_t>(next));
}

}  // namespace braid::server
