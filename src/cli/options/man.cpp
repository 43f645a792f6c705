// man.cpp -- manual pages: `braid docs man` prints braid(1), `braid docs man serve` braid-serve(1).
#include "cli/options/man.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/options/listing.h"
#include "cli/terminal.h"

namespace braid::cli {
namespace {

// Escapes `text` for roff, where a dot or quote at the start of a line is a request.
std::string roff(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string remarks_of(const ListedOption& option) {
  std::vector<std::string> remarks;
  if (!option.range.empty()) remarks.push_back("from " + roff(option.range));
  if (!option.fallback.empty()) remarks.push_back("default: " + roff(option.fallback));
  if (option.required) remarks.push_back("required");
  if (!option.environment.empty()) remarks.push_back("variable: " + bold(option.environment));
  return remarks.empty() ? "" : fmt::format(" ({})", fmt::join(remarks, "; "));
}

std::string entry_of(const ListedOption& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + bold(name);
  if (option.names.empty()) names = italic(option.operand);
  if (!option.choices.empty()) {
    names += " " + roff(fmt::format("{}", fmt::join(option.choices, "|")));
  } else if (!option.value.empty() && !option.names.empty()) {
    names += " " + italic(option.value);
  }
  return ".TP\n" + names + "\n" + roff(option.help) + remarks_of(option) + "\n";
}

std::string options_text(const ListedCommand& command) {
  std::string operands, out, group;
  for (const ListedOption& option : command.options) {
    if (option.names.empty()) {
      operands += entry_of(option);
      continue;
    }
    if (option.group != group) {
      group = option.group;
      out += group == "Options" && out.empty() ? "" : ".SS " + roff(group) + "\n";
    }
    out += entry_of(option);
  }
  return (operands.empty() ? "" : ".SH OPERANDS\n" + operands) +
         (out.empty() ? "" : ".SH OPTIONS\n" + out);
}

std::string man_header(const std::string& title, const std::string& what,
                       const std::string& version) {
  std::string upper = title;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  // No date, so that pages of one version are identical.
  return fmt::format(".TH {} 1 \"\" \"braid {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
                     roff(upper), version, roff(title), roff(what));
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n2\na fault in the input or an option; one sentence on "
    "stderr "
    "says which\n"
    ".TP\n130\ninterrupted\n"
    ".TP\n141\nnobody reads the result any more (signal PIPE)\n";

std::string program_page(const CLI::App& app, const std::string& version) {
  std::string out = man_header("braid", app.get_description(), version);
  out += fmt::format(".SH SYNOPSIS\n{} {} [{}]\n.SH COMMANDS\n", bold("braid"), italic("COMMAND"),
                     italic("OPTIONS"));
  std::string also;
  for (const ListedCommand& command : list_commands(app)) {
    out += fmt::format(".TP\n{}\n{}\n", bold(command.name), roff(command.help));
    also += fmt::format("{}{}(1)", also.empty() ? "" : ", ", bold("braid-" + command.name));
  }
  return out + options_text(list_command(app)) + kExitStatus + ".SH SEE ALSO\n" + also + "\n";
}

std::string command_page(const ListedCommand& command, const std::string& version) {
  std::string out = man_header("braid-" + command.name, command.help, version);
  out += fmt::format(".SH SYNOPSIS\n{} [{}]", bold("braid " + command.name), italic("OPTIONS"));
  for (const ListedOption& option : command.options) {
    if (option.operand.empty()) continue;
    const std::string name = italic(option.operand);
    out += option.required ? " " + name : " [" + name + "]";
  }
  out += "\n" + options_text(command);
  if (!command.footer.empty()) out += ".SH NOTES\n.nf\n" + roff(command.footer) + "\n.fi\n";
  return out + kExitStatus + ".SH SEE ALSO\n" + bold("braid") + "(1)\n";
}

}  // namespace

std::string man_page(const CLI::App& app, const std::string& name, const std::string& version) {
  if (name.empty()) return program_page(app, version);
  for (const ListedCommand& command : list_commands(app))
    if (command.name == name) return command_page(command, version);
  return "";
}

void add_man(CLI::App& parent, const CLI::App& app, const std::string& version, int* exit_code) {
  auto name = std::make_shared<std::string>();
  auto* man = parent.add_subcommand("man", "Print a manual page, in roff");
  man->add_option("command", *name, "the command whose page it is (default: the program's own)");
  man->callback([&app, name, version, exit_code] {
    const std::string page = man_page(app, *name, version);
    if (page.empty()) {
      *exit_code = fail({ErrorKind::invalid_argument, "no command \"" + *name + "\""});
      return;
    }
    write_result(page);
    *exit_code = 0;
  });
}

}  // namespace braid::cli
