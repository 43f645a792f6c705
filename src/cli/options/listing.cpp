// listing.cpp -- see listing.h.
#include "cli/options/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace braid::cli {
namespace {

// Options that --help shows, of all commands together.
const std::set<std::string_view> kCommon = {
    "--model",   "--prompt",   "--file",         "--system",        "--think",
    "--predict", "--ctx-size", "--device",       "--threads",       "--parallel",
    "--temp",    "--seed",     "--cache-type-k", "--cache-type-v",  "--cache-dir",
    "--host",    "--port",     "--api-key-file", "--alias",         "--models-dir",
    "--help",    "--help-all", "--config",       "--chat-template", "--verbose",
    "--memory",  "--shape",    "--json",         "--tensors",       "--n-prompt",
    "--n-gen",   "--batch",    "--spec",         "--formats",       "--parts",
    "--slots",   "--export",   "--simulate",     "--question",      "--keep",
    "--show",    "--needles",  "--upstream",     "--upstream-key",  "--upstream-model"};

// "TEXT:{auto,on,off}" and "{auto,on,off}" -> auto on off
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find('{'), end = type.find('}', begin == type.npos ? 0 : begin);
  std::vector<std::string> out;
  if (begin == type.npos || end == type.npos) return out;
  std::string word;
  for (size_t i = begin + 1; i <= end; ++i) {
    if (type[i] == ',' || i == end) {
      if (!word.empty()) out.push_back(word);
      word.clear();
    } else {
      word += type[i];
    }
  }
  return out;
}

// "INT:INT in [0 - 65535]" -> 0 to 65535
std::string range_of(const std::string& type) {
  const size_t begin = type.find('['), middle = type.find(" - ", begin == type.npos ? 0 : begin),
               end = type.find(']', begin == type.npos ? 0 : begin);
  if (begin == type.npos || middle == type.npos || end == type.npos) return {};
  return type.substr(begin + 1, middle - begin - 1) + " to " +
         type.substr(middle + 3, end - middle - 3);
}

std::string value_of(const CLI::Option& option, const std::vector<std::string>& choices) {
  if (option.get_expected_max() == 0) return {};
  if (!choices.empty()) {
    const std::string all = fmt::format("{{{}}}", fmt::join(choices, ","));
    return all.size() <= 32 ? all : "NAME";
  }
  const std::string type = option.get_type_name();
  const std::string kind = type.substr(0, type.find_first_of(": "));
  if (kind == "INT" || kind == "UINT" || kind == "FLOAT" || type.starts_with("[")) return "N";
  return kind;
}

ListedOption describe(const CLI::Option& option) {
  ListedOption out;
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    const auto known = std::find_if(std::begin(kShortNames), std::end(kShortNames),
                                    [&](const ShortName& s) { return s.option == "--" + name; });
    if (known != std::end(kShortNames)) out.names.emplace_back(known->name);
  }
  for (const std::string& name : option.get_lnames()) {
    out.names.push_back("--" + name);
    out.common |= kCommon.contains("--" + name);
  }
  if (option.get_positional()) out.operand = option.get_name(true);
  out.required = option.get_required();
  out.common |= out.names.empty() || out.required;
  const std::string type = option.get_type_name();
  out.choices = choices_of(type);
  out.range = range_of(type);
  out.value = value_of(option, out.choices);
  out.help = option.get_description();
  out.fallback = option.get_default_str();
  out.environment = option.get_envname();
  out.group = option.get_group();
  return out;
}

// CLI11 gives a command its parent's footer if it has none of its own.
std::string footer_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent != nullptr && parent->get_footer() == command.get_footer() ? ""
                                                                           : command.get_footer();
}

}  // namespace

ListedCommand list_command(const CLI::App& command) {
  ListedCommand out{command.get_name(), command.get_description(), footer_of(command), {}};
  std::vector<std::string> groups;  // in order of registration
  std::vector<ListedOption> all;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    all.push_back(describe(*option));
    // Help options are registered first but listed last.
    if (std::find(groups.begin(), groups.end(), all.back().group) == groups.end() &&
        all.back().group != "Options")
      groups.push_back(all.back().group);
  }
  groups.emplace_back("Options");
  for (const ListedOption& option : all)
    if (option.names.empty()) out.options.push_back(option);
  for (const std::string& group : groups)
    for (const ListedOption& option : all)
      if (option.group == group && !option.names.empty()) out.options.push_back(option);
  return out;
}

std::vector<ListedCommand> list_commands(const CLI::App& app) {
  std::vector<ListedCommand> out;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) out.push_back(list_command(*command));
  return out;
}

}  // namespace braid::cli
