// man.cpp -- manual pages: `braid docs man` prints braid(1), `braid docs man serve` braid-serve(1).
#include "cli/terminal/man.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"

namespace braid::cli {
namespace {

// Text as roff prints it unchanged. A dot or quote that begins a line would be a request.
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

// What stands between two marks of a type's name, "INT:INT in [0 - 64]" or "TEXT:{auto,on}"; empty if
// they are not there.
std::string between(const std::string& type, char open, char close) {
  const size_t begin = type.find(open);
  const size_t end = type.find(close, begin == type.npos ? 0 : begin);
  return begin == type.npos || end == type.npos ? "" : type.substr(begin + 1, end - begin - 1);
}

// The value of an option as a line shows it: its choices, or what kind it is.
std::string value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::string choices = between(type, '{', '}');
  for (char& c : choices) c = c == ',' ? '|' : c;
  if (!choices.empty()) return roff(choices);
  const std::string kind = type.substr(0, type.find(':'));
  const bool number = kind == "INT" || kind == "UINT" || kind == "FLOAT" || kind.rfind('[', 0) == 0;
  return italic(number ? "N" : kind.empty() ? "VALUE" : kind);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Range, default and variable, behind the description.
std::string remarks_of(const CLI::Option& option) {
  std::vector<std::string> remarks;
  const std::string range = between(option.get_type_name(), '[', ']');
  if (!range.empty()) remarks.push_back("from " + roff(replaced(range, " - ", " to ")));
  if (!option.get_default_str().empty()) remarks.push_back("default: " + roff(option.get_default_str()));
  if (option.get_required()) remarks.push_back("required");
  if (!option.get_envname().empty()) remarks.push_back("variable: " + bold(option.get_envname()));
  return remarks.empty() ? "" : fmt::format(" ({})", fmt::join(remarks, "; "));
}

std::string option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(bold("--" + name));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string entry_of(const CLI::Option& option) {
  std::string out = ".TP\n";
  if (option.get_positional()) {
    out += italic(option.get_name(true, true));
  } else {
    out += option_names(option);
    if (option.get_expected_max() > 0) out += " " + value_of(option);
  }
  return out + "\n" + roff(option.get_description()) + remarks_of(option) + "\n";
}

// Options of `command` and of its groups, which are nameless commands; those that --help hides are not
// among them.
std::vector<const CLI::Option*> visible_options(const CLI::App& command) {
  std::vector<const CLI::Option*> out;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty()) out.push_back(option);
  for (const CLI::App* group : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!group->get_name().empty() || group->get_group().empty()) continue;
    const auto more = visible_options(*group);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

std::vector<const CLI::App*> visible_commands(const CLI::App& app) {
  std::vector<const CLI::App*> out;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_name().empty() && !command->get_group().empty()) out.push_back(command);
  return out;
}

// Sections of operands and of options. Groups that a command names itself are parts of the latter.
std::string options_text(const CLI::App& command) {
  std::string operands, out, group;
  for (const CLI::Option* option : visible_options(command)) {
    if (option->get_positional()) {
      operands += entry_of(*option);
      continue;
    }
    if (option->get_group() != group) {
      group = option->get_group();
      out += group == "Options" ? "" : ".SS " + roff(group) + "\n";
    }
    out += entry_of(*option);
  }
  return (operands.empty() ? "" : ".SH OPERANDS\n" + operands) + (out.empty() ? "" : ".SH OPTIONS\n" + out);
}

std::string man_header(const std::string& title, const std::string& what, const std::string& version) {
  std::string upper = title;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  // Pages of one version are the same bytes whenever they are made: no date.
  return fmt::format(".TH {} 1 \"\" \"braid {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", roff(upper),
                     version, roff(title), roff(what));
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n2\na fault in the input or an option; one sentence on stderr "
    "says which\n"
    ".TP\n130\ninterrupted\n";

std::string program_page(const CLI::App& app, const std::string& version) {
  std::string out = man_header(app.get_name(), app.get_description(), version);
  out += fmt::format(".SH SYNOPSIS\n{} {} [{}]\n.SH COMMANDS\n", bold(app.get_name()), italic("COMMAND"),
                     italic("OPTIONS"));
  std::string also;
  for (const CLI::App* command : visible_commands(app)) {
    out += fmt::format(".TP\n{}\n{}\n", bold(command->get_name()), roff(command->get_description()));
    also +=
        fmt::format("{}{}(1)", also.empty() ? "" : ", ", bold(app.get_name() + "-" + command->get_name()));
  }
  return out + options_text(app) + kExitStatus + ".SH SEE ALSO\n" + also + "\n";
}

std::string command_page(const CLI::App& app, const CLI::App& command, const std::string& version) {
  const std::string title = app.get_name() + "-" + command.get_name();
  std::string out = man_header(title, command.get_description(), version);
  out += fmt::format(".SH SYNOPSIS\n{} [{}]", bold(app.get_name() + " " + command.get_name()),
                     italic("OPTIONS"));
  for (const CLI::Option* option : visible_options(command)) {
    if (!option->get_positional()) continue;
    const std::string name = italic(option->get_name(true, true));
    out += option->get_required() ? " " + name : " [" + name + "]";
  }
  out += "\n" + options_text(command);
  const bool own_footer = !command.get_footer().empty() && command.get_footer() != app.get_footer();
  if (own_footer) out += ".SH NOTES\n.nf\n" + roff(command.get_footer()) + "\n.fi\n";
  return out + kExitStatus + ".SH SEE ALSO\n" + bold(app.get_name()) + "(1)\n";
}

}  // namespace

std::string man_page(const CLI::App& app, const std::string& name, const std::string& version) {
  if (name.empty()) return program_page(app, version);
  for (const CLI::App* command : visible_commands(app))
    if (command->get_name() == name) return command_page(app, *command, version);
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
