#include "cli/model_options.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>

#include "cli/default_model.h"
#include "cli/terminal/sizes.h"
#include "cli/terminal/terminal.h"
#include "ops/cpu/kv/unit_side.h"
#include "ops/kv/kv_codec.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::cli {

namespace {

constexpr int kMostDrafts = 64;  // of a step

// What requests that run together share.
void add_sharing_options(CLI::App& command, ModelFlags& flags) {
  command.add_option("--parallel", flags.parallel, "-np: requests that run at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->envname("BRAID_PARALLEL");
  command
      .add_option("--max-batch-tokens", flags.max_batch_tokens,
                  "tokens of one step, all requests together (default: -ub)")
      ->check(CLI::Range(0, 65536))
      ->envname("BRAID_MAX_BATCH_TOKENS");
  command
      .add_option(
          "--gap-limit", flags.gap_limit,
          "while a prompt comes in, answers wait for their next token so many undisturbed steps at most; "
          "0: any number, prompts in whole chunks")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str()
      ->envname("BRAID_GAP_LIMIT");
  command
      .add_option("--kv-memory", flags.kv_memory,
                  "memory of the KV cache, e.g. 8G (default: what all contexts need, as far as there is)")
      ->envname("BRAID_KV_MEMORY");
  command
      .add_option("--state-memory", flags.state_memory,
                  "memory of checkpoints of recurrent states, e.g. 2G; 0: none (default: chosen)")
      ->envname("BRAID_STATE_MEMORY");
  command
      .add_option("--checkpoint-interval", flags.checkpoint_interval,
                  "a checkpoint every so many tokens; 0: only at ends of messages (default: chosen)")
      ->check(CLI::Range(-1, 1 << 24))
      ->envname("BRAID_CHECKPOINT_INTERVAL");
  command
      .add_option("--cache-dir", flags.cache_dir,
                  "keep prompts' prefixes in files of this directory, for the next start (default: no)")
      ->envname("BRAID_CACHE_DIR");
  command.add_option("--cache-dir-size", flags.cache_dir_size, "of all these files, e.g. 8G")
      ->capture_default_str()
      ->envname("BRAID_CACHE_DIR_SIZE");
}

struct SpecTypeName {
  const char* name;
  SpecType type;
};
constexpr SpecTypeName kSpecTypes[] = {{"none", SpecType::none},
                                       {"ngram", SpecType::ngram},
                                       {"mtp", SpecType::mtp},
                                       {"dflash", SpecType::dflash},
                                       {"auto", SpecType::automatic}};

// Empty: one of the names is none.
std::optional<SpecTypes> spec_types(const std::string& text) {
  SpecTypes types = SpecType::none;
  std::istringstream names(text + ",");
  for (std::string name; std::getline(names, name, ',');) {
    const auto* known = std::find_if(std::begin(kSpecTypes), std::end(kSpecTypes),
                                     [&](const SpecTypeName& each) { return name == each.name; });
    if (known == std::end(kSpecTypes)) return std::nullopt;
    types.add(known->type);
  }
  return types;
}

std::string check_spec_types(const std::string& text) {
  return spec_types(text) ? "" : text + " is not made of none, ngram, mtp, dflash and auto, with commas";
}

void add_speculation_options(CLI::App& command, ModelFlags& flags) {
  command
      .add_option(
          "--spec-type", flags.spec_type,
          "who drafts tokens that a step verifies together, where that saves time, one or several with "
          "commas: none; ngram: what the conversation has said before; mtp: the model's own head; dflash: "
          "the drafter of -md; auto: dflash with -md, else mtp if the file has it, and ngram with up to 8 "
          "sequences or without both; with --deterministic none")
      ->check(check_spec_types)
      ->capture_default_str()
      ->envname("BRAID_SPEC_TYPE");
  command
      .add_option("--model-draft", flags.draft_model,
                  "-md: DFlash drafter of the model: a GGUF file, or a folder with config.json and "
                  "model.safetensors")
      ->envname("BRAID_MODEL_DRAFT");
  command
      .add_option("--spec-draft-n-max", flags.spec_draft_n_max,
                  "drafts one behind the other at most (default: 7 of ngram, 3 of mtp, 15 of dflash)")
      ->check(CLI::Range(1, kMostDrafts))
      ->envname("BRAID_SPEC_DRAFT_N_MAX");
  command
      .add_option("--ddtree-budget", flags.ddtree_budget,
                  "mtp and dflash draft trees of so many tokens, the most probable paths of all; 0: chains")
      ->check(CLI::Range(0, kMostDrafts))
      ->capture_default_str()
      ->envname("BRAID_DDTREE_BUDGET");
  command
      .add_flag("--spec-always", flags.spec_always,
                "draft in every step, also where measured times say that it costs more than it saves")
      ->envname("BRAID_SPEC_ALWAYS");
  command
      .add_option("--spec-draft-p-min", flags.spec_draft_p_min,
                  "mtp and dflash draft no further than they are so sure of")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->envname("BRAID_SPEC_DRAFT_P_MIN");
  command
      .add_option(
          "--spec-draft-vocab", flags.spec_draft_vocab,
          "mtp drafts among the N tokens that came last; 0: among all, auto: 40960 of a vocabulary four "
          "times as large, else all")
      ->transform([](std::string text) { return text == "auto" ? std::string("-1") : text; })
      ->check(CLI::Range(-1, 1 << 24))
      ->default_str("auto")
      ->envname("BRAID_SPEC_DRAFT_VOCAB");
}

// `*bytes` keeps its value if nothing was written.
template <typename Bytes>
Status read_size(const char* option, const std::string& text, Bytes* bytes) {
  if (text.empty()) return {};
  const auto size = parse_size(text);
  if (!size.ok()) return Error{size.error().kind, fmt::format("{}: {}", option, size.error().message)};
  *bytes = static_cast<Bytes>(std::min<uint64_t>(*size, INT64_MAX));
  return {};
}

}  // namespace

void add_model_options(CLI::App& command, ModelFlags& flags, bool with_model) {
  if (with_model) {
    command.add_option("-m,--model", flags.model, "GGUF file (default: the model built into braid)")
        ->envname("BRAID_MODEL");
  }
  command
      .add_option("-c,--ctx-size", flags.context,
                  "positions a conversation may have (default: the model's, if they fit)")
      ->check(CLI::NonNegativeNumber)
      ->envname("BRAID_CTX_SIZE");
  command.add_option("-t,--threads", flags.threads, "threads (default: physical cores)")
      ->check(CLI::Range(0, 1024))
      ->envname("BRAID_THREADS");
  command
      .add_option("-b,--batch-size", flags.batch, "accepted for llama.cpp's habits; an upper limit of -ub")
      ->check(CLI::NonNegativeNumber)
      ->envname("BRAID_BATCH_SIZE");
  command
      .add_option(
          "--ubatch-size", flags.ubatch,
          "-ub: prompt tokens per step; 0: 512 on a CPU, on a GPU what suits the model and its memory")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str()
      ->envname("BRAID_UBATCH_SIZE");
  command
      .add_option("--act", flags.activations, "activations that meet quantized weights: i8, i16, f32 (exact)")
      ->check(CLI::IsMember({"i8", "i16", "f32"}))
      ->capture_default_str()
      ->envname("BRAID_ACT");
  command
      .add_option(
          "--cache-type-k", flags.cache_k,
          "-ctk: keys in the cache: " + kv_codec_names() +
              ", or auto: f16 if all contexts fit so, else q8_0. A CPU is fast with f16, q8_0, q4_0 and "
              "c4, a GPU with all but kvarn4 and kvarn3, which it does not take")
      ->capture_default_str()
      ->envname("BRAID_CACHE_TYPE_K");
  command.add_option("--cache-type-v", flags.cache_v, "-ctv: values in the cache: the same formats")
      ->capture_default_str()
      ->envname("BRAID_CACHE_TYPE_V");
  command
      .add_option(
          "--kv-tail", flags.kv_tail,
          "blocks of 32 tokens before a token's own that it reads as f16 all the same, where the cache "
          "has other formats")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->envname("BRAID_KV_TAIL");
  command.add_option("--kv-sink", flags.kv_sink, "the same of blocks at the beginning of the context")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->envname("BRAID_KV_SINK");
  command
      .add_option("--fa-window", flags.attention_window,
                  "attention layers see the newest N positions only: faster at long contexts, but an "
                  "approximation that breaks retrieval and tool calls; 0: all")
      ->capture_default_str()
      ->envname("BRAID_FA_WINDOW");
  command
      .add_option("--device", flags.device,
                  "auto (a GPU if there is one), cuda, cpu, or ref: the slow scalar reference")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "ref"}))
      ->capture_default_str()
      ->envname("BRAID_DEVICE");
  command
      .add_flag("--deterministic", flags.deterministic,
                "the same bytes for a request whatever else runs (GPU: slower; CPU: always so)")
      ->envname("BRAID_DETERMINISTIC");
  add_speculation_options(command, flags);
  add_sharing_options(command, flags);
}

