// detokenizer.h -- text that arrives token by token, never cut inside a character.
//
// Not here: stop strings and parsing of the text; they work on what this gives out.
//
// What is given out is well-formed UTF-8. A character whose bytes come in several tokens is given out with
// the last of them. Bytes that can no longer become a character are replaced by U+FFFD, one for each maximal
// subpart, the rule that Python's and the web's decoders follow; what is still incomplete at the end becomes
// one U+FFFD. So all parts joined equal the whole output decoded at once, however it was cut into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace braid {

// The same for bytes of any source.
class Utf8Stream {
 public:
  // Text that is complete with these bytes; may be empty.
  std::string push(std::string_view bytes);

  // What was held back, as text: empty or one U+FFFD. The stream can be used again from the start.
  std::string flush();

  // Bytes held back: 0 to 3.
  size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;  // an incomplete sequence
};

class StreamingDetokenizer {
 public:
  // REQUIRES: the tokenizer outlives this.
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, SpecialText special = SpecialText::hide)
      : tokenizer_(&tokenizer), special_(special) {}

  std::string push(int32_t id) { return stream_.push(tokenizer_->piece(id, special_)); }
  std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  SpecialText special_;
  Utf8Stream stream_;
};

}  // namespace braid
