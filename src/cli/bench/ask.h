// ask.h -- a model's answers to the questions of reports: greedy, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::cli {

// The message as a user's turn of the file's chat template, with thoughts off. A file without a
// template, whose vocabulary has no turns, gets the message as it is. Errors: those of the template
// and the tokenizer.
Result<std::vector<int32_t>> question_tokens(const std::string& message, const GgufFile& file,
                                             const Tokenizer& tokenizer);

// Runs one request and calls `stepped` after each step. Returns the new tokens without the end
// token; after an interrupt those so far. Errors: of submit(); io, if the request fails.
Result<std::vector<int32_t>> run_request(Engine& engine, Request request,
                                         const std::function<void()>& stepped);

// The likeliest tokens after the prompt, until the model stops.
Result<std::vector<int32_t>> greedy_answer(Engine& engine, const Tokenizer& tokenizer,
                                           std::vector<int32_t> prompt, int32_t max_tokens,
                                           const std::function<void()>& stepped);

}  // namespace braid::cli
