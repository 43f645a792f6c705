// tokenizer_fuzz.cpp -- hostile texts and hostile vocabularies through the whole tokenizer.
// The first byte chooses the pre-tokenizer and the options. If its highest bit is clear, the rest
// is a text for a built-in vocabulary. If set, the rest is a vocabulary, one line per token or
// merge, and a text.
// Checks: ids are in range; decoding gives the repaired text; streaming in any cuts gives the same.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace braid;

constexpr std::array<const char*, 6> kNames = {"qwen2", "qwen35", "llama-bpe",
                                               "gpt-2", "laguna", ""};

void add_token(VocabularyData& data, std::string text, TokenType type) {
  data.tokens.push_back(std::move(text));
  data.types.push_back(static_cast<int32_t>(type));
}

VocabularyData byte_vocabulary(const char* name) {
  VocabularyData data;
  data.pre = name;
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    add_token(data, to_byte_alphabet({&value, 1}), TokenType::normal);
  }
  return data;
}

Tokenizer make_tokenizer(const char* name) {
  VocabularyData data = byte_vocabulary(name);
  const std::pair<const char*, const char*> merges[] = {
      {"a", "a"},           {"aa", "aa"},     {" ", " "},   {"  ", "  "}, {"\n", "\n"},
      {"t", "h"},           {"th", "e"},      {" ", "the"}, {"e", "r"},   {"\xE4", "\xB8"},
      {"\xE4\xB8", "\x96"}, {"\xF0", "\x9F"}, {"1", "2"},   {"r", "\n"},
  };
  for (const auto& [left, right] : merges) {
    data.merges.push_back(to_byte_alphabet(left) + " " + to_byte_alphabet(right));
    add_token(data, to_byte_alphabet(std::string(left) + right), TokenType::normal);
  }
  add_token(data, "<|im_end|>", TokenType::control);
  add_token(data, "<|im_start|>", TokenType::control);
  add_token(data, "<|im", TokenType::control);
  add_token(data, "<think>", TokenType::user_defined);
  add_token(data, "\n\n\n", TokenType::user_defined);
  return Tokenizer::create(std::move(data)).value();
}

void hold_promises(const Tokenizer& tokenizer, std::string_view text, bool parse_special,
                   bool spells_all_bytes) {
  const auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = parse_special});
  if (!ids.ok()) {
    BRAID_CHECK(!spells_all_bytes && !ids.error().message.empty());
    return;
  }
  for (const int32_t id : *ids) BRAID_CHECK(id >= 0 && id < tokenizer.size());
  const std::string decoded = tokenizer.decode(*ids, SpecialText::show);
  if (spells_all_bytes) {
    // Special tokens here are ASCII, so cutting them out does not affect repair. Some families
    // normalize the rest.
    const std::string repaired = repaired_utf8(text, Utf8Repair::each_byte);
    std::string first, second;
    BRAID_CHECK(nfc(decoded, first).value() == nfc(repaired, second).value());
  }
  StreamingDetokenizer stream(tokenizer, SpecialText::show);
  std::string streamed;
  for (const int32_t id : *ids) {
    const std::string part = stream.push(id);
    BRAID_CHECK(!first_invalid_utf8(part));
    streamed += part;
  }
  streamed += stream.flush();
  BRAID_CHECK(streamed == repaired_utf8(decoded, Utf8Repair::maximal_subpart));
  BRAID_CHECK(
      tokenizer.encode(text, {.add_special = false, .parse_special = parse_special}).value() ==
      *ids);
}

// Lines: "m" + a merge, "c" + a control token, "u" + a user-defined one, "n" + a normal one; "b"
// adds the 256 bytes. The first other line starts the text.
void fuzz_vocabulary(const char* name, std::string_view input, bool parse_special) {
  VocabularyData data;
  data.pre = name;
  while (!input.empty()) {
    const size_t end = std::min(input.find('\n'), input.size());
    const std::string line(input.substr(0, end));
    const char kind = line.empty() ? '\0' : line[0];
    if (kind == 'm') {
      data.merges.push_back(line.substr(1));
    } else if (kind == 'c') {
      add_token(data, line.substr(1), TokenType::control);
    } else if (kind == 'u') {
      add_token(data, line.substr(1), TokenType::user_defined);
    } else if (kind == 'n') {
      add_token(data, line.substr(1), TokenType::normal);
    } else if (kind == 'b' && data.tokens.empty()) {
      data.tokens = byte_vocabulary(name).tokens;
      data.types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::normal));
    } else {
      break;
    }
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  auto tokenizer = Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) {
    BRAID_CHECK(!tokenizer.error().message.empty());
    return;
  }
  hold_promises(*tokenizer, input, parse_special, false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  static const std::vector<Tokenizer> tokenizers = [] {
    std::vector<Tokenizer> all;
    for (const char* name : kNames) all.push_back(make_tokenizer(name));
    return all;
  }();
  if (!quiet || size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t kind = (data[0] & 7) % kNames.size();
  const bool parse_special = (data[0] & 8) != 0;
  if (data[0] & 0x80) {
    fuzz_vocabulary(kNames[kind], input, parse_special);
  } else {
    hold_promises(tokenizers[kind], input, parse_special, true);
  }
  return 0;
}
