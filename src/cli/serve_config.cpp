// serve_config.cpp -- see serve_config.h.
#include "cli/serve_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <utility>
#include <vector>

#include "cli/load_model.h"
#include "cli/serve_options.h"
#include "server/endpoints/access.h"

namespace braid::cli {

Status read_config(CLI::App& command, const std::string& path) {
  if (path.empty()) return {};
  BRAID_ASSIGN(const std::string text, read_text(path, kMostSettingsBytes));
  const auto wrong = [&path](const std::string& what) {
    return Error{ErrorKind::invalid_argument, path + ": " + what};
  };
  std::set<const CLI::Option*> typed, seen;
  const auto& order = command.parse_order();  // without values of the environment
  typed.insert(order.begin(), order.end());
  try {
    std::istringstream lines(text);
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
      CLI::Option* option = command.get_option_no_throw("--" + item.name);
      if (!item.parents.empty() || option == nullptr || item.name == "config") {
        return wrong("there is no option " + item.fullname());
      }
      if (typed.contains(option)) continue;
      if (seen.insert(option).second) option->clear();
      if (option->get_expected_max() == 0) {  // a flag
        option->add_result(
            option->get_flag_value("", item.inputs.empty() ? "true" : item.inputs.front()));
      } else {
        option->add_result(item.inputs);
      }
      option->run_callback();
    }
  } catch (const CLI::Error& error) {
    return wrong(error.what());
  }
  return {};
}

std::set<std::string> given_options(const CLI::App& command) {
  std::set<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const bool is_off = option->get_expected_max() == 0 && !option->as<bool>();
    if (!is_off) out.insert("--" + option->get_lnames().front());
  }
  return out;
}

Status check_effects(const std::set<std::string>& given, bool has_keys) {
  const auto no_effect = [](const std::string& option, const std::string& why) {
    return Error{ErrorKind::invalid_argument, fmt::format("{} has no effect {}", option, why)};
  };
  if (has_keys && given.contains("--allowed-host"))
    return no_effect("--allowed-host", "with API keys: requests are known by their keys");
  for (const char* option : {"--public-metrics", "--public-models", "--share-cache"}) {
    if (!has_keys && given.contains(option))
      return no_effect(option, "without API keys (--api-key, --api-key-file)");
  }
  const std::pair<const char*, std::vector<const char*>> kNeeds[] = {
      {"--tls-cert", {"--tls-key"}},
      {"--tls-key", {"--tls-cert"}},
      {"--cache-dir-size", {"--cache-dir"}},
      {"--model-wait", {"--models-dir", "--discover", "--presets"}},
  };
  for (const auto& [option, others] : kNeeds) {
    const auto is_given = [&given](const char* other) { return given.contains(other); };
    if (given.contains(option) && std::none_of(others.begin(), others.end(), is_given))
      return no_effect(option, fmt::format("without {}", fmt::join(others, " or ")));
  }
  return {};
}

// As browsers send origins: no path, no trailing slash, no capitals.
std::string check_origin(const std::string& text) {
  if (text == "*" || text == "null") return "";
  const size_t at = text.find("://");
  const bool fine =
      at != std::string::npos && at > 0 && at + 3 < text.size() &&
      text.find_first_of("/?#@ *", at + 3) == std::string::npos &&
      std::none_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  return fine ? ""
              : text + " is not an origin: scheme://host or scheme://host:port in lowercase, or *";
}

std::string check_host_name(const std::string& text) {
  if (text == "*") return "";
  if (text.empty() || text.find_first_of(":/ *") != std::string::npos)
    return text + " is not a host name: a name without scheme and port, or *";
  if (server::is_address(text) || text == "localhost")
    return text + " has no effect: localhost and IP addresses are always allowed";
  return "";
}

}  // namespace braid::cli
