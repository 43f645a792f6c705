// bench.cpp -- `braid bench`: the speed of a model on this machine, against the machine's peaks.
// Rows have names of llama-bench: ppN for N random prompt tokens, tgN for N generated tokens. GB/s
// counts the weights that a decode step reads, GFLOP/s 2 x parameters per token.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/threads.h"
#include "cli/bench/bench_placement.h"
#include "cli/bench/bench_profile.h"
#include "cli/bench/bench_serving.h"
#include "cli/bench/bench_speculation.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/sparse_share.h"
#include "cli/terminal.h"
#include "model/random_model.h"
#include "ops/cpu/peaks.h"

namespace braid::cli {

namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<int> prompts = {512};
  std::vector<int> generations = {128};
  int depth = 0;
  int repetitions = 3;
  int fit = 0;
  int fill = 0;
  bool profile = false;
  int drafts = 0;
  bool tree = false;
  std::string output = "md";
  std::string shape;
  std::string mix = "Q4_K_M";
  std::string save;
  std::vector<std::string> drafters;  // kinds to write with random weights
  std::string made_folder;            // temporary, of --shape without --save
  ServingBenchFlags serving;
  std::vector<int> placement;
  SpeculationFlags speculation;
};

constexpr int kWarmDepth = 2048;  // longest prompt of a warm-up

// The token of the last prompt chunk, and eight to warm up and capture graphs of long contexts.
int32_t untimed_tokens(const BenchFlags& flags) { return flags.depth > 0 ? 9 : 0; }

struct Row {
  std::string test;
  int32_t tokens = 0;
  bool generation = false;
  std::vector<double> tok_s;

  double mean() const {
    double sum = 0;
    for (double v : tok_s) sum += v;
    return tok_s.empty() ? 0 : sum / static_cast<double>(tok_s.size());
  }
  double deviation() const {
    if (tok_s.size() < 2) return 0;
    double sum = 0;
    for (double v : tok_s) sum += (v - mean()) * (v - mean());
    return std::sqrt(sum / static_cast<double>(tok_s.size() - 1));
  }
};

struct BenchSink : Sink {
  void token(RequestId, const TokenEvent&) override {
    if (tokens++ < untimed_tokens) timed_from_ms = now_ms();
  }
  void progress(RequestId, int32_t done, int32_t) override {
    prompt_marks.emplace_back(done, now_ms());
  }
  void finished(RequestId, const Finished& event) override {
    end_ms = now_ms();
    end = event;
  }
  int32_t untimed_tokens = 0;
  int32_t tokens = 0;
  double start_ms = 0;
  double timed_from_ms = 0;
  double end_ms = 0;
  std::vector<std::pair<int32_t, double>> prompt_marks;  // (prompt tokens done, now_ms())
  Finished end;
};

class Bench {
 public:
  Bench(LoadedModel& loaded, const BenchFlags& flags) : loaded_(loaded), flags_(flags) {}

