// plan.cpp -- `braid plan`: the memory that a model needs, here or on another GPU.

#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/options/option_group.h"
#include "cli/options/sizes.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "model/random_model.h"
#include "ops/kv/kv_codec.h"

namespace braid::cli {

namespace {

struct PlanFlags {
  ModelFlags model;
  std::string shape;
  std::string mix = "Q4_K_M";
  std::string memory;  // of cards, with commas
  std::string ram;
};

// A model file of a published shape. Metadata and sizes are real; tensor pages are never touched.
class HollowFile {
 public:
  static Result<HollowFile> make(const RandomShape& shape, const RandomOptions& options) {
    BRAID_ASSIGN(const GgufWriter writer, random_model(shape, options));
    const std::vector<std::byte> header = writer.header();
    HollowFile out;
    out.bytes_ = writer.file_bytes();
    out.data_ = ::mmap(nullptr, out.bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (out.data_ == MAP_FAILED) {
      out.data_ = nullptr;
      return Error{ErrorKind::exhausted,
                   fmt::format("no address space of {} is available for the plan",
                               format_bytes(out.bytes_))};
    }
    std::memcpy(out.data_, header.data(), header.size());
    return out;
  }
  HollowFile(HollowFile&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  HollowFile(const HollowFile&) = delete;
  HollowFile& operator=(const HollowFile&) = delete;
  HollowFile& operator=(HollowFile&&) = delete;
  ~HollowFile() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), bytes_};
  }

