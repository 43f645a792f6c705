// main.cpp -- the braid program: one command line, one exit code.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/options/arguments.h"
#include "cli/options/help.h"
#include "cli/terminal.h"

namespace {

using namespace braid;

int with_results_written(int exit_code) {
  const Status written = cli::result_status();
  return exit_code != 0 || written.ok() ? exit_code : cli::fail(written.error());
}

// Messages repeat the input, which may be a long prompt without -p.
std::string shortened(std::string message) {
  if (size_t most = 300; message.size() > most) {
    while (most > 0 && (static_cast<unsigned char>(message[most]) & 0xC0) == 0x80) --most;
    message.replace(most, std::string::npos, "...");
  }
  return message;
}

// CLI11's words for a wrong value, as a sentence.
std::string plain(std::string message) {
  constexpr std::string_view kConvert = "Could not convert: ";
  if (message.starts_with(kConvert)) {
    message.erase(0, kConvert.size());
    const size_t equals = message.find(" = ");
    if (equals != message.npos) message.replace(equals, 3, ": ");
    return message + " is not a number";
  }
  const size_t choices = message.find(" not in {");
  if (choices != message.npos && message.ends_with("}")) {
    message.pop_back();
    message.replace(choices, 9, " is not one of ");
  }
  return message;
}

int run(CLI::App& app, std::vector<std::string> typed, const int* exit_code) {
  if (typed.empty()) typed = {"--help"};
  if (typed.front() == "help") {
    typed.erase(typed.begin());
    typed.emplace_back("--help");
  }
  auto arguments = cli::read_arguments(app, typed);
  if (!arguments.ok()) {
    cli::print_error(shortened(arguments.error().message));
    return 2;
  }
  for (const std::string& note : arguments->notes) cli::print_note(note);
  std::reverse(arguments->words.begin(), arguments->words.end());  // as CLI11 expects them
  try {
    app.parse(std::move(arguments->words));
  } catch (const CLI::ExtrasError& error) {
    cli::print_error(shortened(error.what()) +
                     (typed.front() == "run" ? " (a message is given with -p)" : ""));
    return 2;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      const int code = app.exit(error, text, text);
      cli::write_result(text.str());
      return with_results_written(code);
    }
    cli::print_error(shortened(plain(error.what())));
    return 2;
  } catch (const std::exception& error) {
    cli::print_error(error.what());
    return 2;
  }
  return with_results_written(*exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  cli::open_standard_streams();
  init_log();
  int exit_code = 0;
  const auto app = cli::make_program(&exit_code);
  return run(*app, {argv + 1, argv + argc}, &exit_code);
}
