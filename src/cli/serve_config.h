// serve_config.h -- options of `braid serve` from a file, and checks of options without effect.
#pragma once

#include <set>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace braid::cli {

// Options of a file override the environment; the command line overrides both. CLI11 reads such
// files only for a whole program. Errors: those of the file, unknown names, wrong values.
Status read_config(CLI::App& command, const std::string& path);

// Long names ("--host") of options with a value from any source, and of flags that are on.
std::set<std::string> given_options(const CLI::App& command);

// An option without effect is an error, since the user relies on it.
Status check_effects(const std::set<std::string>& given, bool has_keys);

// For CLI11's check(): empty, or the error.
std::string check_origin(const std::string& text);
std::string check_host_name(const std::string& text);

}  // namespace braid::cli
