// model_flags.cpp -- see model_flags.h.
#include "cli/options/model_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <sstream>

#include "cli/options/option_group.h"
#include "cli/options/sizes.h"
#include "engine/open_devices.h"
#include "ops/kv/kv_codec.h"

namespace braid::cli {

namespace {

constexpr int kMostDrafts = 64;  // per step

struct SpecTypeName {
  const char* name;
  SpecType type;
};
constexpr SpecTypeName kSpecTypes[] = {{"none", SpecType::none},
                                       {"ngram", SpecType::ngram},
                                       {"mtp", SpecType::mtp},
                                       {"dflash", SpecType::dflash},
                                       {"auto", SpecType::automatic}};

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
  return spec_types(text) ? ""
                          : text + " is not made of none, ngram, mtp, dflash and auto, with commas";
}

// "32k" of a context: 32768.
std::string tokens_of_thousands(std::string text) {
  if (text.size() < 2 || (text.back() != 'k' && text.back() != 'K')) return text;
  const std::string digits = text.substr(0, text.size() - 1);
  const bool number = digits.size() < 7 && digits.find_first_not_of("0123456789") == digits.npos;
  return number ? std::to_string(1024 * std::stol(digits)) : text;
}

std::string device_names(const std::string& text) {
  const Status status = check_device_names(text);
  return status.ok() ? "" : status.error().message;
}

Status read_split(const ModelFlags& flags, EngineOptions& options) {
  options.split = flags.split == "none"     ? Split::none
                  : flags.split == "layer"  ? Split::layer
                  : flags.split == "tensor" ? Split::tensor
                                            : Split::automatic;
  // Before any other thread runs (open_devices.h).
  if (options.split == Split::tensor) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  std::istringstream shares(flags.split_ratio);
  double total = 0;
  for (std::string text; std::getline(shares, text, ',');) {
    double share = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (error != std::errc() || end != text.data() + text.size() || !(share >= 0 && share < 1e9))
      return Error{ErrorKind::invalid_argument,
                   fmt::format("--split-ratio {}: \"{}\" is not a share; 3,1 gives the first GPU "
                               "three times as many layers as the second",
                               flags.split_ratio, text)};
    options.split_ratio.push_back(share);
    total += share;
  }
  if (!options.split_ratio.empty() && total == 0)
    return Error{ErrorKind::invalid_argument, "--split-ratio: all shares are 0"};
  return {};
}

// -1: auto; nothing: not understood.
std::optional<int32_t> gpu_layers_of(const std::string& text) {
  if (text == "auto") return -1;
  if (text == "all") return INT32_MAX;
  int32_t layers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && layers >= -1 ? std::optional(layers) : std::nullopt;
}

std::optional<int32_t> expert_slots_of(const std::string& text) {
  if (text == "auto") return EngineOptions::kAutomaticExperts;
  if (text == "all") return EngineOptions::kAllExperts;
  int32_t slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && slots > 0 ? std::optional(slots) : std::nullopt;
}

std::string expert_slots_text(const std::string& text) {
  return expert_slots_of(text) ? ""
                               : fmt::format("{} is not a number of experts, all or auto", text);
}

std::string gpu_layers_text(const std::string& text) {
  return gpu_layers_of(text) ? "" : fmt::format("{} is not a number of layers, all or auto", text);
}

void add_model_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Model");
  group.add("-m,--model,MODEL", flags.model, "GGUF file; without it the toy model inside braid")
      ->type_name("FILE");
  group
      .add("-c,--ctx-size", flags.context,
           "tokens of context of one conversation, e.g. 32k (default: the model's, or as many as "
           "fit in "
           "memory)")
      ->transform(tokens_of_thousands)
      ->check(CLI::Range(0, 1 << 30));
  group
      .add("--device", flags.device,
           "auto (GPUs if there are any), cuda, cuda:1, cpu, several GPUs as cuda:0,cuda:1, or a "
           "CPU and GPUs as cpu,cuda:0; ref is the slow scalar reference")
      ->type_name("NAMES")
      ->check(device_names)
      ->capture_default_str();
  group
      .add("--split", flags.split,
           "how GPUs share a model: none (one of them), layer (each some layers), tensor (each a "
           "part of every layer), auto (layer if it does not fit one)")
      ->check(CLI::IsMember({"none", "layer", "tensor", "auto"}))
      ->capture_default_str();
  group
      .add("--split-ratio", flags.split_ratio,
           "shares of the GPUs, e.g. 3,1 (default: by memory and speed; with tensor: even)")
      ->type_name("LIST");
  group
      .add("--gpu-layers", flags.gpu_layers,
           "last layers on GPUs, the others on the CPU: a number, all, or auto (all that fit)")
      ->type_name("N")
      ->check(gpu_layers_text)
      ->capture_default_str();
  group
      .add("--expert-slots", flags.expert_slots,
           "experts of each layer that lie on the GPU, which reads the others from host memory: a "
           "number, all, or auto (all, or those that fit if the model does not)")
      ->type_name("N")
      ->check(expert_slots_text)
      ->capture_default_str();
  group
      .add("--expert-profile", flags.expert_profile,
           "file with the use of each expert, or a folder of them for several models: read at the "
           "start, so that the right ones have slots; written when idle and at the end")
      ->type_name("FILE");
  group.flag("--no-cpu-experts", flags.no_cpu_experts,
             "read all experts that are missing on the GPU from host memory. By default CPU "
             "threads compute some of them meanwhile; --deterministic does without");
  group
      .add("--gpu-memory", flags.gpu_memory,
           "most memory to take of each GPU, e.g. 20G, or 20G,8G for the first two (default: what "
           "is "
           "free)")
      ->type_name("SIZES");
  group.add("-t,--threads", flags.threads, "CPU threads (default: physical cores)")
      ->check(CLI::Range(0, 1024));
  group.add("-b,--batch-size", flags.batch, "an upper limit of -ub, known from llama.cpp")
      ->check(CLI::Range(0, 1 << 30));
  group
      .add("--ubatch-size", flags.ubatch,
           "prompt tokens of one step (default: 512 on a CPU; chosen by model and memory on a GPU)")
      ->check(CLI::Range(0, 65536));
  group
      .add("--act", flags.activations,
           "on a CPU, the precision of activations that meet quantized weights; f32 is exact")
      ->check(CLI::IsMember({"i8", "i16", "f32"}))
      ->capture_default_str();
  group.flag(
      "--deterministic", flags.deterministic,
      "the same bytes for a request whatever else runs (a GPU is slower; a CPU always does this)");
}

