// load_model.cpp -- see load_model.h.
#include "server/load_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"
#include "server/api/structured/grammar_cache.h"
#include "server/engine_backend.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {
namespace {

Result<Tokenizer> tokenizer_of(const GgufFile& file) {
  BRAID_ASSIGN(auto vocabulary, read_vocabulary(file));
  return Tokenizer::create(std::move(vocabulary));
}

// A template that fails on the simplest conversation will fail on all.
void warn_of_template(const ChatTemplate& chat) {
  const auto simple = nlohmann::ordered_json::array({chat_message("user", "Hello")});
  const auto text = chat.render(simple, nullptr);
  if (!text.ok())
    spdlog::warn("the chat template fails on one user message: {}", text.error().message);
  else if (text->text.find("Hello") == std::string::npos)
    spdlog::warn("the chat template leaves out the text of a user's message");
}

uint64_t left_of(uint64_t limit, uint64_t taken) {
  return std::max<uint64_t>(1, limit - std::min(limit, taken));
}

// What the scoring model has taken counts against the limits. Without a limit, a GPU knows what is
// free; host memory counts as free until it is first written.
void leave_memory(const MemoryPlan& taken, EngineOptions& options) {
  if (taken.pools[0].own_memory) {
    for (uint64_t& limit : options.gpu_memory_bytes)
      if (limit > 0) limit = left_of(limit, taken.predicted_bytes());
  } else if (options.host_memory_bytes > 0) {
    options.host_memory_bytes = left_of(options.host_memory_bytes, taken.predicted_bytes());
  } else if (const uint64_t free_bytes = available_memory_bytes(); free_bytes < UINT64_MAX) {
    options.host_memory_bytes = left_of(free_bytes, taken.predicted_bytes_of(MemoryUse::kv_blocks));
  }
}

}  // namespace

Result<std::shared_ptr<ServedModel>> load_model(GgufFile file, const LoadModelOptions& options,
                                                std::optional<GgufFile> scorer) {
  const auto source = std::make_shared<const GgufFile>(std::move(file));
  auto model = std::make_shared<ServedModel>();
  model->names = {options.name};
  model->file_name = options.name;
  BRAID_ASSIGN(model->defaults, sampling_defaults(*source, options.sampling));
  BRAID_TRY(describe_file(*source, *model));
  BRAID_ASSIGN(auto tokenizer, tokenizer_of(*source));
  model->tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  auto chat = read_chat_template(*source, *model->tokenizer, options.chat_template);
  if (chat.ok()) {
    model->chat.emplace(std::move(*chat));
    model->abilities = probe_template(*model->chat);
    warn_of_template(*model->chat);
  } else if (!options.chat_template.empty()) {
    return chat.error();
  } else {
    spdlog::warn("{}; conversations are refused, completions work", chat.error().message);
  }
  model->grammars = std::make_shared<GrammarCache>(*model->tokenizer);
  // First, because the engine takes all of the memory that is left.
  LoadedScorer scoring;
  EngineOptions engine_options = options.engine;
  if (options.compression && scorer) {
    CompressionOptions compression = *options.compression;
    compression.gpu_memory_bytes = engine_options.gpu_memory_bytes;
    compression.host_memory_bytes = engine_options.host_memory_bytes;
    BRAID_ASSIGN(scoring, load_scorer(std::move(*scorer), compression, true));
    model->compressor = scoring.compressor;
    leave_memory(scoring.scorer->engine().memory(), engine_options);
    spdlog::info("long prompts are compressed by a small model, which reads {} tokens at once",
                 scoring.scorer->engine().context_tokens());
  }
  BRAID_ASSIGN(auto engine, Engine::create(*source, engine_options));
  model->trained_context_tokens = engine->config().context_length;
  spdlog::info("{} on {}", options.name, engine->devices().description());
  if (const std::string note = engine->note_on_layers(); !note.empty()) spdlog::warn("{}", note);
  if (const std::string slow = engine->slow_kv_formats(); !slow.empty())
    spdlog::warn("a CPU has no kernels for {}: attention is 15 to 110 times slower than with q8_0",
                 slow);
  model->source = std::make_shared<const std::array<std::shared_ptr<const GgufFile>, 2>>(
      std::array{source, scoring.file});
  model->backend = make_engine_backend(
      EngineService::start(std::move(engine), options.service, std::move(scoring.scorer)),
      options.engine.max_sequences);
  return model;
}

Status check_model(const GgufFile& file) {
  const auto tokenizer = tokenizer_of(file);
  return tokenizer.ok() ? Status() : Status(tokenizer.error());
}

}  // namespace braid::server
