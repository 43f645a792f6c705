// token_text.h -- JSON answers of /tokenize and /detokenize as text; a JSON tree would take fifty
// times the memory. Answers too large to be sent back are refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/api/api_error.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

// Tokens shown with their texts: as many as a request may send back (fields.h).
inline constexpr size_t kMaxShownTokens = 1'000'000;
// Bytes of text for the tokens of one answer.
inline constexpr size_t kMaxShownBytes = size_t{32} << 20;

struct TokenizeForm {
  bool pieces = false;   // tokens: [{"id": 1, "piece": "a"}]; invalid UTF-8 as a list of bytes
  bool strings = false;  // token_strs: ["a"]; invalid UTF-8 is replaced
};

// {"tokens": ..., "count": ..., "max_model_len": ...}. Errors: 400 above kMaxShownTokens texts.
ApiResult<std::string> tokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                       TokenizeForm form, int32_t context_tokens);

// {"content": text, "prompt": text}. Errors: 400 for an invalid id or above kMaxShownBytes.
ApiResult<std::string> detokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace braid::server
