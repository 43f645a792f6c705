// prompt_sets.h -- prompts for `braid bench --spec`: sets of texts from a file, or random tokens.
//
// The file has one JSON object a line, and runs with any model:
//   {"set": "code", "text": "def f(x):\n"}                                       continued as it is
//   {"set": "calls", "messages": [{"role": "user", "content": "..."}], "tools": [...]}     through the
//     model's chat template, thinking off; "tools" may be missing
// Prompts of the same "set" (missing: "prompts") are measured together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load_model.h"

namespace braid::cli {

struct PromptSet {
  std::string name;
  std::vector<std::vector<int32_t>> prompts;  // at least one, none of them empty
};

// In the order in which sets appear. Errors: not_found, io, invalid_argument (with the line).
Result<std::vector<PromptSet>> read_prompt_sets(const std::string& path, const GgufFile& file,
                                                const Tokenizer& tokenizer);
// One set of `count` prompts of `tokens` random tokens.
PromptSet random_prompts(int32_t count, int32_t tokens, int64_t vocabulary);

}  // namespace braid::cli