  Result<BenchSink> request(int32_t prompt_tokens, int32_t generated_tokens,
                            int32_t untimed_tokens = 0) {
    Engine& engine = *loaded_.engine;
    if (generated_tokens > engine.most_tokens() - prompt_tokens) {
      return Error{
          ErrorKind::invalid_argument,
          fmt::format("{} prompt tokens and {} generated ones need a larger context than {} (-c)",
                      prompt_tokens, generated_tokens, engine.most_tokens())};
    }
    Request request;
    std::mt19937 random(42);
    const auto vocabulary = static_cast<uint32_t>(engine.config().vocabulary);
    for (int32_t i = 0; i < prompt_tokens; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % vocabulary));
    request.max_tokens = generated_tokens;
    request.sampling.temperature = 0;
    request.use_cache = false;  // every run computes the whole prompt
    BenchSink sink;
    sink.untimed_tokens = untimed_tokens;
    sink.start_ms = sink.timed_from_ms = now_ms();
    BRAID_TRY(engine.submit(std::move(request), sink));
    while (!engine.idle()) {
      if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
      engine.step();
    }
    if (sink.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.end.error};
    return sink;
  }

  Result<Row> measure(int32_t tokens, bool generation) {
    Row row;
    row.tokens = tokens;
    row.generation = generation;
    row.test = fmt::format("{}{}", generation ? "tg" : "pp", tokens);
    if (generation && flags_.depth > 0) row.test += fmt::format("@d{}", flags_.depth);
    row.test += filled_from(flags_.fill, generation ? flags_.depth : tokens);
    BRAID_TRY(once(tokens, generation, nullptr));  // warm-up: pages, caches, clocks, CUDA graphs
    for (int r = 0; r < flags_.repetitions; ++r) {
      progress_.update(static_cast<uint64_t>(r), static_cast<uint64_t>(flags_.repetitions),
                       row.test);
      BRAID_TRY(once(tokens, generation, &row));
    }
    progress_.clear();
    return row;
  }

  // Fits cost per token = c0 + c1 * position to the steps of a long prompt, each at its fastest.
  Result<std::string> fit(int32_t tokens) {
    std::vector<std::pair<int32_t, double>> best;  // (end position, ms of the step)
    for (int r = 0; r < flags_.repetitions; ++r) {
      progress_.update(static_cast<uint64_t>(r), static_cast<uint64_t>(flags_.repetitions), "fit");
      BRAID_ASSIGN(BenchSink sink, request(tokens, 0));
      double before = sink.start_ms;
      for (size_t i = 0; i < sink.prompt_marks.size(); ++i) {
        const double ms = sink.prompt_marks[i].second - before;
        before = sink.prompt_marks[i].second;
        if (i == best.size()) best.emplace_back(sink.prompt_marks[i].first, ms);
        best[i].second = std::min(best[i].second, ms);
      }
    }
    progress_.clear();
    return describe_fit(best);
  }

 private:
  Status once(int32_t tokens, bool generation, Row* row) {
    if (!generation) {
      BRAID_ASSIGN(const BenchSink sink, request(tokens, 0));
      if (row != nullptr) row->tok_s.push_back(1e3 * tokens / (sink.end_ms - sink.start_ms));
      return {};
    }
    // Without -d, the step of the one-token prompt is timed as the first decode step.
    const int32_t depth = row == nullptr ? std::min(flags_.depth, kWarmDepth) : flags_.depth;
    const int32_t untimed = untimed_tokens(flags_);
    BRAID_ASSIGN(const BenchSink sink, request(std::max(1, depth), untimed + tokens, untimed));
    if (row != nullptr) row->tok_s.push_back(1e3 * tokens / (sink.end_ms - sink.timed_from_ms));
    return {};
  }

  static std::string describe_fit(const std::vector<std::pair<int32_t, double>>& steps) {
    double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    std::vector<std::pair<double, double>> points;  // (mean position, us per token)
    int32_t begin = 0;
    double total_ms = 0;
    for (const auto& [end, ms] : steps) {
      const double x = 0.5 * (begin + end - 1);
      const double y = 1e3 * ms / (end - begin);
      points.emplace_back(x, y);
      n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
      begin = end;
      total_ms += ms;
    }
    if (n < 3) return "--fit needs at least three steps; use a longer prompt or a smaller -ub";
    const double c1 = (n * sxy - sx * sy) / (n * sxx - sx * sx);
    const double c0 = (sy - c1 * sx) / n;
    double squares = 0, worst = 0;
    for (const auto& [x, y] : points) {
      const double residual = y / (c0 + c1 * x) - 1;
      squares += residual * residual;
      worst = std::max(worst, std::abs(residual));
    }
    return fmt::format(
        "cost per token over {} tokens: {:.1f} us + {:.4f} us x position; residual {:.1f} % rms, "
        "{:.1f} % at most; {:.0f} ms in total ({:.0f} tok/s)",
        begin, c0, c1, 100 * std::sqrt(squares / n), 100 * worst, total_ms, 1e3 * begin / total_ms);
  }

  LoadedModel& loaded_;
  const BenchFlags& flags_;
  ProgressLine progress_{"bench"};
};

struct Speeds {
  double gb_s = 0;
  double gflop_s = 0;
  double share = 0;
};

