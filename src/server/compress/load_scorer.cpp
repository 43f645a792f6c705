// load_scorer.cpp -- see load_scorer.h.
#include "server/compress/load_scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/kv/kv_codec.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {
namespace {

Error of_option(const Error& error) {
  return {error.kind, "the model that compresses prompts (--prefill-drafter): " + error.message};
}

Result<LoadedScorer> load(GgufFile file, const CompressionOptions& options, bool beside_another) {
  LoadedScorer out;
  out.file = std::make_shared<const GgufFile>(std::move(file));
  BRAID_ASSIGN(auto vocabulary, read_vocabulary(*out.file));
  BRAID_ASSIGN(auto tokenizer, Tokenizer::create(std::move(vocabulary)));
  out.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  BRAID_ASSIGN(const auto architecture, out.file->find_string("general.architecture"));
  BRAID_ASSIGN(const auto trained,
               out.file->find_u32(std::string(architecture.value_or("")) + ".context_length"));
  EngineOptions engine;
  engine.device = options.device.substr(0, options.device.find(','));
  engine.threads = options.threads;
  engine.gpu_memory_bytes = options.gpu_memory_bytes;
  engine.host_memory_bytes = options.host_memory_bytes;
  BRAID_ASSIGN(engine.k_codec, find_kv_codec("q8_0"));
  engine.v_codec = engine.k_codec;
  engine.beside_another = beside_another;
  engine.context_tokens = options.context_tokens;
  if (engine.context_tokens == 0 && trained)
    engine.context_tokens =
        static_cast<int32_t>(std::min<uint32_t>(*trained, static_cast<uint32_t>(kScorerContext)));
  BRAID_ASSIGN(auto made, create_sparse(options.sparse_threshold, [&](float threshold) {
                 engine.sparse_threshold = threshold;
                 engine.ubatch_tokens = threshold > 0 ? 0 : EngineOptions().ubatch_tokens;
                 return Engine::create(*out.file, PromptScorer::engine_options(engine));
               }));
  BRAID_ASSIGN(out.scorer, PromptScorer::create(std::move(made), options.scores));
  ConversationCompressor::Options compressor = options.compressor;
  compressor.most_tokens = out.scorer->engine().context_tokens();
  out.compressor = std::make_shared<ConversationCompressor>(out.tokenizer, compressor);
  return out;
}

}  // namespace

Result<LoadedScorer> load_scorer(GgufFile file, const CompressionOptions& options,
                                 bool beside_another) {
  auto loaded = load(std::move(file), options, beside_another);
  if (!loaded.ok()) return of_option(loaded.error());
  return loaded;
}

}  // namespace braid::server
