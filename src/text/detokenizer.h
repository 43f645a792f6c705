// detokenizer.h -- streams text token by token, never cut inside a character.
// Output is well-formed UTF-8. A character over several tokens is emitted with the last one.
// Invalid bytes become one U+FFFD per maximal subpart, as in Python and web decoders; an incomplete
// end becomes one U+FFFD. So the joined parts equal the whole output decoded at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace braid {

class Utf8Stream {
 public:
  std::string push(std::string_view bytes);

  // Ends the text: returns nothing or one U+FFFD for held bytes, and resets the stream.
  std::string flush();

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
