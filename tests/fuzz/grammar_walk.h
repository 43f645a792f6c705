// grammar_walk.h -- follows a compiled grammar with tokens that the fuzzer chooses.
// Checks: a next token or the end is always allowed; allowed tokens can follow; calls stay within
// their cost bound; a whole sentence is JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "gguf/gguf.h"
#include "server/api/structured/grammar_cache.h"
#include "server/api/structured/grammar_matcher.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {

inline const Tokenizer& demo_tokenizer() {
  static const auto kFile = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  static const auto kTokenizer = Tokenizer::create(read_vocabulary(*kFile).value()).value();
  return kTokenizer;
}

inline const GrammarCache& demo_grammars() {
  static const GrammarCache kGrammars(demo_tokenizer());
  return kGrammars;
}

inline void walk_form(std::shared_ptr<const GrammarProgram> program,
                      std::span<const uint8_t> choices, int steps) {
  const Tokenizer& tokenizer = demo_tokenizer();
  GrammarMatcher matcher(std::move(program));
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  std::string text;
  uint32_t state = 1;
  for (int step = 0; step < steps; ++step) {
    std::fill(bits.begin(), bits.end(), 0);
    matcher.allowed(bits);
    const size_t nodes = demo_grammars().trie().nodes().size();
    const auto most =
        GrammarMatcher::kMostSteps + static_cast<int64_t>(GrammarMatcher::kMaxWide * nodes * 2);
    BRAID_CHECK(matcher.steps() <= most);
    std::vector<int32_t> ids;
    for (size_t w = 0; w < bits.size(); ++w)
      for (uint64_t left = bits[w]; left != 0; left &= left - 1)
        ids.push_back(static_cast<int32_t>(w * 64) + __builtin_ctzll(left));
    if (matcher.accepts()) BRAID_CHECK(nlohmann::json::accept(text));
    BRAID_CHECK(!ids.empty() || matcher.accepts());
    if (ids.empty()) return;
    state = state * 1664525u + 1013904223u +
            (choices.empty() ? 0 : choices[static_cast<size_t>(step) % choices.size()]);
    const int32_t id = ids[(state >> 8) % ids.size()];
    BRAID_CHECK(matcher.advance(tokenizer.piece(id)));
    text += tokenizer.piece(id);
    if (step % 7 == 6) {  // going back leads to the same state
      const size_t depth = matcher.depth();
      std::vector<uint64_t> before(bits.size()), after(bits.size());
      matcher.allowed(before);
      if (matcher.advance(tokenizer.piece(ids[0]))) matcher.rewind_to(depth);
      matcher.allowed(after);
      BRAID_CHECK(before == after);
    }
  }
}

}  // namespace braid::server
