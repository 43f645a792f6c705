// prompt_compressor.cpp -- see prompt_compressor.h.
#include "server/compress/prompt_compressor.h"

#include <fmt/format.h>

#include <algorithm>
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

Result<std::vector<ReadingWindow>> PromptCompressor::windows_of(
    std::span<const PromptPart> parts, const TokenizedPrompt& prompt) const {
  size_t last = parts.size() - 1;
  while (prompt.parts[last].begin == prompt.parts[last].end) --last;
  const bool asks = parts[last].kept == KeptBecause::last_user_turn;
  const std::string_view words = asks ? parts[last].text : last_words(parts[last].text);
  const auto context = static_cast<size_t>(scorer_.engine().context_tokens());
  BRAID_ASSIGN(
      WindowBuilder builder,
      WindowBuilder::create(tokenizer_, (asks ? "" : "\n\n") + std::string(words), context));
  std::string problem = builder.problem();
  if (problem.empty()) {
    for (size_t i = 0; i < (asks ? last : last + 1); ++i) {
      PromptPart part = parts[i];
      if (i == last) part.tail_bytes = std::max(part.tail_bytes, words.size());
      const TokenRange& tokens = prompt.parts[i];
      BRAID_TRY(builder.add(
          i, part, std::span(prompt.ids).subspan(tokens.begin, tokens.end - tokens.begin)));
    }
    problem = builder.problem();
  }
  if (!problem.empty())
    return Error{ErrorKind::invalid_argument,
                 fmt::format("the text has {} tokens, too many for a context of {} (-c): {}",
                             prompt.ids.size(), context, problem)};
  return builder.windows();
}

Result<CompressedPrompt> PromptCompressor::compress(std::span<const PromptPart> parts,
                                                    const Progress& progress) {
  BRAID_ASSIGN(TokenizedPrompt prompt, tokenize_parts(tokenizer_, parts));
  const size_t length = prompt.ids.size();
  if (length == 0) return Error{ErrorKind::invalid_argument, "there is no text to compress"};
  std::vector<ReadingWindow> windows;
  if (length <= static_cast<size_t>(scorer_.engine().context_tokens())) {
    windows.push_back({prompt, {}, length});
  } else {
    BRAID_ASSIGN(windows, windows_of(parts, prompt));
  }
  CompressedPrompt out;
  out.windows = windows.size();
  size_t all = 0, read = 0;
  for (const ReadingWindow& window : windows) all += window.prompt.ids.size();
  const auto read_on = [&](size_t done, size_t) { return progress(read + done, all); };
  std::vector<TokenRange> kept;  // tokens of the prompt
  size_t first = 0;              // of a window's text
  for (ReadingWindow& window : windows) {
    auto begin = std::chrono::steady_clock::now();
    BRAID_ASSIGN(const std::vector<float> scores,
                 score(window.prompt.ids, progress == nullptr ? nullptr : Progress(read_on)));
    out.scoring_ms += ms_from(begin);
    begin = std::chrono::steady_clock::now();
    const ChosenParts chosen = choose_parts(window.prompt, scores, keep_, length);
    for (const TokenRange& range : chosen.selection.kept)
      if (range.begin < window.text_tokens)
        kept.push_back({first + range.begin, first + std::min(range.end, window.text_tokens)});
    out.chunk_scores.insert(out.chunk_scores.end(), chosen.chunk_scores.begin(),
                            chosen.chunk_scores.end());
    out.selecting_ms += ms_from(begin);
    first += window.text_tokens;
    read += window.prompt.ids.size();
    window.prompt = {};
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const ProtectedRange& range : prompt.kept) kept.push_back(range.tokens);
  out.kept = kept_prompt(prompt, merged(std::move(kept)));
  out.original = std::move(prompt.text);
  out.selecting_ms += ms_from(begin);
  return out;
}

}  // namespace braid::server
