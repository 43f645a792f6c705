// load_model.h -- from the options of a command to a model that can run.
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

// The file of -m, or the one inside the binary.
Result<GgufFile> open_model_file(const std::string& path);

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
  std::unique_ptr<GgufFile> file;  // first: the engine reads from it until its end
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::string name;
};
// `adjust`, if given, has the last word on the options.
Result<LoadedModel> load_model(const ModelFlags& flags,
                               const std::function<void(EngineOptions&)>& adjust = nullptr);

// All of a file, or of stdin for "-", without the byte order mark that some editors put before UTF-8. Errors:
// not_found, io, exhausted (above 1 GiB).
Result<std::string> read_text(const std::string& path);

// Highest resident set of this process so far.
uint64_t peak_memory_bytes();

}  // namespace braid::cli
