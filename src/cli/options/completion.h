// completion.h -- the scripts that complete braid's command line in a shell.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace braid::cli {

// `shell`: bash, zsh or fish. `app` with all its subcommands; nothing of it is run.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace braid::cli
