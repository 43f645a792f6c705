// help.h -- --help and --help-all: options in groups, at most 80 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace braid::cli {

// Of one command: the common options, or all.
std::string command_help(const CLI::App& command, bool all);
// Of the program: what its commands do.
std::string program_help(const CLI::App& app);

// `text` in lines of at most `width` columns, each but the first after `indent` blanks. Line breaks of the text
// stay, and a line that begins with a blank is not broken.
std::string wrapped(std::string_view text, size_t width, size_t indent);

}  // namespace braid::cli
