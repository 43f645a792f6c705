// needles.h -- questions about a fact hidden in a long text.
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
  std::string wanted;  // text that a right answer contains; empty: not judged
};

// For each length (about this many prompt tokens) and each of `depths` places: a message of `hay`,
// repeated if too short, with a sentence that gives a number to a name, and a question for it.
// Every second prompt also has such sentences of other names. Sets are named "needle LENGTH".
Result<std::vector<ReportPrompt>> make_needles(const std::vector<int32_t>& lengths, int32_t depths,
                                               const std::vector<int32_t>& hay,
                                               const GgufFile& file, const Tokenizer& tokenizer);

}  // namespace braid::cli
