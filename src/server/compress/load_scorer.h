// load_scorer.h -- from a file to a model that scores prompts for compression.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log_line.h"
#include "base/result.h"
#include "engine/prompt_scorer.h"
#include "gguf/gguf.h"
#include "server/compress/conversation_compressor.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

// Of block-sparse reading (EngineOptions::sparse_threshold), for engines that take it.
inline constexpr float kScorerSparseThreshold = 0.12f;

// Calls create(threshold): with the given one, or else with kScorerSparseThreshold and, if that is
// refused or does not fit, with 0. Engines refuse before they load weights.
template <typename Create>
auto create_sparse(std::optional<float> threshold, const Create& create) {
  auto made = create(threshold.value_or(kScorerSparseThreshold));
  if (made.ok() || threshold || made.error().kind == ErrorKind::io) return made;
  auto full = create(0.0f);
  if (full.ok())
    log_info("the scoring model reads with full attention (" + made.error().message + ")");
  return full;
}

struct CompressionOptions {
  std::string file;  // of the scoring model; empty: the one inside of the program
  std::string device = "auto";
  int threads = 0;
  std::vector<uint64_t> gpu_memory_bytes;  // limits, as EngineOptions has them
  uint64_t host_memory_bytes = 0;
  int32_t context_tokens =
      0;  // that it reads at once; 0: kScorerContext, or less if its own is less
  std::optional<float> sparse_threshold;  // create_sparse()
  ConversationCompressor::Options compressor;
  TailScoreOptions scores;
};
inline constexpr int32_t kScorerContext = 131'072;

// Members refer to earlier ones.
struct LoadedScorer {
  std::shared_ptr<const GgufFile> file;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<PromptScorer> scorer;
  std::shared_ptr<ConversationCompressor> compressor;
};

// Loads weights. `beside_another`: another engine runs on the same thread. Errors: those of the
// file, the tokenizer, the engine and of TailScorer::create(); each names the option.
Result<LoadedScorer> load_scorer(GgufFile file, const CompressionOptions& options,
                                 bool beside_another);

}  // namespace braid::server
