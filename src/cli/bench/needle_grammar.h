// needle_grammar.h -- sentences from patterns: "$a" is a word of the list named a.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "cli/bench/needle_random.h"

namespace braid::cli {

// A text whose "$x" are replaced by what `word` gives for 'x', from left to right.
template <typename Word>
std::string expand_pattern(std::string_view pattern, const Word& word) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '$' && i + 1 < pattern.size()) {
      out += word(pattern[++i]);
    } else {
      out += pattern[i];
    }
  }
  return out;
}

struct NeedleGrammar {
  std::span<const std::string_view> patterns;
  std::map<char, std::span<const std::string_view>> lists;
  std::string_view before = " ";  // before a sentence within a paragraph

  std::string sentence(NeedleRandom& random) const {
    return expand_pattern(random.pick(patterns), [&](char name) -> std::string_view {
      const auto list = lists.find(name);
      return list == lists.end() ? std::string_view() : random.pick(list->second);
    });
  }
};

const NeedleGrammar& prose_grammar();
std::span<const NeedleGrammar> multilingual_grammars();

}  // namespace braid::cli
