// prompt_compressor.cpp -- see prompt_compressor.h.
#include "server/prompt_compressor.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <utility>

#include "text/compress/chunk_scores.h"
#include "text/compress/code_share.h"

namespace braid::server {
namespace {

// Counts prompt tokens as they are computed, and keeps the end.
struct ScoringSink : Sink {
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished& event) override { end = event; }
  Finished end;
};

double ms_from(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

struct TokenizedPrompt {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint32_t> ends;
  std::vector<ProtectedRange> kept;
};

Result<TokenizedPrompt> tokenize(const Tokenizer& tokenizer, std::span<const PromptPart> parts) {
  TokenizedPrompt out;
  for (const PromptPart& part : parts) {
    BRAID_ASSIGN(const std::vector<int32_t> ids,
                 tokenizer.encode(part.text, {.add_special = false, .parse_special = false}));
    const size_t first = out.ids.size();
    for (const int32_t id : ids) {
      out.text += tokenizer.piece(id, SpecialText::show);
      if (out.text.size() > std::numeric_limits<uint32_t>::max())
        return Error{ErrorKind::invalid_argument, "the prompt has more than 4 GiB"};
      out.ids.push_back(id);
      out.ends.push_back(static_cast<uint32_t>(out.text.size()));
    }
    if (part.kept != KeptBecause::dropped && out.ids.size() > first)
      out.kept.push_back({{first, out.ids.size()}, part.kept});
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<PromptCompressor>> PromptCompressor::create(Engine& engine,
                                                                   const Tokenizer& tokenizer,
                                                                   const Options& options) {
  std::unique_ptr<PromptCompressor> made(new PromptCompressor(engine, tokenizer, options));
  BRAID_ASSIGN(made->scorer_, TailScorer::create(engine, options.scores));
  engine.observe(made->scorer_.get());
  return made;
}

PromptCompressor::~PromptCompressor() {
  if (scorer_ != nullptr) engine_.observe(nullptr);
}

Result<std::vector<float>> PromptCompressor::score(std::vector<int32_t> ids,
                                                   const Progress& progress) {
  const size_t tokens = ids.size();
  scorer_->begin(static_cast<int32_t>(tokens));
  Request request;
  request.prompt = std::move(ids);
  request.max_tokens = 0;
  request.use_cache = false;
  ScoringSink sink;
  const uint64_t before = engine_.stats().prompt_rows;
  BRAID_ASSIGN(const RequestId id, engine_.submit(std::move(request), sink));
  bool cancelled = false;
  while (!engine_.idle()) {
    engine_.step();
    if (cancelled || progress == nullptr) continue;
    cancelled = progress(static_cast<size_t>(engine_.stats().prompt_rows - before), tokens);
    if (cancelled) engine_.cancel(id);
  }
  if (cancelled) return Error{ErrorKind::cancelled, "interrupted"};
  if (sink.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.end.error};
  return scorer_->scores();
}

Result<CompressedPrompt> PromptCompressor::compress(std::span<const PromptPart> parts,
                                                    const Progress& progress) {
  BRAID_ASSIGN(TokenizedPrompt prompt, tokenize(tokenizer_, parts));
  if (prompt.ids.empty()) return Error{ErrorKind::invalid_argument, "there is no text to compress"};
  const auto most = static_cast<size_t>(engine_.context_tokens());
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
  out.chunk_scores = chunk_scores(scores);
  SelectionInput input;
  input.ids = prompt.ids;
  input.chunk_scores = out.chunk_scores;
  const std::vector<float> code = code_shares(prompt.text, prompt.ends);
  input.code_shares = code;
  input.protected_ranges = prompt.kept;
  input.ratios = options_.keep.at(prompt.ids.size());
  out.selection = select_chunks(input);
  std::vector<TokenRange> protected_tokens;
  for (const ProtectedRange& range : prompt.kept) protected_tokens.push_back(range.tokens);
  KeptTextInput text;
  text.text = prompt.text;
  text.token_ends = prompt.ends;
  text.kept = out.selection.kept;
  text.protected_tokens = protected_tokens;
  out.kept = kept_text(text);
  out.original = std::move(prompt.text);
  out.selecting_ms = ms_from(begin);
  return out;
}

}  // namespace braid::server
