// prompt_parts.h -- the parts of a prompt as tokens of the scoring model, and what is kept of them.
// Pure functions, on any thread. The scoring model's tokenizer need not be that of the model that
// gets the text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/compress/keep_curve.h"
#include "text/compress/kept_text.h"
#include "text/compress/selection.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

struct PromptPart {
  std::string_view text;
  KeptBecause kept = KeptBecause::dropped;  // other than that: kept as it is, for this reason
  // Bytes at both ends of a part that may be dropped, which are kept nevertheless.
  size_t head_bytes = 0, tail_bytes = 0;
};

struct TokenizedPrompt {
  std::string text;  // as tokenized: repaired to UTF-8, normalized if the model does so
  std::vector<int32_t> ids;
  std::vector<uint32_t> ends;     // [tokens]: bytes of the text up to the end of each
  std::vector<TokenRange> parts;  // [parts]: tokens do not cross borders of parts
  std::vector<ProtectedRange> kept;

  size_t bytes() const {  // of memory
    return text.capacity() + ids.capacity() * sizeof(int32_t) + ends.capacity() * sizeof(uint32_t);
  }
};

// Errors: those of the tokenizer; invalid_argument, with 4 GiB or more.
Result<std::vector<int32_t>> part_tokens(const Tokenizer& tokenizer, std::string_view text);
// `ids`: part_tokens() of part.text.
Status append_part(TokenizedPrompt& prompt, const Tokenizer& tokenizer, const PromptPart& part,
                   std::span<const int32_t> ids);
Result<TokenizedPrompt> tokenize_parts(const Tokenizer& tokenizer,
                                       std::span<const PromptPart> parts);

struct ChosenParts {
  Selection selection;
  std::vector<float> chunk_scores;  // [chunks]
};
// scores [tokens]. Prompts of `length_tokens` have the ratios of `keep` at that length.
ChosenParts choose_parts(const TokenizedPrompt& prompt, std::span<const float> scores,
                         const KeepCurve& keep, uint64_t length_tokens);
// `kept`: as Selection::kept.
KeptText kept_prompt(const TokenizedPrompt& prompt, std::span<const TokenRange> kept);
// The kept text of one part; empty if nothing of it is kept.
std::string kept_part(const TokenizedPrompt& prompt, std::span<const TokenRange> kept, size_t part);

}  // namespace braid::server