Speeds speeds_of(const Row& row, LoadedModel& loaded, const cpu::Peaks& peaks) {
  Speeds speeds;
  const double bytes = static_cast<double>(loaded.engine->step_read_bytes());
  speeds.gflop_s = static_cast<double>(loaded.engine->model().flops_per_token()) * row.mean() / 1e9;
  if (row.generation) speeds.gb_s = bytes * row.mean() / 1e9;
  if (peaks.dot_gops.all_threads == 0) return speeds;  // not measured on a GPU
  const double memory =
      row.generation ? speeds.gb_s / peaks.read_rate(static_cast<size_t>(bytes)).all_threads : 0;
  speeds.share = std::max(memory, speeds.gflop_s / peaks.dot_gops.all_threads);
  return speeds;
}

nlohmann::ordered_json to_json(const Row& row, LoadedModel& loaded, const cpu::Peaks& peaks) {
  const Speeds speeds = speeds_of(row, loaded, peaks);
  return {{"model", loaded.name},
          {"test", row.test},
          {"tok_s", row.mean()},
          {"tok_s_sd", row.deviation()},
          {"samples_tok_s", row.tok_s},
          {"device", loaded.engine->devices().description()},
          {"threads", loaded.engine->devices().first().threads()},
          {"gb_s", speeds.gb_s},
          {"gflop_s", speeds.gflop_s},
          {"share_of_peak", speeds.share},
          {"barrier_us", peaks.barrier_us}};
}

template <typename IsIt>
bool wants_drafter(const BenchFlags& flags, IsIt is_it) {
  if (std::any_of(flags.drafters.begin(), flags.drafters.end(), is_it)) return true;
  for (const std::string& spec : flags.speculation.specs) {
    std::istringstream sources(spec.substr(0, spec.find('/')));
    for (std::string source; std::getline(sources, source, '+');)
      if (is_it(source)) return true;
  }
  return false;
}

Status write_random(const Result<GgufWriter>& writer, const std::string& path) {
  return writer.ok() ? writer->write_file(path) : writer.error();
}

Status make_shape(BenchFlags& flags) {
  BRAID_TRY(shape_alone(flags.shape, flags.model));
  const RandomShape* shape = find_random_shape(flags.shape);
  if (shape == nullptr) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--shape {} is not one of {}", flags.shape, random_shape_names())};
  }
  std::filesystem::path path = flags.save;
  if (path.empty()) {
    std::string folder = (std::filesystem::temp_directory_path() / "braid-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr)
      return Error{ErrorKind::io,
                   fmt::format("{}: cannot be created: {}", folder, std::strerror(errno))};
    flags.made_folder = folder;
    path = std::filesystem::path(folder) / (flags.shape + ".gguf");
  } else if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("--save {}: is not a regular file, so it could not be loaded", flags.save)};
  }
  ProgressLine progress("writing random weights");
  RandomOptions options;
  options.mix = flags.mix;
  options.with_mtp = wants_drafter(flags, [](const std::string& name) { return name == "mtp"; });
  options.progress = [&](std::string_view name, uint64_t done, uint64_t total) {
    progress.update(done, total, name);
  };
  flags.model.model = path.string();
  BRAID_TRY(write_random(random_model(*shape, options), flags.model.model));
  const auto has_file = [](const std::string& name) { return name != "mtp"; };
  const auto named = std::find_if(flags.drafters.begin(), flags.drafters.end(), has_file);
  const bool runs = wants_drafter(flags, [](const std::string& name) { return name == "dflash"; });
  if (named == flags.drafters.end() && (!runs || !flags.model.draft_model.empty())) return {};
  const std::string kind = named == flags.drafters.end() ? "dflash" : *named;
  path.replace_extension("." + kind + ".gguf");
  if (flags.speculation.any() || flags.model.spec_type != "none")
    flags.model.draft_model = path.string();
  return write_random(random_drafter(*shape, kind, options), path.string());
}

void remove_shape(const BenchFlags& flags) {
  std::error_code ignored;
  if (!flags.made_folder.empty()) std::filesystem::remove_all(flags.made_folder, ignored);
}

