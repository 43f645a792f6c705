// quantize.cpp -- `braid quantize IN OUT TYPE`: a smaller file of the same model.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>

#include "base/threads.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "engine/memory_plan.h"
#include "gguf/gguf.h"
#include "gguf/quantize.h"

namespace braid::cli {

namespace {

struct QuantizeFlags {
  std::string in;
  std::string out;
  std::string type;
  bool drop_mtp = false;
  int threads = 0;
};

int run_quantize(const QuantizeFlags& flags) {
  const QuantizeMix* mix = find_quantize_mix(flags.type);
  if (mix == nullptr) {
    print_error(fmt::format("\"{}\" is not a type that braid writes; choose one of {}", flags.type,
                            quantize_mix_names()));
    return 2;
  }
  const auto file = GgufFile::open(flags.in);
  if (!file.ok()) {
    print_error(file.error().message);
    return 2;
  }
  const InterruptScope interrupt;
  const double start_ms = now_ms();
  ProgressLine progress("quantizing");
  const QuantizeOptions options{flags.drop_mtp, flags.threads > 0 ? flags.threads : usable_cores()};
  const auto report =
      quantize_file(*file, flags.out, *mix, options, [&](const QuantizeProgress& step) {
        progress.update(step.done_bytes, step.total_bytes, step.name);
        return !interrupted();
      });
  progress.clear();
  if (!report.ok()) {
    print_error(report.error().message);
    return report.error().kind == ErrorKind::cancelled ? 130 : 2;
  }
  print_status("{}: {} tensors, {} -> {}{} in {:.1f} s\n", flags.out, report->tensors,
               format_bytes(report->source_bytes), format_bytes(report->result_bytes),
               report->dropped > 0 ? fmt::format(", {} tensors left out", report->dropped) : "",
               (now_ms() - start_ms) / 1000.0);
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<QuantizeFlags>();
  auto* command = app.add_subcommand("quantize", "Write a model file with smaller weights");
  command->add_option("in", flags->in, "GGUF file of any type that braid reads")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("out", flags->out,
                   "file to write, replaced when complete; a FIFO or a device is written directly")
      ->type_name("FILE")
      ->required();
  command->add_option("type", flags->type, "one of " + quantize_mix_names())
      ->type_name("TYPE")
      ->required();
  command
      ->add_flag("--drop-mtp", flags->drop_mtp,
                 "leave out the multi-token-prediction head, for engines that do not support it")
      ->group("Quantize");
  command->add_option("-t,--threads", flags->threads, "CPU threads (default: physical cores)")
      ->group("Quantize")
      ->envname("BRAID_THREADS");
  command->callback([flags, exit_code] { *exit_code = run_quantize(*flags); });
}

}  // namespace braid::cli
