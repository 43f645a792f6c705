// jinja_text.h -- Python's text functions on UTF-8: white space, case, lines, repr, numbers.
// An invalid byte counts as one character. Case mapping covers one-to-one pairs of ASCII, Latin,
// Greek, Cyrillic and Armenian letters, not all of Unicode. Callers charge for the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid::jinja {

// Bytes of the character at text[at]; 1 for an invalid byte.
size_t char_bytes(std::string_view text, size_t at);
// Code point of the character at text[at], and its length; U+FFFD for an invalid byte.
uint32_t decode_char(std::string_view text, size_t at, size_t* bytes);
size_t count_chars(std::string_view text);
// Byte offset of character number `index` counted from `from_byte`; text.size() past the end.
size_t byte_of_char(std::string_view text, size_t index, size_t from_byte = 0);

bool is_space(uint32_t code_point);  // Python's str.isspace
bool is_word(uint32_t code_point);   // \w, where every non-ASCII letter-like character is a letter
uint32_t to_upper(uint32_t code_point);
uint32_t to_lower(uint32_t code_point);
bool is_cased(uint32_t code_point);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_python(std::string_view text);  // str.title(): after any non-letter
std::string title_jinja(
    std::string_view text);  // the filter: after blanks and opening brackets only

// Returns views. `chars` is a set of characters; empty: white space.
std::string_view strip_left(std::string_view text, std::string_view chars = {});
std::string_view strip_right(std::string_view text, std::string_view chars = {});

// Position of `needle` at or after `from`, in linear time; npos if absent.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);

std::vector<std::string_view> split_lines(std::string_view text);  // str.splitlines()

std::string format_real(double number);                     // repr(float): 1.0, 1e+20, inf, nan
void append_repr(std::string& out, std::string_view text);  // repr(str)
std::string escape_html(std::string_view text);

}  // namespace braid::jinja
