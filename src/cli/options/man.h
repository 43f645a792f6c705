// man.h -- the program's manual pages, in roff, written from its own command line.
//
// Everything is read from the options themselves, so no page can lack one.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace braid::cli {

// The page of the command `name`, or of the program if `name` is empty; empty if there is no such
// command. `app` is the program with all its commands; nothing of it is run. Commands and options
// that --help hides are left out.
std::string man_page(const CLI::App& app, const std::string& name, const std::string& version);

// Adds `man [COMMAND]` to `parent`, which prints such a page of `app`. Both must require one subcommand.
void add_man(CLI::App& parent, const CLI::App& app, const std::string& version, int* exit_code);

}  // namespace braid::cli