 private:
  HollowFile() = default;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
constexpr int32_t kLeastContext = 1024;  // a smaller one counts as not fitting

// The largest context in each recommended format, with all other options as given.
std::string context_table(const GgufFile& file, const EngineOptions& options) {
  std::string out =
      fmt::format("{:<12} {:>18} {:>12}\n", "-ctk, -ctv", "tokens of context", "KV cache");
  std::vector<std::string> names = {"f16", "q8_0", "c5", "c4"};
  if (options.k_codec != nullptr && options.k_codec == options.v_codec &&
      std::find(names.begin(), names.end(), options.k_codec->name) == names.end())
    names.insert(names.begin(), std::string(options.k_codec->name));
  for (const std::string& name : names) {
    const auto codec = find_kv_codec(name);
    EngineOptions tried = options;
    tried.k_format = tried.v_format = KvFormat::f16;
    tried.k_codec = tried.v_codec = name == "f16" || !codec.ok() ? nullptr : *codec;
    tried.kv_auto = false;
    tried.context_tokens = 0;
    const auto plan = Engine::plan_memory(file, tried);
    if (!plan.ok() && plan.error().kind == ErrorKind::unsupported) continue;
    if (!plan.ok() || !plan->check_fits().ok() || plan->context_tokens < kLeastContext) {
      out += fmt::format("{:<12} {:>18}\n", name, "does not fit");
      continue;
    }
    uint64_t cache_bytes = 0;
    for (const MemoryRow& row : plan->rows)
      if (row.use == MemoryUse::kv_blocks) cache_bytes += row.predicted_bytes;
    out += fmt::format("{:<12} {:>18} {:>12}\n", name, plan->context_tokens,
                       format_bytes(cache_bytes));
  }
  return out;
}

Status print_plan(const GgufFile& file, const std::string& title, const PlanFlags& flags) {
  BRAID_ASSIGN(EngineOptions options, engine_options(flags.model));
  BRAID_TRY(read_size("--ram", flags.ram, &options.host_memory_bytes));
  std::vector<uint64_t> sizes;
  BRAID_TRY(read_sizes("--memory", flags.memory, &sizes));
  for (const uint64_t size : sizes)
    if (size < kLeastMemory)
      return Error{ErrorKind::invalid_argument,
                   fmt::format("--memory {0}: {1} are too few; {0}G is meant?", flags.memory,
                               format_bytes(size))};
  const bool on_cpu = flags.model.device == "cpu";
  if (on_cpu && !sizes.empty()) options.host_memory_bytes = sizes[0];
  options.planned_gpus = !sizes.empty() && !on_cpu;
  if (options.planned_gpus) options.gpu_memory_bytes = sizes;
  BRAID_ASSIGN(const MemoryPlan plan, Engine::plan_memory(file, options));
  const Status fits = plan.check_fits();
  print_result("{}, {} request{} at a time, {} tokens of context each{}\n\n{}\n", title,
               options.max_sequences, options.max_sequences == 1 ? "" : "s", plan.context_tokens,
               fits.ok() ? "" : ": does not fit", plan.table());
  if (options.planned_gpus && !plan.pools.back().own_memory)
    print_result(
        "On the CPU: the memory given is too small for the last layer and what follows it\n\n");
  print_result("What fits at most:\n{}", context_table(file, options));
  if (options.planned_gpus)
    print_result(
        "\nAn estimate: the workspaces of kernels are not known here. A desktop takes some of the "
        "card's\nmemory. `braid inspect FILE` on the machine itself is exact.\n");
  return fits;
}

int run_plan(const PlanFlags& flags) {
  if (flags.shape.empty()) {
    const auto file = open_model_file(flags.model.model);
    if (!file.ok()) return fail(file.error());
    const Status status = print_plan(*file, file->name(), flags);
    return status.ok() ? 0 : fail(status.error());
  }
  if (const Status alone = shape_alone(flags.shape, flags.model); !alone.ok())
    return fail(alone.error());
  // "qwen3.8-27b" is the shape 27b.
  std::string name = flags.shape;
  for (const char* family : {"qwen3.5-", "qwen3.6-", "qwen3.8-"})
    if (CLI::detail::to_lower(name).starts_with(family)) name.erase(0, std::strlen(family));
  const RandomShape* shape = find_random_shape(name);
  if (shape == nullptr)
    return fail({ErrorKind::invalid_argument,
                 fmt::format("--shape {} is not one of {}", flags.shape, random_shape_names())});
  RandomOptions random;
  random.mix = flags.mix;
  random.with_mtp = flags.model.spec_type.find("auto") != std::string::npos ||
                    flags.model.spec_type.find("mtp") != std::string::npos;
  const auto hollow = HollowFile::make(*shape, random);
  if (!hollow.ok()) return fail(hollow.error());
  const auto file = GgufFile::parse(hollow->bytes(), flags.shape);
  if (!file.ok()) return fail(file.error());
  const Status status = print_plan(*file, fmt::format("{} in {}", flags.shape, flags.mix), flags);
  return status.ok() ? 0 : fail(status.error());
}

}  // namespace

void add_plan(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  auto* command = app.add_subcommand(
      "plan", "What a model needs in memory, before it is downloaded or on another card");
  command->footer(
      "  braid plan --shape 27b --memory 24G       a 27B in Q4_K_M on a card of 24 GB\n"
      "  braid plan --shape 35b-a3b --memory 32G -np 4 -ctk q8_0 -ctv q8_0");
  add_model_options(*command, flags->model,
                    kModelPart | kMemoryPart | kParallelPart | kCachePart | kDrafterPart);
  OptionGroup group(*command, "Plan");
  group
      .add("--shape", flags->shape, "a published model instead of a file: " + random_shape_names())
      ->type_name("NAME");
  group.add("--mix", flags->mix, "with --shape: the quantization, a name of `braid quantize`")
      ->type_name("NAME")
      ->capture_default_str();
  group
      .add("--memory", flags->memory,
           "memory of the card, e.g. 24G, or of several as 24G,12G (default: what this machine has "
           "free); with --device cpu of a host")
      ->type_name("SIZES");
  group
      .add("--ram", flags->ram,
           "host memory, for layers that a card does not hold (default: with --memory no limit)")
      ->type_name("SIZE");
  command->callback([flags, exit_code] { *exit_code = run_plan(*flags); });
}

}  // namespace braid::cli
