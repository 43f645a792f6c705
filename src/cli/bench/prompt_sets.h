// prompt_sets.h -- prompts for `braid bench --spec`: sets of texts from a file, or random tokens.
// The file has one JSON object per line:
//   {"set": "code", "text": "def f(x):\n"}
//   {"set": "calls", "messages": [{"role": "user", "content": "..."}], "tools": [...]}
// A text is continued as it is. Messages use the chat template with thinking off; "tools" is
// optional. Prompts of the same "set" (default "prompts") are measured together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load_model.h"

namespace braid::cli {

struct PromptSet {
  std::string name;
  std::vector<std::vector<int32_t>> prompts;  // neither the list nor a prompt is empty
};

// Sets are in order of appearance. Errors: not_found, io, invalid_argument (with the line).
Result<std::vector<PromptSet>> read_prompt_sets(const std::string& path, const GgufFile& file,
                                                const Tokenizer& tokenizer);
PromptSet random_prompts(int32_t count, int32_t tokens, int64_t vocabulary);

}  // namespace braid::cli
