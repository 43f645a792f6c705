// model_options.h -- the options that every command with a model shares, and what they open.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace braid::cli {

struct ModelFlags {
  std::string model;  // empty: the model inside the binary
  int context = 0;
  int threads = 0;
  int batch = 0;  // -b: accepted for the habit of llama.cpp users; the step size is -ub
  int ubatch = 0;
  std::string activations = "i8";
  int kv_tail = KvTail().tail_blocks;
  int kv_sink = KvTail().sink_blocks;
  int attention_window = 0;
  std::string cache_k = "f16";
  std::string cache_v = "f16";
  std::string device = "auto";
  bool deterministic = false;
  int parallel = 1;
  int max_batch_tokens = 0;
  double gap_limit = EngineOptions().gap_limit;
  int checkpoint_interval = -1;
  std::string spec_type = "auto";
  std::string draft_model;
  int spec_draft_n_max = 0;  // 0: as the drafter likes it
  int ddtree_budget = 0;
  double spec_draft_p_min = 0;
  int spec_draft_vocab = -1;
  bool spec_always = false;
  // Sizes as written (sizes.h); empty: chosen.
  std::string kv_memory;
  std::string state_memory;
  std::string cache_dir;  // empty: prefixes are not kept on disk
  std::string cache_dir_size = "8G";
};

// Registers -m -c -t -b -ub --act -ctk -ctv --device --spec-* -md -np and what memory a server shares, with
// their environment names. `with_model` false: no -m.
void add_model_options(CLI::App& command, ModelFlags& flags, bool with_model = true);

// The engine's options. Errors: invalid_argument.
Result<EngineOptions> engine_options(const ModelFlags& flags);

// The file of -m, or the one inside the binary.
Result<GgufFile> open_model_file(const std::string& path);

Result<Tokenizer> make_tokenizer(const GgufFile& file);

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

// The whole of a file, or of stdin for "-", without the byte order mark that some editors put before UTF-8. Errors: not_found, io, exhausted (above 1 GiB).
Result<std::string> read_text(const std::string& path);

// Highest resident set of this process so far.
uint64_t peak_memory_bytes();

}  // namespace braid::cli
