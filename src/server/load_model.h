// load_model.h -- from a model's file to one that the server can offer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/engine_options.h"
#include "engine/sampling_defaults.h"
#include "engine/service.h"
#include "gguf/gguf.h"
#include "server/compress/load_scorer.h"
#include "server/served_model.h"

namespace braid::server {

struct LoadModelOptions {
  std::string name;  // shown until the catalog gives it others
  EngineOptions engine;
  std::string chat_template;  // read_chat_template()'s choice; empty: the file's own
  SamplingChoice sampling;
  ServiceOptions service;
  // Of prompts; empty: none.
  std::optional<CompressionOptions> compression;
};

// Loads weights, which may take minutes; any thread. `scorer`: the file of the model that scores
// prompts, if options.compression is set. A file whose own template cannot be used is
// offered for completions alone, with a warning. Errors: those of the engine, of the tokenizer, of
// a chosen chat template.
Result<std::shared_ptr<ServedModel>> load_model(GgufFile file, const LoadModelOptions& options,
                                                std::optional<GgufFile> scorer = std::nullopt);

// Whether load_model() would get as far as the weights. Errors: those of the tokenizer.
Status check_model(const GgufFile& file);

}  // namespace braid::server
