// unicode.cpp -- see unicode.h. In table 3-7 only the second byte's range depends on the first.
#include "text/unicode.h"

#include <cstring>

#include "base/check.h"

namespace braid {
namespace {

uint8_t byte_at(std::string_view text, size_t index) { return static_cast<uint8_t>(text[index]); }

size_t skip_ascii(std::string_view text, size_t begin) {
  size_t index = begin;
  while (index + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + index, 8);
    if (word & 0x8080808080808080ull) break;
    index += 8;
  }
  while (index < text.size() && byte_at(text, index) < 0x80) ++index;
  return index;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  BRAID_CHECK(!text.empty());
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {Utf8Kind::complete, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::ill_formed, 1, kReplacementCharacter};

  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // below: overlong
  if (lead == 0xED) high = 0x9F;  // above: surrogates
  if (lead == 0xF0) low = 0x90;   // below: overlong
  if (lead == 0xF4) high = 0x8F;  // above: beyond U+10FFFF

  char32_t code_point = lead & (0x7F >> length);
  for (int index = 1; index < length; ++index) {
    if (static_cast<size_t>(index) == text.size())
      return {Utf8Kind::incomplete, index, kReplacementCharacter};
    const uint8_t byte = byte_at(text, index);
    if (byte < low || byte > high) return {Utf8Kind::ill_formed, index, kReplacementCharacter};
    code_point = (code_point << 6) | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::complete, length, code_point};
}

void append_utf8(std::string& out, char32_t code_point) {
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
    code_point = kReplacementCharacter;
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t index = skip_ascii(text, 0);
  while (index < text.size()) {
    const Utf8Step step = utf8_step(text.substr(index));
    if (step.kind != Utf8Kind::complete) return index;
    index = skip_ascii(text, index + step.length_bytes);
  }
  return std::nullopt;
}

void append_repaired_utf8(std::string& out, std::string_view text, Utf8Repair repair) {
  while (true) {
    const size_t valid_bytes = first_invalid_utf8(text).value_or(text.size());
    out.append(text.substr(0, valid_bytes));
    text.remove_prefix(valid_bytes);
    if (text.empty()) return;
    append_utf8(out, kReplacementCharacter);
    text.remove_prefix(repair == Utf8Repair::each_byte ? 1 : utf8_step(text).length_bytes);
  }
}

std::string repaired_utf8(std::string_view text, Utf8Repair repair) {
  std::string out;
  out.reserve(text.size());
  append_repaired_utf8(out, text, repair);
  return out;
}

}  // namespace braid
