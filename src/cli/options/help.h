// help.h -- --help and --help-all: options in groups, at most 80 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace braid::cli {

std::string command_help(const CLI::App& command, bool all);
std::string program_help(const CLI::App& app);

// Breaks lines at `width` columns and indents all but the first. Line breaks of `text` stay; lines
// that begin with a blank are not broken.
std::string wrapped(std::string_view text, size_t width, size_t indent);

}  // namespace braid::cli
