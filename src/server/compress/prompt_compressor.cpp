// prompt_compressor.cpp -- see prompt_compressor.h.
#include "server/compress/prompt_compressor.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

namespace braid::server {
namespace {

double ms_from(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

Result<std::vector<float>> PromptCompressor::score(const std::vector<int32_t>& ids,
                                                   const Progress& progress) {
  std::optional<Result<std::vector<float>>> scores;
  size_t done = 0;
  PromptToScore prompt;
  prompt.ids = ids;
  prompt.done = [&](Result<std::vector<float>> result) { scores.emplace(std::move(result)); };
  prompt.progress = [&](int32_t tokens, int32_t) { done = static_cast<size_t>(tokens); };
  scorer_.submit(std::move(prompt));
  bool cancelled = false;
  while (!scorer_.idle()) {
    scorer_.step();
    if (cancelled || progress == nullptr) continue;
    cancelled = progress(done, ids.size());
    if (cancelled) scorer_.cancel(0);
  }
  return std::move(*scores);
}

Result<CompressedPrompt> PromptCompressor::compress(std::span<const PromptPart> parts,
                                                    const Progress& progress) {
  BRAID_ASSIGN(TokenizedPrompt prompt, tokenize_parts(tokenizer_, parts));
  if (prompt.ids.empty()) return Error{ErrorKind::invalid_argument, "there is no text to compress"};
  const auto most = static_cast<size_t>(scorer_.engine().context_tokens());
  if (prompt.ids.size() > most)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("the text has {} tokens, and the model that scores it has a context "
                             "of {} (-c)",
                             prompt.ids.size(), most)};
  CompressedPrompt out;
  auto begin = std::chrono::steady_clock::now();
  BRAID_ASSIGN(const std::vector<float> scores, score(prompt.ids, progress));
  out.scoring_ms = ms_from(begin);
  begin = std::chrono::steady_clock::now();
  ChosenParts chosen = choose_parts(prompt, scores, keep_, prompt.ids.size());
  out.kept = kept_prompt(prompt, chosen.selection);
  out.selection = std::move(chosen.selection);
  out.chunk_scores = std::move(chosen.chunk_scores);
  out.original = std::move(prompt.text);
  out.selecting_ms = ms_from(begin);
  return out;
}

}  // namespace braid::server
