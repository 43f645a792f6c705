// prompt_compressor.h -- a long prompt becomes the parts of it that its end asks for.
//
// A small model scores every token (engine/tail_scorer.h), rules choose chunks of 32
// (text/compress/selection.h), and their text is copied (text/compress/kept_text.h). What is lost
// is lost: a question about it cannot be answered.
//
// A prompt that is longer than the model's context is read in windows (window_builder.h), each with
// a budget of its own: the share for the length of the whole prompt. Their question is the last
// part, if that is kept as the last_user_turn, or else the prompt's last words. The text is then
// made as if the prompt had been read at once.
//
// For programs that compress one prompt and wait. A server's conversations:
// conversation_compressor.h. One thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/prompt_scorer.h"
#include "server/compress/window_builder.h"

namespace braid::server {

struct CompressedPrompt {
  std::string original;  // TokenizedPrompt::text
  KeptText kept;
  size_t windows = 0;               // that were read: 1 if the context holds the prompt
  std::vector<float> chunk_scores;  // [chunks of each window, one window after the other]
  double scoring_ms = 0;
  double selecting_ms = 0;
};

class PromptCompressor {
 public:
  // Both must outlive this.
  PromptCompressor(PromptScorer& scorer, const Tokenizer& tokenizer, KeepCurve keep)
      : scorer_(scorer), tokenizer_(tokenizer), keep_(std::move(keep)) {}

  // Called between steps with tokens done and all, of all windows; true: give up.
  using Progress = std::function<bool(size_t, size_t)>;
  // The question should be the last part. Errors: invalid_argument (nothing to read, or a
  // WindowBuilder::problem()), cancelled, io (the device or the model failed), those of the
  // tokenizer.
  Result<CompressedPrompt> compress(std::span<const PromptPart> parts,
                                    const Progress& progress = nullptr);

 private:
  Result<std::vector<ReadingWindow>> windows_of(std::span<const PromptPart> parts,
                                                const TokenizedPrompt& prompt) const;
  Result<std::vector<float>> score(const std::vector<int32_t>& ids, const Progress& progress);

  PromptScorer& scorer_;
  const Tokenizer& tokenizer_;
  const KeepCurve keep_;
};

}  // namespace braid::server
