// unicode.h -- UTF-8 in and out, one code point at a time, without trusting the bytes.
//
// Not here: character classes (PCRE2 knows them, see tokenizer_split.h), normalisation (nfc.h), case.
//
// Well-formed means Unicode's table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF. There are
// two ways to repair ill-formed bytes, and they differ in how many U+FFFD a broken sequence becomes:
//   each_byte         one per byte that starts no well-formed sequence: what published tokenizers feed their
//   models maximal_subpart   one per longest prefix of a well-formed sequence: what the web and Python do for
//   readers
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

enum class Utf8Kind {
  complete,    // a whole well-formed sequence
  ill_formed,  // these bytes can never be completed to one
  incomplete,  // the text ends inside what may still become one
};

struct Utf8Step {
  Utf8Kind kind;
  int length_bytes;     // bytes of the sequence, or of its maximal subpart: at least 1
  char32_t code_point;  // U+FFFD unless complete
};

// Looks at the first bytes of `text`, which is not empty.
Utf8Step utf8_step(std::string_view text);

// Appends the 1 to 4 bytes of a code point; what is no scalar value becomes U+FFFD.
void append_utf8(std::string& out, char32_t code_point);

// Appends the last `digits` digits of a number, as escapes of characters write them.
void append_hex(std::string& out, uint32_t number, int digits);

// Offset of the first byte that is not part of a well-formed sequence; empty for well-formed text.
std::optional<size_t> first_invalid_utf8(std::string_view text);

enum class Utf8Repair { each_byte, maximal_subpart };

// Appends `text` with everything ill-formed replaced by U+FFFD.
void append_repaired_utf8(std::string& out, std::string_view text, Utf8Repair repair);
std::string repaired_utf8(std::string_view text, Utf8Repair repair);

}  // namespace braid
