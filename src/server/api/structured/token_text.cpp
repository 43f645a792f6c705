// token_text.cpp -- see token_text.h.
#include "server/api/structured/token_text.h"

#include <fmt/format.h>

#include <iterator>

#include "text/json_text.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

void append_number(std::string& out, int64_t number) {
  fmt::format_to(std::back_inserter(out), "{}", number);
}

void append_piece(std::string& out, std::string_view piece) {
  if (!first_invalid_utf8(piece)) return append_json_string(out, piece);
  char before = '[';
  for (const char c : piece) {
    out += std::exchange(before, ',');
    append_number(out, static_cast<unsigned char>(c));
  }
  out += ']';
}

template <typename Append>
void append_list(std::string& out, std::span<const int32_t> ids, Append append) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append(ids[i]);
  }
  out += ']';
}

}  // namespace

ApiResult<std::string> tokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                       TokenizeForm form, int32_t context_tokens) {
  if ((form.pieces || form.strings) && ids.size() > kMaxShownTokens) {
    return invalid_value("content",
                         fmt::format("content has {} tokens; with their texts at most {} are shown",
                                     ids.size(), kMaxShownTokens));
  }
  const auto piece = [&](int32_t id) { return tokenizer.piece(id, SpecialText::show); };
  std::string out = R"({"tokens":)";
  append_list(out, ids, [&](int32_t id) {
    if (!form.pieces) return append_number(out, id);
    out += R"({"id":)";
    append_number(out, id);
    out += R"(,"piece":)";
    append_piece(out, piece(id));
    out += '}';
  });
  if (form.strings) {
    out += R"(,"token_strs":)";
    append_list(out, ids, [&](int32_t id) {
      append_json_string(out, repaired_utf8(piece(id), Utf8Repair::maximal_subpart));
    });
  }
  out += R"(,"count":)";
  append_number(out, static_cast<int64_t>(ids.size()));
  out += R"(,"max_model_len":)";
  append_number(out, context_tokens);
  out += '}';
  return out;
}

ApiResult<std::string> detokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  size_t bytes = 0;
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.size()) {
      return invalid_value("tokens", "tokens must hold ids of the vocabulary");
    }
    bytes += tokenizer.piece(id, SpecialText::show).size();
  }
  if (bytes > kMaxShownBytes) {
    return invalid_value(
        "tokens", fmt::format("tokens stand for {} bytes of text, at most {} are shown", bytes,
                              kMaxShownBytes));
  }
  std::string text;
  append_json_string(
      text, repaired_utf8(tokenizer.decode(ids, SpecialText::show), Utf8Repair::maximal_subpart));
  std::string out = R"({"content":)";
  out += text;
  out += R"(,"prompt":)";
  out += text;
  out += '}';
  return out;
}

}  // namespace braid::server
