// load_model.h -- loads the model that the options of a command describe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/options/model_flags.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::cli {

// The file of -m, or the model inside the binary.
Result<GgufFile> open_model_file(const std::string& path);

// For commands that take a published shape instead of a file. Errors: invalid_argument, if both are
// given. A file that BRAID_MODEL names is none that was asked for.
Status shape_alone(const std::string& shape, const ModelFlags& flags);

Result<Tokenizer> make_tokenizer(const GgufFile& file);

// A progress line while an engine with these options loads; it must live as long.
class LoadProgress {
 public:
  LoadProgress(const std::string& name, EngineOptions& options);

 private:
  ProgressLine line_;
};

// A note if there are more threads than cores.
void note_threads(const ModelFlags& flags);

// File, tokenizer and engine, ready to run; a progress line while weights load.
struct LoadedModel {
  std::unique_ptr<GgufFile> file;  // first: the engine reads from it until destroyed
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::string name;
};
// Shows a progress line. `adjust`, if given, changes the options last.
Result<LoadedModel> load_model(const ModelFlags& flags,
                               const std::function<void(EngineOptions&)>& adjust = nullptr);

// A file, or stdin for "-", without a byte order mark. Errors: not_found, io, exhausted.
Result<std::string> read_text(const std::string& path, size_t most_bytes = size_t{1} << 30);

uint64_t peak_memory_bytes();

}  // namespace braid::cli
