// load_model.cpp -- see load_model.h.
#include "cli/load_model.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/threads.h"
#include "cli/default_model.h"
#include "cli/options/sizes.h"
#include "cli/terminal.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::cli {

Result<GgufFile> open_model_file(const std::string& path) {
  if (path.empty()) return GgufFile::parse(default_model(), kDefaultModelName);
  constexpr size_t kLongestPath = 4096;
  if (path.size() > kLongestPath)
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("the name of the model's file has {} bytes (a message is given with -p)",
                    path.size())};
  auto file = GgufFile::open(path);
  // Probably a message without -p.
  if (!file.ok() && file.error().kind == ErrorKind::not_found && !path.ends_with(".gguf"))
    return Error{ErrorKind::not_found, file.error().message +
                                           " (a message is given with -p; `braid serve --discover "
                                           "--list-models` lists files of other programs)"};
  return file;
}

Status shape_alone(const std::string& shape, const ModelFlags& flags) {
  const char* from_environment = std::getenv("BRAID_MODEL");
  const bool given =
      !flags.model.empty() && (from_environment == nullptr || flags.model != from_environment);
  if (!given) return {};
  return Error{
      ErrorKind::invalid_argument,
      fmt::format("--shape {} takes the place of a file: leave it out for {}", shape, flags.model)};
}

Result<Tokenizer> make_tokenizer(const GgufFile& file) {
  BRAID_ASSIGN(auto data, read_vocabulary(file));
  return Tokenizer::create(std::move(data));
}

LoadProgress::LoadProgress(const std::string& name, EngineOptions& options)
    : line_("loading " + name) {
  options.progress = [this](uint64_t done, uint64_t total) { line_.update(done, total); };
  options.host_progress = [this](uint64_t done, uint64_t total) {
    line_.update(done, total, "host memory for checkpoints");
  };
}

void note_threads(const ModelFlags& flags) {
  if (flags.threads > usable_cores())
    print_note(fmt::format("-t {}: there are {} cores; more threads than cores are slower",
                           flags.threads, usable_cores()));
}

Result<LoadedModel> load_model(const ModelFlags& flags,
                               const std::function<void(EngineOptions&)>& adjust) {
  LoadedModel loaded;
  BRAID_ASSIGN(auto options, engine_options(flags));
  if (adjust) adjust(options);
  note_threads(flags);
  BRAID_ASSIGN(auto file, open_model_file(flags.model));
  loaded.file = std::make_unique<GgufFile>(std::move(file));
  loaded.name = flags.model.empty() ? kDefaultModelName
                                    : std::filesystem::path(flags.model).filename().string();
  {
    LoadProgress progress(loaded.name, options);
    BRAID_ASSIGN(loaded.engine, Engine::create(*loaded.file, options));
    BRAID_ASSIGN(loaded.tokenizer, make_tokenizer(*loaded.file));
  }
  if (const std::string note = loaded.engine->note_on_layers(); !note.empty()) print_note(note);
  if (const std::string slow = loaded.engine->slow_kv_formats(); !slow.empty())
    print_note(fmt::format(
        "a CPU has no kernels for {}: attention is 15 to 110 times slower than with q8_0", slow));
  return loaded;
}

Result<std::string> read_text(const std::string& path, size_t most_bytes) {
  std::string text;
  auto slurp = [&](std::istream& in) -> Status {
    char buffer[1 << 16];
    while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
      text.append(buffer, static_cast<size_t>(in.gcount()));
      if (text.size() > most_bytes)
        return Error{ErrorKind::exhausted,
                     fmt::format("{}: is larger than {}", path, format_bytes(most_bytes))};
    }
    return {};
  };
  const auto without_mark = [&] {
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    return std::move(text);
  };
  if (path == "-") {
    BRAID_TRY(slurp(std::cin));
    return without_mark();
  }
  if (!std::filesystem::exists(path))
    return Error{ErrorKind::not_found, path + ": No such file or directory"};
  if (std::filesystem::is_directory(path)) return Error{ErrorKind::io, path + ": is a directory"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorKind::io, path + ": cannot be read"};
  BRAID_TRY(slurp(file));
  return without_mark();
}

uint64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace braid::cli
