// completion.h -- shell scripts that complete subcommands, options, choices and file names.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace braid::cli {

// `shell`: bash, zsh or fish. `app` needs all its subcommands; none of them runs.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace braid::cli
