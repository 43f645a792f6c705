// option_group.h -- registers options under one heading of the help text.
#pragma once

#include <CLI/CLI.hpp>
#include <cctype>
#include <string>
#include <utility>

namespace braid::cli {

// Each option gets an environment variable after its first long name: --ctx-size, BRAID_CTX_SIZE.
class OptionGroup {
 public:
  OptionGroup(CLI::App& command, std::string name) : command_(command), name_(std::move(name)) {}

  template <typename T>
  CLI::Option* add(const std::string& names, T& value, const std::string& help) {
    return command_.add_option(names, value, help)->group(name_)->envname(variable(names));
  }
  CLI::Option* flag(const std::string& names, bool& value, const std::string& help) {
    return command_.add_flag(names, value, help)->group(name_)->envname(variable(names));
  }

 private:
  static std::string variable(const std::string& names) {
    const size_t begin = names.find("--");
    std::string out = "BRAID_";
    for (size_t i = begin + 2; i < names.size() && names[i] != ','; ++i)
      out += names[i] == '-'
                 ? '_'
                 : static_cast<char>(std::toupper(static_cast<unsigned char>(names[i])));
    return out;
  }

  CLI::App& command_;
  std::string name_;
};

}  // namespace braid::cli
