// token_text.h -- what /tokenize and /detokenize answer, as JSON text.
//
// Put together byte by byte: a tree of the same values takes fifty times the memory and minutes of time. What
// is written stays in proportion to what was sent, and what could not be sent back is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/api/api_error.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

// Tokens that are shown with their texts in one answer: as many as a request may send back (fields.h).
inline constexpr size_t kMaxShownTokens = 1'000'000;
// Text that tokens may stand for in one answer.
inline constexpr size_t kMaxShownBytes = size_t{32} << 20;

struct TokenizeForm {
  bool pieces = false;   // tokens: [{"id": 1, "piece": "a"}], a piece that is no UTF-8 as its bytes
  bool strings = false;  // token_strs: ["a"], what is no UTF-8 replaced
};

// {"tokens": ..., "count": ..., "max_model_len": ...}. Errors: 400, more than kMaxShownTokens with texts.
ApiResult<std::string> tokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                       TokenizeForm form, int32_t context_tokens);

// {"content": text, "prompt": text}. Errors: 400, an id that is none or more than kMaxShownBytes.
ApiResult<std::string> detokenize_answer(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace braid::server
