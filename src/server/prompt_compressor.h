// prompt_compressor.h -- a long prompt becomes the parts of it that its end asks for.
//
// A small model scores every token (engine/tail_scorer.h), rules choose chunks of 32
// (text/compress/selection.h), and their text is copied (text/compress/kept_text.h). What is lost
// is lost: a question about it cannot be answered.
//
// The small model's tokenizer need not be that of the model that gets the text. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/tail_scorer.h"
#include "text/compress/keep_curve.h"
#include "text/compress/kept_text.h"
#include "text/compress/selection.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

struct PromptPart {
  std::string_view text;
  KeptBecause kept = KeptBecause::dropped;  // other than that: kept as it is, for this reason
};

struct CompressedPrompt {
  std::string original;  // as tokenized: repaired to UTF-8, normalized if the model does so
  KeptText kept;
  Selection selection;
  std::vector<float> chunk_scores;  // [chunks]
  double scoring_ms = 0;
  double selecting_ms = 0;
};

class PromptCompressor {
 public:
  struct Options {
    KeepCurve keep;
    TailScoreOptions scores;
  };
  // Both must outlive this; nothing else may run on the engine while it compresses. Errors: those
  // of TailScorer::create().
  static Result<std::unique_ptr<PromptCompressor>> create(Engine& engine,
                                                          const Tokenizer& tokenizer,
                                                          const Options& options);
  ~PromptCompressor();

  // Called between steps with tokens done and all; true: give up.
  using Progress = std::function<bool(size_t, size_t)>;
  // The question should be the last part. Errors: invalid_argument (nothing to read, more tokens
  // than the context), cancelled, io (the device or the model failed), those of the tokenizer.
  Result<CompressedPrompt> compress(std::span<const PromptPart> parts,
                                    const Progress& progress = nullptr);

 private:
  PromptCompressor(Engine& engine, const Tokenizer& tokenizer, const Options& options)
      : engine_(engine), tokenizer_(tokenizer), options_(options) {}
  Result<std::vector<float>> score(std::vector<int32_t> ids, const Progress& progress);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  Options options_;
  std::unique_ptr<TailScorer> scorer_;
};

}  // namespace braid::server
