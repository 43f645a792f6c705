// unicode.h -- reads and writes untrusted UTF-8, one code point at a time.
// Well-formed means Unicode's table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF.
// Repairs differ in the number of U+FFFD:
// - each_byte: one per byte that starts no well-formed sequence, as published tokenizers do.
// - maximal_subpart: one per longest prefix of a well-formed sequence, as Python and web decoders.
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
  ill_formed,  // no further bytes can complete these
  incomplete,  // the text ends inside a possible sequence
};

struct Utf8Step {
  Utf8Kind kind;
  int length_bytes;     // of the sequence, or of its maximal subpart: at least 1
  char32_t code_point;  // U+FFFD unless complete
};

// REQUIRES: `text` is not empty.
Utf8Step utf8_step(std::string_view text);

// Appends the 1 to 4 bytes of a code point; U+FFFD for non-scalar values.
void append_utf8(std::string& out, char32_t code_point);

// Offset of the first byte outside well-formed sequences; empty for well-formed text.
std::optional<size_t> first_invalid_utf8(std::string_view text);

enum class Utf8Repair { each_byte, maximal_subpart };

void append_repaired_utf8(std::string& out, std::string_view text, Utf8Repair repair);
std::string repaired_utf8(std::string_view text, Utf8Repair repair);

}  // namespace braid