// Rows stay as they are written if both sides can be written so; else full blocks are sealed.
Status read_cache_types(const ModelFlags& flags, EngineOptions& options) {
  options.kv_tail = {flags.kv_tail, flags.kv_sink};
  const std::string k = CLI::detail::to_lower(flags.cache_k), v = CLI::detail::to_lower(flags.cache_v);
  if (parse_kv_format(k, &options.k_format) && parse_kv_format(v, &options.v_format)) return {};
  options.k_format = options.v_format = KvFormat::f16;
  if ((k == "auto") != (v == "auto"))
    return Error{ErrorKind::invalid_argument, "-ctk auto and -ctv auto go together"};
  options.kv_auto = k == "auto";
  if (options.kv_auto) return {};
  const auto codec = [](const char* flag, const std::string& name, const KvCodec** out) -> Status {
    const auto found = find_kv_codec(name);
    if (!found.ok()) return Error{found.error().kind, fmt::format("{}: {}", flag, found.error().message)};
    *out = *found;
    return {};
  };
  BRAID_TRY(codec("-ctk", flags.cache_k, &options.k_codec));
  BRAID_TRY(codec("-ctv", flags.cache_v, &options.v_codec));
  return {};
}

Result<EngineOptions> engine_options(const ModelFlags& flags) {
  EngineOptions options;
  options.context_tokens = flags.context;
  options.threads = flags.threads;
  options.attention_window = flags.attention_window;
  options.ubatch_tokens = flags.ubatch;
  if (flags.batch > 0)
    options.ubatch_tokens = flags.ubatch > 0 ? std::min(flags.batch, flags.ubatch) : flags.batch;
  options.device = flags.device;
  options.deterministic = flags.deterministic;
  options.max_sequences = flags.parallel;
  options.max_batch_tokens = flags.max_batch_tokens;
  options.gap_limit = flags.gap_limit;
  options.checkpoint_interval = flags.checkpoint_interval;
  if (const auto types = spec_types(flags.spec_type)) options.spec_type = *types;
  options.spec_always = flags.spec_always;
  options.draft_p_min = static_cast<float>(flags.spec_draft_p_min);
  options.draft_vocabulary = flags.spec_draft_vocab;
  options.draft_model = flags.draft_model;
  if (!options.spec_type.none()) {
    options.draft_depth = flags.spec_draft_n_max;
    options.max_drafts = flags.ddtree_budget;
    options.draft_trees = flags.ddtree_budget > 0;
  }
  BRAID_TRY(read_size("--kv-memory", flags.kv_memory, &options.kv_memory_bytes));
  BRAID_TRY(read_size("--state-memory", flags.state_memory, &options.state_memory_bytes));
  options.cache_dir = flags.cache_dir;
  BRAID_TRY(read_size("--cache-dir-size", flags.cache_dir_size, &options.cache_dir_bytes));
  options.activations = flags.activations == "f32"   ? Activations::f32
                        : flags.activations == "i16" ? Activations::i16
                                                     : Activations::i8;
  BRAID_TRY(read_cache_types(flags, options));
  return options;
}