void add_cache_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "KV cache");
  group
      .add("--cache-type-k", flags.cache_k,
           "format of keys: " + kv_codec_names() +
               ", or auto: f16 if all contexts fit, else q8_0. A CPU is fast with f16, q8_0, q4_0 "
               "and c4")
      ->type_name("TYPE")
      ->capture_default_str();
  group.add("--cache-type-v", flags.cache_v, "format of values, as for keys")
      ->type_name("TYPE")
      ->capture_default_str();
  group
      .add("--kv-tail", flags.kv_tail,
           "newest blocks of 32 tokens that a token reads as f16, whatever the format")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  group.add("--kv-sink", flags.kv_sink, "first blocks of the context that stay f16")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  group
      .add("--fa-window", flags.attention_window,
           "attention sees the newest N positions only. It is faster at long contexts, and an "
           "approximation "
           "that breaks retrieval and tool calls. 0: all positions")
      ->capture_default_str();
  group
      .add("--prefill-sparse", flags.prefill_sparse,
           "long prompts read only the parts of the context that promise attention: blocks of 128 "
           "tokens with at least share T of the best block's attention (0.02 to 0.2 is usual). An "
           "approximation. 0: off")
      ->type_name("T")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_memory_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Memory");
  group
      .add("--kv-memory", flags.kv_memory,
           "of the KV cache, e.g. 8G (default: all contexts, if they fit)")
      ->type_name("SIZE");
  group
      .add("--state-memory", flags.state_memory,
           "host memory of checkpoints of recurrent states, e.g. 2G; 0: none (default: chosen)")
      ->type_name("SIZE");
  group
      .add("--checkpoint-interval", flags.checkpoint_interval,
           "tokens between checkpoints; 0: only at ends of messages (default: chosen)")
      ->check(CLI::Range(-1, 1 << 24));
}

void add_schedule_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Scheduling");
  group
      .add("--max-batch-tokens", flags.max_batch_tokens,
           "tokens of one step, all requests together "
           "(default: that of -ub)")
      ->check(CLI::Range(0, 65536));
  group
      .add("--gap-limit", flags.gap_limit,
           "longest wait for a token while a prompt is computed, in decode steps without one; 0: "
           "any, "
           "prompts run in whole chunks")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
}

void add_disk_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Prefix cache on disk");
  group
      .add("--cache-dir", flags.cache_dir,
           "keep computed prompts in files of this directory; they hold the prompts in the clear")
      ->type_name("DIR");
  group.add("--cache-dir-size", flags.cache_dir_size, "of all these files")
      ->type_name("SIZE")
      ->capture_default_str();
}

void add_drafter_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Speculative decoding");
  group
      .add("--spec-type", flags.spec_type,
           "what proposes tokens, several with commas: none; ngram: repeats of the conversation; "
           "mtp: the "
           "model's own head; dflash: the model of -md; auto: dflash with -md, else mtp if the "
           "file has it, "
           "and ngram with up to 8 sequences. With --deterministic auto is none")
      ->check(check_spec_types)
      ->type_name("TYPES")
      ->capture_default_str();
  group
      .add("--model-draft", flags.draft_model,
           "DFlash drafter: a GGUF file, or a folder with config.json and model.safetensors")
      ->type_name("FILE");
  group
      .add("--spec-draft-n-max", flags.spec_draft_n_max,
           "speculative tokens in a row (default: 7 of ngram, 3 of mtp, 15 of dflash)")
      ->check(CLI::Range(1, kMostDrafts));
  group
      .add("--ddtree-budget", flags.ddtree_budget,
           "mtp and dflash propose trees of N tokens, the most probable paths; 0: chains")
      ->check(CLI::Range(0, kMostDrafts))
      ->capture_default_str();
  group
      .add("--spec-draft-vocab", flags.spec_draft_vocab,
           "mtp chooses among N tokens, the most recently used; 0: all; auto: 40960 of a "
           "vocabulary four "
           "times as large")
      ->transform([](std::string text) { return text == "auto" ? std::string("-1") : text; })
      ->check(CLI::Range(-1, 1 << 24))
      ->default_str("auto");
}

