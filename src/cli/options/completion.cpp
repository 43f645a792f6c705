// completion.cpp -- `braid completion bash|zsh|fish`: see completion.h.
// A number completes to nothing, a choice to its words, any other value to file names.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options/completion.h"
#include "cli/options/listing.h"
#include "cli/terminal.h"

namespace braid::cli {
namespace {

enum class Takes { nothing, word, number, file };

struct Described {
  std::vector<std::string> names;  // with their dashes; empty: an operand
  std::string help;
  Takes takes = Takes::nothing;
  std::vector<std::string> words;
};

Described describe(const ListedOption& option) {
  Described out{option.names, option.help.substr(0, option.help.find('\n')), Takes::nothing,
                option.choices};
  out.takes = !option.choices.empty() ? Takes::word
              : option.value.empty()  ? Takes::nothing
              : option.value == "N"   ? Takes::number
                                      : Takes::file;
  return out;
}

struct Command {
  std::string name, help;
  std::vector<Described> options;  // operands included
};

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> out;
  for (const ListedCommand& listed : list_commands(app)) {
    Command one{listed.name, listed.help, {}};
    for (const ListedOption& option : listed.options) one.options.push_back(describe(option));
    out.push_back(std::move(one));
  }
  return out;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> names_of(const std::vector<Command>& commands) {
  std::vector<std::string> out;
  for (const Command& command : commands) out.push_back(command.name);
  return out;
}

// Single-quoted. A quote inside closes, escapes and reopens the quotes; fish escapes it.
std::string quoted(const std::string& text, bool fish = false) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += fish ? "\\'" : "'\\''";
    } else {
      if (fish && c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "'";
}

std::string bash_script(const std::vector<Command>& commands) {
  std::string out =
      "# bash completion for braid: source <(braid completion bash)\n"
      "_braid() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n";
  out += fmt::format(
      "    '')\n      COMPREPLY=($(compgen -W '{} --help --version' -- \"$cur\"))\n      return "
      ";;\n",
      joined(names_of(commands), " "));
  for (const Command& command : commands) {
    std::vector<std::string> all;
    out += fmt::format("    {})\n      case $prev in\n", command.name);
    std::vector<std::string> operands;
    bool files = false;
    for (const Described& option : command.options) {
      all.insert(all.end(), option.names.begin(), option.names.end());
      if (option.names.empty()) {
        operands.insert(operands.end(), option.words.begin(), option.words.end());
        files |= option.takes == Takes::file;
        continue;
      }
      const std::string pattern = joined(option.names, "|");
      if (option.takes == Takes::word) {
        out += fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n",
                           pattern, joined(option.words, " "));
      } else if (option.takes == Takes::number) {
        out += fmt::format("        {}) compopt +o default 2>/dev/null; return ;;\n", pattern);
      } else if (option.takes == Takes::file) {
        out += fmt::format("        {}) return ;;\n", pattern);
      }
    }
    out += fmt::format(
        "      esac\n      [[ $cur != -* ]] || {{ COMPREPLY=($(compgen -W '{}' -- \"$cur\")); "
        "return; }}\n",
        joined(all, " "));
    if (!operands.empty()) {
      out +=
          fmt::format("      COMPREPLY=($(compgen -W '{}' -- \"$cur\"))\n", joined(operands, " "));
    }
    if (!files) out += "      compopt +o default 2>/dev/null\n";
    out += "      return ;;\n";
  }
  // bash completes file names if nothing matches.
  return out + "  esac\n}\ncomplete -o default -F _braid braid\n";
}

// Brackets and colons have a meaning for _arguments.
std::string zsh_help(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const Described& option) {
  switch (option.takes) {
    case Takes::word:
      return ":value:(" + joined(option.words, " ") + ")";
    case Takes::number:
      return ":number: ";
    case Takes::file:
      return ":value:_files";
    default:
      return "";
  }
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string out =
      "#compdef braid\n# zsh completion for braid: a file _braid in a directory of $fpath, or "
      "source it\n"
      "_braid() {\n  local -a commands\n  commands=(\n";
  for (const Command& command : commands) {
    out += "    " + quoted(command.name + ":" + zsh_help(command.help)) + "\n";
  }
  out +=
      "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n";
  for (const Command& command : commands) {
    out += fmt::format("    {})\n      _arguments -s", command.name);
    for (const Described& option : command.options) {
      out += " \\\n        ";
      if (option.names.empty()) {
        out += quoted("*" + zsh_value(option));
        continue;
      }
      // Each name is an entry with *, since some options may repeat.
      for (size_t i = 0; i < option.names.size(); ++i) {
        if (i > 0) out += " ";
        out +=
            quoted("*" + option.names[i] + "[" + zsh_help(option.help) + "]" + zsh_value(option));
      }
    }
    out += " ;;\n";
  }
  return out +
         "  esac\n}\nif [ \"$funcstack[1]\" = _braid ]; then _braid \"$@\"; else compdef _braid "
         "braid; fi\n";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string out =
      "# fish completion for braid: braid completion fish | source\ncomplete -c braid -f\n";
  const std::string all = joined(names_of(commands), " ");
  for (const Command& command : commands) {
    out += fmt::format("complete -c braid -n 'not __fish_seen_subcommand_from {}' -a {} -d {}\n",
                       all, command.name, quoted(command.help, true));
    const std::string here =
        fmt::format("complete -c braid -n '__fish_seen_subcommand_from {}'", command.name);
    for (const Described& option : command.options) {
      out += here;
      for (const std::string& name : option.names) {
        out += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (option.takes == Takes::word) {
        out +=
            (option.names.empty() ? " -a " : " -x -a ") + quoted(joined(option.words, " "), true);
      }
      if (option.takes == Takes::number && !option.names.empty()) out += " -x";
      if (option.takes == Takes::file) out += option.names.empty() ? " -F" : " -r -F";
      out += " -d " + quoted(option.help, true) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const auto commands = commands_of(app);
  return shell == "zsh"    ? zsh_script(commands)
         : shell == "fish" ? fish_script(commands)
                           : bash_script(commands);
}

void add_completion(CLI::App& app, int* exit_code) {
  auto shell = std::make_shared<std::string>();
  auto* command =
      app.add_subcommand("completion", "Print a script that completes braid's options in a shell");
  command->add_option("shell", *shell, "the shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: braid completion bash > ~/.local/share/bash-completion/completions/braid\n"
      "zsh:  braid completion zsh > DIRECTORY_IN_fpath/_braid\n"
      "fish: braid completion fish > ~/.config/fish/completions/braid.fish");
  command->callback([&app, shell, exit_code] {
    print_result("{}", completion_script(app, *shell));
    *exit_code = 0;
  });
}

}  // namespace braid::cli
