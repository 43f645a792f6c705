// prompt_compressor.h -- a long prompt becomes the parts of it that its end asks for.
//
// A small model scores every token (engine/tail_scorer.h), rules choose chunks of 32
// (text/compress/selection.h), and their text is copied (text/compress/kept_text.h). What is lost
// is lost: a question about it cannot be answered.
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
#include "server/compress/prompt_parts.h"

namespace braid::server {

struct CompressedPrompt {
  std::string original;  // TokenizedPrompt::text
  KeptText kept;
  Selection selection;
  std::vector<float> chunk_scores;  // [chunks]
  double scoring_ms = 0;
  double selecting_ms = 0;
};

class PromptCompressor {
 public:
  // Both must outlive this.
  PromptCompressor(PromptScorer& scorer, const Tokenizer& tokenizer, KeepCurve keep)
      : scorer_(scorer), tokenizer_(tokenizer), keep_(std::move(keep)) {}

  // Called between steps with tokens done and all; true: give up.
  using Progress = std::function<bool(size_t, size_t)>;
  // The question should be the last part. Errors: invalid_argument (nothing to read, more tokens
  // than the context), cancelled, io (the device or the model failed), those of the tokenizer.
  Result<CompressedPrompt> compress(std::span<const PromptPart> parts,
                                    const Progress& progress = nullptr);

 private:
  Result<std::vector<float>> score(const std::vector<int32_t>& ids, const Progress& progress);

  PromptScorer& scorer_;
  const Tokenizer& tokenizer_;
  const KeepCurve keep_;
};

}  // namespace braid::server
