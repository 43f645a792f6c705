// program.cpp -- builds the command line of all commands.

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/options/help.h"
#include "cli/options/version.h"

namespace braid::cli {
namespace {

// A repeated option keeps its last value. Lists take one value each, so an operand may follow.
void let_last_win(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 1) option->allow_extra_args(false);
      if (option->get_items_expected_max() <= 1 &&
          option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

}  // namespace

std::unique_ptr<CLI::App> make_program(int* exit_code) {
  auto app = std::make_unique<CLI::App>(
      "braid runs Qwen3.5, 3.6 and 3.8 models and their relatives from GGUF files, on CPUs and on "
      "an NVIDIA "
      "GPU, in the terminal and as a server for OpenAI and Anthropic clients.",
      "braid");
  app->formatter_fn([](const CLI::App* command, std::string, CLI::AppFormatMode mode) {
    return command->get_parent() == nullptr
               ? program_help(*command)
               : command_help(*command, mode == CLI::AppFormatMode::All);
  });
  app->set_help_flag("-h,--help", "the common options");
  app->set_help_all_flag("--help-all", "all options");
  app->set_version_flag("--version", version_text, "version, commit and kernels, for bug reports");
  app->require_subcommand(1);
  app->footer(
      "  braid run                     chat with the toy model inside braid\n"
      "  braid run -m model.gguf       chat with a real one\n"
      "  braid serve -m model.gguf     serve it, with a chat page\n"
      "Options of a command: braid run --help. Version and kernels: braid --version.");
  add_run(*app, exit_code);
  add_serve(*app, exit_code);
  add_proxy(*app, exit_code);
  add_plan(*app, exit_code);
  add_placement(*app, exit_code);
  add_inspect(*app, exit_code);
  add_quantize(*app, exit_code);
  add_compress(*app, exit_code);
  add_bench(*app, exit_code);
  add_ppl(*app, exit_code);
  add_kv_report(*app, exit_code);
  add_completion(*app, exit_code);
  add_docs(*app, exit_code);
  let_last_win(*app);
  return app;
}

}  // namespace braid::cli