void add_speculation_part(CLI::App& command, ModelFlags& flags) {
  OptionGroup group(command, "Speculative decoding");
  group
      .add("--spec-draft-p-min", flags.spec_draft_p_min,
           "mtp and dflash propose tokens of at least this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  group.flag("--spec-always", flags.spec_always,
             "speculate even where it was measured to cost time");
}

}  // namespace

void add_model_options(CLI::App& command, ModelFlags& flags, uint32_t parts) {
  if (parts & kModelPart) add_model_part(command, flags);
  if (parts & kTemplatePart) {
    OptionGroup(command, "Model")
        .add("--chat-template", flags.chat_template,
             "Jinja file in place of the model's chat template, or the name of another one in its "
             "file")
        ->type_name("FILE");
  }
  if (parts & kParallelPart) {
    OptionGroup(command, "Memory")
        .add("--parallel", flags.parallel, "requests that run at the same time")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
  }
  if (parts & kMemoryPart) add_memory_part(command, flags);
  if (parts & kCachePart) add_cache_part(command, flags);
  if (parts & kDiskPart) add_disk_part(command, flags);
  if (parts & kSchedulePart) add_schedule_part(command, flags);
  if (parts & kDrafterPart) add_drafter_part(command, flags);
  if (parts & kSpeculationPart) add_speculation_part(command, flags);
}

// K and V in plain row formats keep them. Otherwise rows are f16 and full blocks use the codecs.
Status read_cache_types(const ModelFlags& flags, EngineOptions& options) {
  options.kv_tail = {flags.kv_tail, flags.kv_sink};
  const std::string k = CLI::detail::to_lower(flags.cache_k),
                    v = CLI::detail::to_lower(flags.cache_v);
  if (parse_kv_format(k, &options.k_format) && parse_kv_format(v, &options.v_format)) return {};
  options.k_format = options.v_format = KvFormat::f16;
  if ((k == "auto") != (v == "auto"))
    return Error{ErrorKind::invalid_argument, "-ctk auto and -ctv auto go together"};
  options.kv_auto = k == "auto";
  if (options.kv_auto) return {};
  const auto codec = [](const char* flag, const std::string& name, const KvCodec** out) -> Status {
    const auto found = find_kv_codec(name);
    if (!found.ok())
      return Error{found.error().kind, fmt::format("{}: {}", flag, found.error().message)};
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
  options.sparse_threshold = static_cast<float>(flags.prefill_sparse);
  options.ubatch_tokens = flags.ubatch;
  if (flags.batch > 0)
    options.ubatch_tokens = flags.ubatch > 0 ? std::min(flags.batch, flags.ubatch) : flags.batch;
  options.device = flags.device;
  BRAID_TRY(read_split(flags, options));
  options.gpu_layers = *gpu_layers_of(flags.gpu_layers);
  options.expert_slots = *expert_slots_of(flags.expert_slots);
  options.expert_profile = flags.expert_profile;
  options.experts_on_cpu = !flags.no_cpu_experts;
  BRAID_TRY(read_sizes("--gpu-memory", flags.gpu_memory, &options.gpu_memory_bytes));
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

void add_sampling_options(CLI::App& command, SamplingChoice& flags) {
  OptionGroup group(command, "Sampling");
  group.add("--temp", flags.temperature,
            "temperature; 0: always the most probable token (default: the file's, else 1)");
  group.add("--top-k", flags.top_k,
            "only the k most probable; 0: all (default: the file's, else 20)");
  group.add("--top-p", flags.top_p,
            "only the most probable that sum to p (default: the file's, else 0.95)");
  group.add("--min-p", flags.min_p,
            "only those at least p times as probable as the first (default: 0)");
  group.add("--repeat-penalty", flags.repeat_penalty,
            "above 1: tokens seen before become less probable");
  group.add("--repeat-last-n", flags.repeat_last_n,
            "tokens that --repeat-penalty looks back; -1: all");
  group.add("--presence-penalty", flags.presence_penalty,
            "subtracted once from tokens generated before");
  group.add("--frequency-penalty", flags.frequency_penalty,
            "subtracted for each time a token was generated");
  group.add("-s,--seed", flags.seed,
            "the same seed and prompt give the same text; -1: a random one");
}

}  // namespace braid::cli
