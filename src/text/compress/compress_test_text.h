// compress_test_text.h -- texts and their tokens for tests of this folder.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TokenizedText {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint32_t> ends;  // bytes
};

// Like byte-level BPE: a blank before letters belongs to their token, digits stand alone, and
// letters and bytes of other characters are cut after `most_bytes`, which may be inside of UTF-8.
inline TokenizedText tokenized(std::string text, size_t most_bytes = 5) {
  TokenizedText out;
  std::map<std::string, int32_t, std::less<>> known;
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<uint8_t>(c) >= 0x80;
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    const bool blank = text[at] == ' ' && end < text.size() && is_letter(text[end]);
    if (blank || is_letter(text[at]))
      while (end < text.size() && end - at < most_bytes && is_letter(text[end])) ++end;
    const auto [id, added] =
        known.try_emplace(text.substr(at, end - at), static_cast<int32_t>(known.size()));
    out.ids.push_back(id->second);
    out.ends.push_back(static_cast<uint32_t>(end));
    at = end;
  }
  out.text = std::move(text);
  return out;
}

// Of all scripts that are cut differently.
inline std::string mixed_script_text(std::mt19937& random, size_t pieces) {
  static const std::vector<std::string> kPieces = {"the ",
                                                   "harbor ",
                                                   "identifier_with_parts ",
                                                   "\n",
                                                   "\n\n",
                                                   "    return x;\n",
                                                   "1234567 ",
                                                   "3.14159",
                                                   "antidisestablishmentarianism",
                                                   "密码是",
                                                   "海边的城市",
                                                   "，",
                                                   "。",
                                                   "「引用」",
                                                   "ひらがなとカタカナ",
                                                   "สวัสดีครับ",
                                                   "한국어 문장 ",
                                                   "e\u0301te\u0301 ",
                                                   "a\u0300\u0301\u0302",
                                                   "👩‍👩‍👧‍👦",
                                                   "🇩🇪🇫🇷",
                                                   "👍🏽",
                                                   "```cpp\n",
                                                   "```\n",
                                                   "~~~\n",
                                                   "\r\n",
                                                   "\t",
                                                   "\u3000",
                                                   "x",
                                                   "Ünïcödé ",
                                                   "{\"k\":1}",
                                                   "a=b;c=d;",
                                                   "`code` "};
  std::string out;
  for (size_t i = 0; i < pieces; ++i) out += kPieces[random() % kPieces.size()];
  return out;
}

}  // namespace braid
