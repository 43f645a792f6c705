// needles.h -- questions whose answer stands in a long text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::cli {

struct ReportPrompt {
  std::string set;
  std::vector<int32_t> tokens;
  std::string wanted;  // what a right answer holds; empty: nothing is asked for
};

// For each length (tokens of the prompt, about) and each of `depths` places: a user's message of text with
// one sentence that gives a number to a name, and the question for it. Every second one has sentences of
// other names around it. The text is `hay`, from the start, repeated where it is too short. The sets are
// called "needle LENGTH". Errors: those of the chat template.
Result<std::vector<ReportPrompt>> make_needles(const std::vector<int32_t>& lengths, int32_t depths,
                                               const std::vector<int32_t>& hay,
                                               const GgufFile& file, const Tokenizer& tokenizer);

}  // namespace braid::cli
