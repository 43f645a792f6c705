// man.h -- the program's manual pages in roff, generated from its own options.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace braid::cli {

// The page of command `name`, or of the program if empty. An unknown name gives an empty text.
// `app` needs all its commands; none of them runs. Hidden commands and options are left out.
std::string man_page(const CLI::App& app, const std::string& name, const std::string& version);

// Adds `man [COMMAND]` to `parent`. Both `parent` and `app` must require one subcommand.
void add_man(CLI::App& parent, const CLI::App& app, const std::string& version, int* exit_code);

}  // namespace braid::cli
