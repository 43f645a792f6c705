// help.cpp -- see help.h.
#include "cli/options/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/options/listing.h"

namespace braid::cli {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kHelpColumn = 30;  // of descriptions

std::string signature(const ListedOption& option) {
  std::string out = fmt::format("{}", fmt::join(option.names, ", "));
  if (!option.value.empty()) out += " " + option.value;
  return out;
}

std::string description(const ListedOption& option, bool all) {
  std::string out = option.help;
  std::vector<std::string> facts;
  if (!option.choices.empty() && option.value == "NAME")
    facts.push_back(fmt::format("one of {}", fmt::join(option.choices, ", ")));
  if (!option.fallback.empty() && option.fallback != "[]")
    facts.push_back("default " + option.fallback);
  if (all && !option.range.empty()) facts.push_back(option.range);
  if (all && !option.environment.empty()) facts.push_back(option.environment);
  if (!facts.empty()) out += fmt::format(" [{}]", fmt::join(facts, "; "));
  return out;
}

std::string option_lines(const ListedOption& option, bool all) {
  std::string head = "  " + signature(option);
  const std::string text = wrapped(description(option, all), kColumns - kHelpColumn, kHelpColumn);
  if (head.size() + 2 > kHelpColumn)
    return head + "\n" + std::string(kHelpColumn, ' ') + text + "\n";
  head.resize(kHelpColumn, ' ');
  return head + text + "\n";
}

}  // namespace

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      out += "\n" + std::string(indent, ' ');
      column = 0;
      ++at;
      continue;
    }
    if (column == 0 && text[at] == ' ') {  // an indented line stays as it is
      const size_t line_end = std::min(text.find('\n', at), text.size());
      out += text.substr(at, line_end - at);
      at = line_end;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (column > 0 && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    at = end < text.size() && text[end] == ' ' ? end + 1 : end;
  }
  return out;
}

std::string command_help(const CLI::App& command, bool all) {
  const ListedCommand listed = list_command(command);
  std::string operands;
  for (const ListedOption& option : listed.options) {
    if (option.operand.empty()) continue;
    operands += fmt::format(fmt::runtime(option.required ? " {}" : " [{}]"), option.operand);
  }
  std::string out = fmt::format("Usage: braid {}{} [OPTIONS]\n\n{}.\n", listed.name, operands,
                                wrapped(listed.help, kColumns, 0));
  std::string group;
  size_t hidden = 0;
  for (const ListedOption& option : listed.options) {
    if (option.names.empty()) continue;
    if (!all && !option.common) {
      ++hidden;
      continue;
    }
    if (option.group != group) out += fmt::format("\n{}:\n", group = option.group);
    out += option_lines(option, all);
  }
  if (hidden > 0)
    out += fmt::format("\n{} more options: braid {} --help-all\n", hidden, listed.name);
  if (!listed.footer.empty()) out += "\n" + wrapped(listed.footer, kColumns, 0) + "\n";
  return out;
}

std::string program_help(const CLI::App& app) {
  std::string out =
      wrapped(app.get_description(), kColumns, 0) + "\n\nUsage: braid COMMAND [OPTIONS]\n\n";
  for (const ListedCommand& command : list_commands(app))
    out += fmt::format("  {:<12} {}\n", command.name, wrapped(command.help, kColumns - 15, 15));
  return out + "\n" + app.get_footer() + "\n";
}

}  // namespace braid::cli