std::string describe(const cpu::Peaks& peaks, int threads) {
  std::string text = fmt::format(
      "this machine, {} threads: clock {:.2f} GHz, f32 {:.0f} GFLOP/s, int8 {:.0f} GOP/s ({}), "
      "parallel region {:.2f} us, barrier {:.2f} us\nreads in GB/s, one thread / all threads:",
      threads, peaks.clock_ghz, peaks.fma_gflops.all_threads, peaks.dot_gops.all_threads,
      peaks.dot_name, peaks.region_us, peaks.barrier_us);
  for (const auto& read : peaks.reads) {
    text += fmt::format("  {} MiB {:.0f} / {:.0f}", read.size_bytes >> 20, read.gb_per_s.one_thread,
                        read.gb_per_s.all_threads);
  }
  return text;
}

std::optional<int> run_special(BenchFlags& flags) {
  const bool json = flags.output == "json";
  if (flags.speculation.any()) {
    SpeculationFlags& speculation = flags.speculation;
    if (!flags.serving.batches.empty()) speculation.batches = flags.serving.batches;
    if (!flags.prompts.empty()) speculation.prompt_tokens = std::max(1, flags.prompts[0]);
    if (!flags.generations.empty()) speculation.generate = std::max(2, flags.generations[0]);
    speculation.repetitions = flags.repetitions;
    speculation.json = json;
    return run_speculation_bench(flags.model, speculation);
  }
  if (flags.profile) {
    ProfileFlags profile;
    if (!flags.serving.batches.empty()) profile.sequences = flags.serving.batches[0];
    if (!flags.prompts.empty()) profile.prompt = std::max(1, flags.prompts[0]);
    profile.drafts = flags.drafts;
    profile.tree = flags.tree;
    profile.fill = flags.fill;
    profile.json = json;
    return run_profile_bench(flags.model, profile);
  }
  if (!flags.placement.empty()) {
    PlacementFlags placement;
    placement.slots = flags.placement;
    placement.prompts = flags.prompts;
    placement.generations = flags.generations;
    placement.batches = flags.serving.batches;
    placement.json = json;
    return run_placement_bench(flags.model, placement);
  }
  if (!flags.serving.any()) return std::nullopt;
  flags.serving.prompts = flags.prompts;
  flags.serving.generations = flags.generations;
  flags.serving.repetitions = flags.repetitions;
  flags.serving.fill = flags.fill;
  flags.serving.json = json;
  return run_serving_bench(flags.model, flags.serving);
}

Status check_fill(const BenchFlags& flags) {
  if (flags.fill % kBlockTokens != 0) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--fill {}: the cache is copied in blocks of {} tokens", flags.fill,
                             kBlockTokens)};
  }
  const ServingBenchFlags& s = flags.serving;
  const bool others =
      s.shared_prefix > 0 || s.interference > 0 || s.conversation > 0 || flags.fit > 0;
  if (flags.fill == 0 || (!others && !flags.speculation.any())) return {};
  return Error{ErrorKind::invalid_argument,
               "--fill is for -d, --batch and --profile; other benchmarks need computed prompts"};
}