Result<GgufFile> open_model_file(const std::string& path) {
  if (path.empty()) return GgufFile::parse(default_model(), kDefaultModelName);
  return GgufFile::open(path);
}

Result<Tokenizer> make_tokenizer(const GgufFile& file) {
  BRAID_ASSIGN(auto data, read_vocabulary(file));
  return Tokenizer::create(std::move(data));
}

namespace {

// Formats of the cache that the engine's device reads by plain code; empty: there are none.
std::string slow_formats(Engine& engine) {
  if (!engine.device().computes_in_host_memory()) return {};
  int32_t head_dim = 0;
  for (const LayerConfig& layer : engine.config().layers)
    if (layer.kind == LayerKind::attention) head_dim = std::max(head_dim, layer.attention.head_dim);
  std::string names;
  for (const std::string_view name : {engine.memory().k_type, engine.memory().v_type}) {
    const auto codec = find_kv_codec(name);
    if (name == names || !codec.ok() || !cpu::is_expanded(**codec, head_dim)) continue;
    names += (names.empty() ? "" : " and ") + std::string(name);
  }
  return names;
}

}  // namespace

Result<LoadedModel> load_model(const ModelFlags& flags, const std::function<void(EngineOptions&)>& adjust) {
  LoadedModel loaded;
  BRAID_ASSIGN(auto options, engine_options(flags));
  if (adjust) adjust(options);
  BRAID_ASSIGN(auto file, open_model_file(flags.model));
  loaded.file = std::make_unique<GgufFile>(std::move(file));
  loaded.name =
      flags.model.empty() ? kDefaultModelName : std::filesystem::path(flags.model).filename().string();
  ProgressLine progress("loading " + loaded.name);
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  options.host_progress = [&](uint64_t done, uint64_t total) {
    progress.update(done, total, "host memory for checkpoints");
  };
  BRAID_ASSIGN(loaded.engine, Engine::create(*loaded.file, options));
  BRAID_ASSIGN(loaded.tokenizer, make_tokenizer(*loaded.file));
  if (const std::string slow = slow_formats(*loaded.engine); !slow.empty()) {
    progress.clear();
    print_note(fmt::format(
        "a CPU has no kernels for {}: decoding spends 15 to 110 times as long in attention as with q8_0, "
        "q4_0 or c4",
        slow));
  }
  return loaded;
}

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  std::string text;
  auto slurp = [&](std::istream& in) -> Status {
    char buffer[1 << 16];
    while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
      text.append(buffer, static_cast<size_t>(in.gcount()));
      if (text.size() > kMaxBytes)
        return Error{ErrorKind::exhausted, path + ": is larger than 1 GiB of text"};
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
