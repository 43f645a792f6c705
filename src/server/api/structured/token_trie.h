// token_trie.h -- the tokens of a vocabulary as a byte trie. Immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace braid::server {

class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);

  // In depth-first order.
  struct Node {
    uint32_t end;       // index after its subtree
    uint32_t first_id;  // its tokens are ids()[first_id, first_id + count)
    uint16_t depth;     // bytes, from 1
    uint16_t count;
    uint8_t byte;
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> ids() const { return ids_; }
  int32_t vocabulary() const { return vocabulary_; }
  size_t words() const { return (static_cast<size_t>(vocabulary_) + 63) / 64; }

  // Tokens inside a JSON string, from one state of json_character() (0: between characters).
  // `begun`: characters that begin inside the token.
  struct InString {
    struct Token {
      int32_t id;
      uint32_t begun;
    };
    struct Closing {
      uint32_t node;  // its byte is the closing quote
      uint32_t begun;
    };
    std::vector<Token> tokens;      // stay inside the string; fewest characters first
    std::vector<Closing> closings;  // in trie order
    // For state 0: bit sets of the tokens with at most k + 1 characters.
    std::vector<std::vector<uint64_t>> up_to;
  };
  const InString& in_string(int32_t state) const { return in_string_[static_cast<size_t>(state)]; }

  void set_tokens(const Node& node, std::span<uint64_t> bits) const {
    for (uint32_t k = 0; k < node.count; ++k) {
      const auto id = static_cast<uint32_t>(ids_[node.first_id + k]);
      if (id / 64 < bits.size()) bits[id / 64] |= uint64_t{1} << (id % 64);
    }
  }

  // Clears the tokens of the subtree. Returns its number of nodes.
  int64_t clear_tokens(uint32_t node, std::span<uint64_t> bits) const {
    for (uint32_t i = node; i < nodes_[node].end; ++i)
      for (uint32_t k = 0; k < nodes_[i].count; ++k) {
        const auto id = static_cast<uint32_t>(ids_[nodes_[i].first_id + k]);
        if (id / 64 < bits.size()) bits[id / 64] &= ~(uint64_t{1} << (id % 64));
      }
    return int64_t{nodes_[node].end} - node;
  }

 private:
  void look_into_strings();

  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
  std::vector<InString> in_string_;
  int32_t vocabulary_ = 0;
};

}  // namespace braid::server
