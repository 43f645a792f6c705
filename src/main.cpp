// main.cpp -- the braid program: one command line, one exit code.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/terminal/man.h"
#include "cli/terminal/terminal.h"

namespace {

// Short options of more than one letter, which llama.cpp users type and CLI11 does not know.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAliases{{{"-ub", "--ubatch-size"},
                                                                                 {"-ctk", "--cache-type-k"},
                                                                                 {"-ctv", "--cache-type-v"},
                                                                                 {"-sys", "--system"},
                                                                                 {"-np", "--parallel"},
                                                                                 {"-md", "--model-draft"}}};

// The arguments after the program's name, aliases replaced, in the order CLI11 takes them (last first).
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> all;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = argv[i];
    for (const auto& [alias, name] : kAliases) {
      if (argument == alias) argument = name;
    }
    all.push_back(std::move(argument));
  }
  return all;
}

// Of an option with one value, or none, the last one counts; lists grow.
void let_last_win(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    let_last_win(*command);  // groups of options are such, too
    for (CLI::Option* option : command->get_options()) {
      if (!option->get_positional() && option->get_items_expected_max() <= 1 &&
          option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

// The command's exit code, or that of a result that could not be written.
int with_results_written(int exit_code) {
  const braid::Status written = braid::cli::result_status();
  return exit_code != 0 || written.ok() ? exit_code : braid::cli::fail(written.error());
}

}  // namespace

int main(int argc, char** argv) {
  braid::cli::open_standard_streams();
  braid::init_log();
  CLI::App app("braid runs Qwen3.5/3.6 hybrid language models from GGUF files.", "braid");
  app.set_version_flag("--version", "braid " BRAID_VERSION);
  app.require_subcommand(1);
  app.footer("Try: braid run -p \"Who are you?\"     Help for a command: braid run --help");

  int exit_code = 0;
  braid::cli::add_run(app, &exit_code);
  braid::cli::add_serve(app, &exit_code);
  braid::cli::add_bench(app, &exit_code);
  braid::cli::add_ppl(app, &exit_code);
  braid::cli::add_kv_report(app, &exit_code);
  braid::cli::add_inspect(app, &exit_code);
  braid::cli::add_quantize(app, &exit_code);
  braid::cli::add_completion(app, &exit_code);
  CLI::App* docs = app.add_subcommand("docs", "Pages that the program writes about itself")->group("");
  braid::cli::add_man(*docs->require_subcommand(1), app, BRAID_VERSION, &exit_code);
  let_last_win(app);
  try {
    app.parse(arguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      exit_code = app.exit(error, text, text);
      braid::cli::write_result(text.str());
      return with_results_written(exit_code);
    }
    // The message repeats what was typed, and a prompt that lost its -p may be a book.
    std::string message = error.what();
    if (size_t most = 300; message.size() > most) {
      while (most > 0 && (static_cast<unsigned char>(message[most]) & 0xC0) == 0x80) --most;
      message.replace(most, std::string::npos, "...");
    }
    braid::cli::print_error(message + " (see braid --help)");
    return 2;
  } catch (const std::exception& error) {
    braid::cli::print_error(error.what());
    return 2;
  }
  return with_results_written(exit_code);
}
