// tokenizer_special.h -- special tokens: roles of ids, and places of their texts in a prompt.
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

// Assigns roles by text where the file gives none (end of turn, fill-in-the-middle), and types by
// text. Returns the ids that end a generation, ascending. REQUIRES: ids in `data` are below the
// number of tokens; types are as many as tokens.
std::vector<int32_t> resolve_special_tokens(VocabularyData& data, const TokenIndex& index);

// A part of a prompt: the token `id`, or raw text if id is negative.
struct Fragment {
  size_t begin;
  size_t end;
  int32_t id;
};

// Longer texts are found first, over the whole prompt; shorter ones match only in the rest. Of
// equal lengths the smaller id goes first. One token matches from left to right.
class SpecialFinder {
 public:
  struct Special {
    std::string text;  // not empty; all are distinct
    int32_t id;
    bool matches_always;                    // also if special tokens are plain text
    Origin found_in = Origin::instruction;  // least trusted origin where it is found; never data
  };

  explicit SpecialFinder(std::vector<Special> specials);

  // Non-empty fragments that cover `text` from left to right. Every byte of a special token must
  // have a sufficient origin; bytes without a mark count as the template's.
  std::vector<Fragment> split(std::string_view text, bool parse_special,
                              const OriginSpans& origins = {}) const;

 private:
  std::vector<size_t> present_in(std::string_view text, bool parse_special,
                                 const OriginSpans& origins) const;

  std::vector<Special> specials_;                             // sorted by text
  std::array<std::pair<size_t, size_t>, 256> by_first_byte_;  // ranges of specials_
};

}  // namespace braid
