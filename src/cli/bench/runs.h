// runs.h -- a text and prompts through an engine with one format of the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench/needles.h"
#include "cli/bench/report.h"
#include "cli/load_model.h"

namespace braid::cli {

// What is run. Rows of logits are kept of the reference, so they are few: kMostRows of the text and as many
// of the answers, evenly spread.
struct ReportWork {
  static constexpr int32_t kMostRows = 512;

  std::vector<int32_t> text;  // may be empty
  std::vector<ReportPrompt> prompts;
  int32_t answer_tokens = 64;
};

// What f16 does.
struct ReportReference {
  std::vector<std::vector<float>> text_rows;  // of some positions of the second half
  double perplexity = 0;                      // of the text's second half
  std::vector<std::vector<int32_t>> answers;  // of each prompt, without its end
  std::vector<std::vector<float>> answer_rows;
};

// Runs the work with the options of `flags` (their cache formats as well). Empty where Ctrl-C came. Errors:
// those of loading and running.
Result<std::optional<ReportReference>> run_reference(const ModelFlags& flags,
                                                     const ReportWork& work);
// The same, compared with the reference: text, answers and sets of `figures`. False where Ctrl-C came.
Result<bool> run_format(const ModelFlags& flags, const ReportWork& work,
                        const ReportReference& reference, FormatFigures& figures);

}  // namespace braid::cli
