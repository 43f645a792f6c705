// main.cpp -- the braid program: one command line, one exit code.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/terminal.h"

int main(int argc, char** argv) {
  braid::init_log();
  CLI::App app("braid runs Qwen3.5/3.6 hybrid language models from GGUF files.", "braid");
  app.set_version_flag("--version", "braid " BRAID_VERSION);
  app.require_subcommand(1);
  app.footer("Try: braid run -p \"Who are you?\"     Help for a command: braid run --help");

  int exit_code = 0;
  braid::cli::add_run(app, &exit_code);
  braid::cli::add_bench(app, &exit_code);
  braid::cli::add_ppl(app, &exit_code);
  braid::cli::add_inspect(app, &exit_code);
  braid::cli::add_quantize(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    braid::cli::print_error(std::string(error.what()) + " (see braid --help)");
    return 2;
  } catch (const std::exception& error) {
    braid::cli::print_error(error.what());
    return 2;
  }
  return exit_code;
}