int run_bench(BenchFlags flags) {
  if (const Status filling = check_fill(flags); !filling.ok()) return fail(filling.error());
  if (!flags.shape.empty()) {
    if (const Status made = make_shape(flags); !made.ok()) {
      remove_shape(flags);
      return fail(made.error());
    }
  }
  // -md alone turns speculation on.
  if (!flags.model.draft_model.empty() && flags.model.spec_type == "none")
    flags.model.spec_type = "dflash";
  if (const auto code = run_special(flags)) {
    remove_shape(flags);
    return *code;
  }
  if (flags.model.context == 0) {
    int longest = flags.fit;
    for (int p : flags.prompts) longest = std::max(longest, p);
    for (int n : flags.generations)
      longest = std::max(longest, n + flags.depth + 1 + untimed_tokens(flags));
    flags.model.context = longest + 32;
  }
  auto loaded = load_model(flags.model);
  // The mapping outlives the file's name.
  remove_shape(flags);
  if (!loaded.ok()) return fail(loaded.error());

  // A GPU's peaks are measured by bench/gpu_bench.cpp.
  cpu::Peaks peaks;
  const bool json = flags.output == "json";
  if (!loaded->engine->devices().traits().own_memory) {
    ThreadPool pool(loaded->engine->devices().first().threads());
    peaks = cpu::measure_peaks(pool);
    const std::string machine =
        describe(peaks, loaded->engine->devices().first().threads()) + "\n\n";
    json ? write_status(machine) : write_result(machine);
  }
  if (!json) {
    print_result(
        "| model | device | test | tok/s | GB/s | GFLOP/s | of peak |\n"
        "|---|---|---|---|---|---|---|\n");
  }
  const InterruptScope interrupt;
  loaded->engine->fill_prompts_from(flags.fill);
  Bench bench(*loaded, flags);
  auto rows = nlohmann::ordered_json::array();
  auto report = [&](int tokens, bool generation) -> Status {
    if (tokens <= 0) return {};
    BRAID_ASSIGN(const Row row, bench.measure(tokens, generation));
    const Speeds speeds = speeds_of(row, *loaded, peaks);
    rows.push_back(to_json(row, *loaded, peaks));
    if (json) return {};
    print_result("| {} | {} | {} | {:.1f} ± {:.1f} | {} | {:.1f} | {} |\n", loaded->name,
                 loaded->engine->devices().description(), row.test, row.mean(), row.deviation(),
                 generation ? fmt::format("{:.1f}", speeds.gb_s) : "", speeds.gflop_s,
                 speeds.share > 0 ? fmt::format("{:.0f} %", 100 * speeds.share) : "");
    return result_status();
  };
  for (int tokens : flags.prompts) {
    if (const auto status = report(tokens, false); !status.ok()) return fail(status.error());
  }
  for (int tokens : flags.generations) {
    if (const auto status = report(tokens, true); !status.ok()) return fail(status.error());
  }
  if (flags.fit > 0) {
    const auto line = bench.fit(flags.fit);
    if (!line.ok()) return fail(line.error());
    json ? print_status("\n{}\n", *line) : print_result("\n{}\n", *line);
  }
  if (flags.model.prefill_sparse > 0) {
    const std::string line = "\n" + sparse_share(loaded->engine->sparse_counts()) + "\n";
    json ? write_status(line) : write_result(line);
  }
  if (json) print_result("{}\n", rows.dump(2));
  return 0;
}

void add_row_options(CLI::App& command, BenchFlags& flags) {
  constexpr const char* kGroup = "Measurement";
  command.add_option("-p,--n-prompt", flags.prompts, "prompt lengths, comma-separated; 0: none")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command.add_option("-n,--n-gen", flags.generations, "answer lengths, comma-separated; 0: none")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command.add_option("-d,--depth", flags.depth, "tokens of the prompt before each answer of -n")
      ->group(kGroup)
      ->check(CLI::Range(0, 1 << 30));
  command
      .add_option("--fill", flags.fill,
                  "with -d, --batch or --profile: compute the first N prompt tokens and the last "
                  "step only. Other KV blocks are copies, so only the speed of decoding counts. A "
                  "multiple of 32; 0: compute all")
      ->group(kGroup)
      ->check(CLI::Range(0, 1 << 30));
  command.add_option("-r,--repetitions", flags.repetitions, "timed runs of each row")
      ->group(kGroup)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--fit", flags.fit, "fit the cost per token over a prompt of N tokens")
      ->group(kGroup)
      ->check(CLI::Range(0, 1 << 30));
  command.add_option("-o,--output", flags.output, "format of the results")
      ->group(kGroup)
      ->check(CLI::IsMember({"md", "json"}))
      ->capture_default_str();
}

// Returns --profile.
CLI::Option* add_profile_options(CLI::App& command, BenchFlags& flags) {
  constexpr const char* kGroup = "Profile";
  auto* profile = command.add_flag(
      "--profile", flags.profile,
      "GPU only: time every op of a decode step of --batch sequences after -p tokens, and of a "
      "prompt step");
  auto* drafts = command.add_option(
      "--drafts", flags.drafts,
      "with --profile: also a step that verifies N wrong speculative tokens per sequence");
  drafts->group(kGroup)->check(CLI::Range(0, 64))->needs(profile);
  command.add_flag("--tree", flags.tree, "with --drafts: they form a tree, not a chain")
      ->group(kGroup)
      ->needs(drafts);
  profile->group(kGroup);
  return profile;
}

