// kept_text.h -- from the kept tokens of a prompt to its compressed text.
// Parts are copied from the original bytes, so tokenizers of drafter and model may differ. Their
// borders are those of word_cuts.h; parts that touch after that are one. Between two parts stands a
// line break if one was skipped, else a blank. None stands where the text beside has a blank
// already, nor next to a marker: a marker keeps the bytes around it.
// Cost: linear in bytes and tokens, besides sorting of markers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/compress/ranges.h"

namespace braid {

struct KeptPart {
  ByteRange source;  // in the original text
  ByteRange output;  // the same bytes in the compressed text
};

struct KeptTextInput {
  std::string_view text;  // any bytes, below 4 GiB
  // [tokens]: bytes of the text up to the end of each token. They never decrease, and the last one
  // is the size of the text.
  std::span<const uint32_t> token_ends;
  std::span<const TokenRange> kept;              // ascending, not overlapping
  std::span<const TokenRange> protected_tokens;  // inside of `kept`; in any order; may overlap
  std::span<const ByteRange> markers;  // special tokens and their like: in any order; may overlap
};

struct KeptText {
  std::string text;
  std::vector<KeptPart> parts;  // ascending in both texts, not empty
  size_t kept_tokens = 0;       // with at least one byte in a part
  size_t total_tokens = 0;

  double ratio() const {
    if (total_tokens == 0) return 1;
    return static_cast<double>(kept_tokens) / static_cast<double>(total_tokens);
  }
};

// All protected tokens are in the result: a program that breaks this stops.
KeptText kept_text(const KeptTextInput& input);

}  // namespace braid
