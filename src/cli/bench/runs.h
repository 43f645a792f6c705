// runs.h -- runs a text and prompts with one KV cache format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench/report.h"
#include "cli/load_model.h"

namespace braid::cli {

struct ReportPrompt {
  std::string set;
  std::vector<int32_t> tokens;
  std::string wanted;  // text that a right answer contains; empty: not judged
};

// What each run does. Kept logits are large, so text and answers keep about kMostRows rows each.
struct ReportWork {
  static constexpr int32_t kMostRows = 512;

  std::vector<int32_t> text;  // may be empty
  std::vector<ReportPrompt> prompts;
  int32_t answer_tokens = 64;
};

struct ReportReference {
  std::vector<std::vector<float>> text_rows;  // evenly spaced positions of the second half
  double perplexity = 0;                      // of the text's second half
  std::vector<std::vector<int32_t>> answers;  // per prompt, without the end token
  std::vector<std::vector<float>> answer_rows;
};

// Runs the work with the formats of `flags`. Empty: interrupted. Errors: of loading and running.
Result<std::optional<ReportReference>> run_reference(const ModelFlags& flags,
                                                     const ReportWork& work);
// Runs the same and fills text, answers and sets of `figures`. False: interrupted.
Result<bool> run_format(const ModelFlags& flags, const ReportWork& work,
                        const ReportReference& reference, FormatFigures& figures);

}  // namespace braid::cli