CLI::Option* add_placement_option(CLI::App& command, BenchFlags& flags) {
  return command
      .add_option("--placement", flags.placement,
                  "numbers of expert slots to compare, comma-separated; 0: all experts on the GPU, "
                  "which comes first. Decoding (-n, --batch) follows a trace with the locality of "
                  "text, then a uniform one; prompts (-p) follow the router")
      ->group("Measurement")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024));
}

// Returns the options that each select a bench.
std::vector<CLI::Option*> add_serving_options(CLI::App& command, ServingBenchFlags& flags) {
  constexpr const char* kGroup = "Several requests";
  command
      .add_option("--batch", flags.batches,
                  "numbers of sequences that decode together, comma-separated. Each has a prompt "
                  "of -p tokens and generates -n")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  auto* shared_prefix =
      command.add_option("--shared-prefix", flags.shared_prefix,
                         "--requests prompts arrive at once; their first N tokens are the same");
  shared_prefix->group(kGroup)->check(CLI::Range(0, 1 << 30));
  command.add_option("--requests", flags.requests, "with --shared-prefix: number of prompts")
      ->group(kGroup)
      ->check(CLI::Range(1, 100000))
      ->capture_default_str()
      ->needs(shared_prefix);
  command
      .add_option("--tail", flags.tail,
                  "with --shared-prefix: tokens of each prompt after the shared ones")
      ->group(kGroup)
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str()
      ->needs(shared_prefix);
  auto* interference =
      command.add_option("--interference", flags.interference,
                         "a prompt of N tokens arrives while --users sequences decode");
  interference->group(kGroup)->check(CLI::Range(0, 1 << 30));
  command.add_option("--users", flags.users, "with --interference: number of decoding sequences")
      ->group(kGroup)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->needs(interference);
  auto* conversation = command.add_option("--conversation", flags.conversation,
                                          "a conversation grows to N tokens in --turns turns");
  conversation->group(kGroup)->check(CLI::Range(0, 1 << 30));
  command.add_option("--turns", flags.turns, "with --conversation: number of turns")
      ->group(kGroup)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->needs(conversation);
  return {shared_prefix, interference, conversation};
}

void add_shape_options(CLI::App& command, BenchFlags& flags) {
  constexpr const char* kGroup = "Random weights";
  auto* shape = command.add_option(
      "--shape", flags.shape,
      "random weights in the shape of a published model, instead of -m: " + random_shape_names());
  shape->group(kGroup)->type_name("NAME");
  command
      .add_option("--mix", flags.mix,
                  "with --shape: the quantization, a name of `braid quantize` or a type such as "
                  "MXFP4")
      ->group(kGroup)
      ->type_name("NAME")
      ->capture_default_str()
      ->needs(shape);
  command
      .add_option("--drafter", flags.drafters,
                  "with --shape: drafters with random weights. mtp: a head of the model; the "
                  "others: one file next to that of --save, such as FILE.dflash2.gguf")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::IsMember({"mtp", "dflash", "dflash2", "dspark"}))
      ->needs(shape);
  command
      .add_option("--save", flags.save,
                  "with --shape: keep the model in this file, for other engines")
      ->group(kGroup)
      ->type_name("FILE")
      ->needs(shape);
}

}  // namespace

void add_bench(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  auto* command = app.add_subcommand("bench", "Measure prompt and generation speed");
  flags->model.spec_type = "none";  // plain decoding by default
  add_model_options(*command, flags->model,
                    kModelPart | kCachePart | kMemoryPart | kParallelPart | kSchedulePart |
                        kDrafterPart | kSpeculationPart);
  add_row_options(*command, *flags);
  std::vector<CLI::Option*> kinds = add_serving_options(*command, flags->serving);
  kinds.push_back(add_placement_option(*command, *flags));
  kinds.push_back(add_profile_options(*command, *flags));
  kinds.push_back(add_speculation_bench_options(*command, flags->speculation));
  for (CLI::Option* a : kinds)
    for (CLI::Option* b : kinds)
      if (a != b) a->excludes(b);
  add_shape_options(*command, *flags);
  command->callback([flags, exit_code] { *exit_code = run_bench(*flags); });
}

}  // namespace braid::cli
