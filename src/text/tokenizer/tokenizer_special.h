// tokenizer_special.h -- special tokens: which ids have a role, and where their texts stand in a prompt.
//
// Not here: what the tokens mean to a chat (chat.h), and ordinary text (tokenizer_split.h, bpe.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/origin.h"
#include "text/tokenizer/tokenizer_index.h"
#include "text/tokenizer/vocabulary.h"

namespace braid {

// Gives roles by text where the file gives none: end of turn, and the tokens for filling in the middle. Sets
// the types of tokens whose text says what they are. Returns the ids that end a generation, ascending.
// REQUIRES: ids given in `data` are below the number of tokens; types are as many as tokens.
std::vector<int32_t> resolve_special_tokens(VocabularyData& data, const TokenIndex& index);

// A stretch of a prompt: the token `id`, or raw text when id is negative.
struct Fragment {
  size_t begin;
  size_t end;
  int32_t id;
};

// Finds special tokens in text. Longer texts go first, over the whole prompt: a shorter one matches only in
// what the longer ones left; among equals in length the smaller id goes first; one token matches from left to
// right.
class SpecialFinder {
 public:
  struct Special {
    std::string text;  // not empty; no two are equal
    int32_t id;
    bool matches_always;                    // also where special tokens are to be read as plain text
    Origin found_in = Origin::instruction;  // the least trusted text that it is found in; never data
  };

  explicit SpecialFinder(std::vector<Special> specials);

  // Fragments that cover `text` from left to right, none of them empty. A special token is found where every
  // byte of it may be one: what `origins` does not mark is open to all.
  std::vector<Fragment> split(std::string_view text, bool parse_special,
                              const OriginSpans& origins = {}) const;

 private:
  std::vector<size_t> present_in(std::string_view text, bool parse_special, const OriginSpans& origins) const;

  std::vector<Special> specials_;                             // sorted by text
  std::array<std::pair<size_t, size_t>, 256> by_first_byte_;  // ranges of specials_
};

}  // namespace braid
