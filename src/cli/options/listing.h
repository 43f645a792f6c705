// listing.h -- a command's options for help, manual pages, completion and docs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace braid::cli {

struct ListedOption {
  // "-m", "-ctk", "--model": short ones first; empty: an operand only.
  std::vector<std::string> names;
  std::string operand;  // its name if it can stand without an option's name; else empty
  bool required = false;
  std::string value;                 // "FILE", "N", "{auto,on,off}"; empty: a flag
  std::vector<std::string> choices;  // if the value is one of a few words
  std::string help;                  // without default, range and environment name
  std::string range;                 // "0 to 65535"; empty: any
  std::string fallback;              // the default; empty: none to show
  std::string environment;           // "BRAID_PORT"; empty: none
  std::string group;                 // "Model"
  bool common = false;               // shown by --help; the others by --help-all
};

struct ListedCommand {
  std::string name, help, footer;
  std::vector<ListedOption> options;  // in groups, operands first
};

// Short names of llama.cpp with several letters, which CLI11 cannot read.
struct ShortName {
  std::string_view name, option;
};
inline constexpr ShortName kShortNames[] = {
    {"-ub", "--ubatch-size"},   {"-ngl", "--gpu-layers"}, {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"}, {"-sys", "--system"},     {"-np", "--parallel"},
    {"-md", "--model-draft"},   {"-sm", "--split"},       {"-ts", "--split-ratio"},
};

ListedCommand list_command(const CLI::App& command);
// All commands in order of registration, without hidden ones.
std::vector<ListedCommand> list_commands(const CLI::App& app);

}  // namespace braid::cli
