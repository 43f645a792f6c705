// serve_config.h -- options of `braid serve` from a file, and options that would do nothing.
#pragma once

#include <set>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace braid::cli {

// The options of a file go before those of the environment and behind those of the command line. (CLI11
// reads such files for a whole program, not for one of its commands.) Errors: the file's, an unknown name, a
// wrong value.
Status read_config(CLI::App& command, const std::string& path);

// The long names ("--host") of all options that have a value, wherever it came from, and of flags that are on.
std::set<std::string> given_options(const CLI::App& command);

// An option without effect is an error: whoever gave it believes that something holds which does not.
Status check_effects(const std::set<std::string>& given, bool has_keys);

// For CLI11's check(): empty, or what is wrong.
std::string check_origin(const std::string& text);
std::string check_host_name(const std::string& text);

}  // namespace braid::cli
